"""The REST API over real HTTP: right answers, every refusal, and calm under load."""

import concurrent.futures
import hashlib
import io
import re
import socket
import struct
import time
import zlib
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest
from PIL import Image

from detector.report import ImageReport
from detector.scoring import Detector

PROBLEM = "application/problem+json"
MAX_UPLOAD_BYTES = 2 * 2**20  # as the `server` fixture sets it


def post(client: httpx.Client, data: bytes, name: str = "picture.jpg", **options) -> httpx.Response:
    return client.post("/v1/images", files={"file": (name, data)}, **options)


def assert_problem(response: httpx.Response, status: int, said: str) -> None:
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == PROBLEM
    body = response.json()
    assert body["status"] == status
    assert re.search(said, body["detail"]), body["detail"]
    assert body["request_id"] == response.headers["x-request-id"]
    assert body["instance"] == urlsplit(str(response.request.url)).path


def encoded(image: Image.Image, format_name: str) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, format_name)
    return buffer.getvalue()


def chunk(kind: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))


def bomb() -> bytes:
    """A few hundred bytes that claim 60,000 x 60,000 pixels."""
    header = struct.pack(">IIBBBBB", 60_000, 60_000, 8, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", header)
        + chunk(b"IDAT", zlib.compress(bytes(1000)))
        + chunk(b"IEND", b"")
    )


@pytest.fixture(scope="module")
def detector() -> Detector:
    return Detector(threads=1)


def test_a_picture_gets_the_report_the_detector_gives(client, detector, photograph):
    response = post(client, photograph, "cat.jpg")
    assert response.status_code == 200, response.text
    report = ImageReport.model_validate_json(response.text)
    assert report == detector.score(photograph, "cat.jpg")
    assert report.status == "ok" and report.verdict in ("ai", "real", "uncertain", "out_of_scope")
    assert report.sha256 == hashlib.sha256(photograph).hexdigest()
    assert (report.format, report.width, report.height) == ("JPEG", 512, 512)


@pytest.mark.parametrize("format_name", ["PNG", "WEBP", "AVIF", "GIF", "TIFF", "BMP"])
def test_other_formats_are_scored(client, photograph, format_name):
    image = Image.open(io.BytesIO(photograph)).resize((160, 160))
    response = post(client, encoded(image, format_name))
    assert response.status_code == 200, response.text
    assert response.json()["format"] == format_name


def test_the_same_bytes_always_score_the_same(client, photograph):
    assert post(client, photograph).json() == post(client, photograph).json()


@pytest.mark.parametrize(
    ("data", "status", "said"),
    [
        (b"<html>no picture</html>", 415, "not a picture"),
        (b"", 415, "empty"),
        (b"%PDF-1.7\n" + bytes(100), 415, "not a picture"),
        (bomb(), 422, "60000 x 60000.*pixels"),
        (encoded(Image.new("RGB", (1, 1)), "PNG"), 422, "1 x 1 px"),
        (encoded(Image.new("RGB", (4000, 33)), "PNG"), 422, "longer side"),
    ],
    ids=["html", "empty", "pdf", "bomb", "one-pixel", "strip"],
)
def test_input_that_cannot_be_scored(client, data, status, said):
    assert_problem(post(client, data), status, said)


def test_a_truncated_picture(client, photograph):
    assert_problem(post(client, photograph[: len(photograph) // 2]), 422, "damaged or cut short")


def test_a_hostile_file_name_is_only_text(client, photograph):
    name = "../../etc/<script>x.jpg"
    assert post(client, photograph, name).json()["path"] == name


def test_no_file(client):
    assert_problem(client.post("/v1/images"), 400, "file")
    assert_problem(client.post("/v1/images", json={"file": "x"}), 400, "file")
    assert_problem(client.post("/v1/images", data={"file": "text"}), 400, "file")
    assert_problem(client.post("/v1/images", files={"picture": b"x"}), 400, "file")


def test_two_files(client, photograph):
    parts = [("file", ("a.jpg", photograph)), ("file", ("b.jpg", photograph))]
    assert_problem(client.post("/v1/images", files=parts), 400, "2 fields.*exactly one")


def test_a_broken_multipart_body(client):
    headers = {"content-type": "multipart/form-data; boundary=x"}
    assert_problem(client.post("/v1/images", content=b"--y\r\nnonsense", headers=headers), 400, ".")


def test_a_picture_over_the_cap(client):
    assert_problem(post(client, bytes(MAX_UPLOAD_BYTES + 1)), 413, f"{MAX_UPLOAD_BYTES:,} bytes")
    assert_problem(post(client, bytes(MAX_UPLOAD_BYTES * 2)), 413, f"{MAX_UPLOAD_BYTES:,} bytes")


def test_a_picture_at_the_cap_is_read(client, photograph):
    padded = photograph + bytes(MAX_UPLOAD_BYTES - len(photograph))
    response = post(client, padded)
    assert response.status_code == 200, response.text
    assert "after the end of the JPEG" in response.json()["warnings"][0]


def test_an_endless_chunked_body_is_refused_while_it_is_sent(server):
    """There is no Content-Length to check: the bytes themselves are counted (fastapi 362, 1181)."""
    address = urlsplit(server.url)
    head = (
        f"POST /v1/images HTTP/1.1\r\nHost: {address.netloc}\r\nTransfer-Encoding: chunked\r\n"
        "Content-Type: multipart/form-data; boundary=b\r\n\r\n"
    )
    part = b'--b\r\nContent-Disposition: form-data; name="file"; filename="a.png"\r\n\r\n'
    block = bytes(64 * 1024)
    sent, answer = 0, b""
    with socket.create_connection((address.hostname, address.port), timeout=20) as connection:
        connection.sendall(head.encode() + b"%x\r\n%s\r\n" % (len(part), part))
        try:
            while sent < 256 * 2**20:
                connection.sendall(b"%x\r\n%s\r\n" % (len(block), block))
                sent += len(block)
        except (BrokenPipeError, ConnectionResetError):
            pass
        while received := connection.recv(65536):
            answer += received
    assert sent < 128 * 2**20, "the server read on"
    assert answer.startswith(b"HTTP/1.1 413 "), answer[:200]
    assert PROBLEM.encode() in answer and b"x-request-id" in answer.lower()


def test_a_declared_length_over_the_cap_is_refused_before_the_body(server):
    address = urlsplit(server.url)
    head = (
        f"POST /v1/images HTTP/1.1\r\nHost: {address.netloc}\r\nContent-Length: {10**12}\r\n"
        "Content-Type: multipart/form-data; boundary=b\r\n\r\n"
    )
    with socket.create_connection((address.hostname, address.port), timeout=20) as connection:
        connection.sendall(head.encode())
        assert connection.recv(65536).startswith(b"HTTP/1.1 413 ")


def test_uploads_of_the_page_have_the_same_cap(client):
    response = client.post("/gradio_api/upload", files={"files": ("a.png", bytes(MAX_UPLOAD_BYTES * 2))})
    assert response.status_code == 413


def test_models(client, detector):
    (model,) = client.get("/v1/models").json()["models"]
    card = detector.card
    assert (model["name"], model["version"], model["sha256"]) == (card.name, card.version, card.sha256)
    assert model["experts"] == list(card.experts)
    assert model["thresholds"]["ai"] == card.thresholds.ai


def test_health_and_ready(client):
    assert client.get("/health").json() == {"status": "ok"}
    ready = client.get("/ready")
    assert ready.status_code == 200 and ready.json()["status"] == "ready"


def test_unknown_paths_and_methods(client):
    assert_problem(client.get("/v1/nothing"), 404, "/v1/nothing does not exist")
    wrong = client.get("/v1/images")
    assert_problem(wrong, 405, "allowed: POST")
    assert wrong.headers["allow"] == "POST"


def test_request_id_is_kept_when_harmless_and_made_otherwise(client):
    assert client.get("/health", headers={"X-Request-ID": "job-17.a"}).headers["x-request-id"] == "job-17.a"
    for bad in ("", "a b", "x" * 129, "<script>"):
        made = client.get("/health", headers={"X-Request-ID": bad}).headers["x-request-id"]
        assert re.fullmatch("[0-9a-f]{32}", made)


@pytest.mark.parametrize("path", ["/", "/docs", "/health", "/v1/nothing", "/openapi.json"])
def test_every_answer_has_an_id_and_security_headers(client, path):
    headers = client.get(path).headers
    assert headers["x-request-id"]
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["referrer-policy"] == "no-referrer"
    assert "default-src 'self'" in headers["content-security-policy"]
    assert "server" not in headers


def test_other_origins_may_not_read_answers(client):
    answer = client.get("/v1/models", headers={"Origin": "https://elsewhere.example"})
    assert "access-control-allow-origin" not in answer.headers


def test_the_reference_describes_every_route_and_needs_nothing_from_outside(client):
    html = client.get("/docs").text
    for path in client.get("/openapi.json").json()["paths"]:
        assert path in html
    assert "POST /v1/images" in html and "-F file=@picture.jpg" in html
    assert "<script" not in html and "https://" not in html


def test_openapi_declares_the_report_and_the_problems(client):
    post_image = client.get("/openapi.json").json()["paths"]["/v1/images"]["post"]
    assert post_image["responses"]["200"]["content"]["application/json"]["schema"]["$ref"].endswith(
        "/ImageReport"
    )
    assert {"400", "413", "415", "422"} <= set(post_image["responses"])
    assert PROBLEM in post_image["responses"]["415"]["content"]


def test_two_at_once_do_not_mix(client, photograph):
    """Each answer belongs to its own picture, also when they are scored at the same time."""
    image = Image.open(io.BytesIO(photograph))
    pictures = [encoded(image.rotate(90 * turn), "PNG") for turn in range(2)] * 2
    alone = [post(client, data).json() for data in pictures[:2]] * 2
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        together = list(pool.map(lambda data: post(client, data).json(), pictures))
    assert together == alone


def test_health_answers_while_pictures_are_scored(client, photograph):
    """Scoring happens beside the event loop: /health must not wait for it."""
    image = Image.open(io.BytesIO(photograph)).resize((1000, 1000))
    data = encoded(image, "JPEG")
    with concurrent.futures.ThreadPoolExecutor(6) as pool:
        scorings = [pool.submit(post, client, data) for _ in range(6)]
        waits_s = []
        while not all(scoring.done() for scoring in scorings):
            start = time.perf_counter()
            assert client.get("/health").status_code == 200
            waits_s.append(time.perf_counter() - start)
        assert {scoring.result().status_code for scoring in scorings} == {200}
    assert len(waits_s) >= 3, "health answered several times while pictures were being scored"
    assert sorted(waits_s)[len(waits_s) // 2] < 0.5


def test_one_failure_does_not_stop_the_next_request(client, photograph):
    before = post(client, photograph).json()
    for data in (b"", bomb(), photograph[:300], encoded(Image.new("RGB", (1, 1)), "PNG")):
        assert post(client, data).status_code in (415, 422)
    assert post(client, photograph).json() == before
    assert client.get("/ready").status_code == 200


def test_scoring_loads_no_torch(server, client, photograph):
    post(client, photograph)
    mapped = Path(f"/proc/{server.process.pid}/maps").read_text()
    assert "onnxruntime" in mapped
    assert "libtorch" not in mapped


def test_the_runtime_reports_to_nobody(server, client, photograph):
    """onnxruntime keeps a session file for its telemetry; without the file there is no telemetry."""
    post(client, photograph)
    assert not (server.temporary / ".ses").exists()
