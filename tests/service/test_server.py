"""The service over real HTTP: every way in, every refusal, jobs, keys, and what survives a kill."""

import asyncio
import base64
import hashlib
import os
import re
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from detector.report import ImageReport
from service.client import ApiProblem, AsyncClient, Client
from service.client.calls import OPEN
from tests.service.conftest import ROOT, Running, picture, running, serving, wait_until

PROBLEM = "application/problem+json"
SLOW = pytest.mark.slow


def assert_problem(response: httpx.Response, status: int, said: str) -> None:
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == PROBLEM
    body = response.json()
    assert body["status"] == status and re.search(said, body["detail"]), body
    assert body["request_id"] == response.headers["x-request-id"]


def send(client: httpx.Client, data: bytes, **options) -> httpx.Response:
    return client.post("/v1/images", files={"file": ("a.png", data)}, **options)


def in_base64(data: bytes, **more: str) -> dict[str, str]:
    return {"base64": base64.b64encode(data).decode(), **more}


def wait_for_job(client: httpx.Client, identity: str, seconds: float = 240) -> dict:
    wait_until(lambda: client.get(f"/v1/jobs/{identity}").json()["status"] not in OPEN, seconds)
    return client.get(f"/v1/jobs/{identity}").json()


def test_every_way_in_gives_the_same_report(client):
    data = picture(1)
    by_file, by_text = send(client, data), client.post("/v1/images", json=in_base64(data, name="a.png"))
    assert by_file.status_code == 200, by_file.text
    assert ImageReport.model_validate_json(by_file.text) == ImageReport.model_validate_json(by_text.text)
    assert by_file.json()["sha256"] == hashlib.sha256(data).hexdigest()


def test_the_second_time_the_report_is_known(client):
    data = picture(2)
    first, second = send(client, data), client.post("/v1/images", json=in_base64(data, name="b.png"))
    assert (first.headers["x-cache"], second.headers["x-cache"]) == ("miss", "hit")
    assert first.headers["etag"] == second.headers["etag"]
    assert first.json() | {"path": "b.png"} == second.json()
    known = client.get(f"/v1/images/{first.json()['sha256']}")
    assert known.json()["probability"] == first.json()["probability"]
    again = client.get(known.url, headers={"If-None-Match": known.headers["etag"]})
    assert again.status_code == 304 and again.content == b""


@pytest.mark.parametrize(
    ("body", "status", "said"),
    [
        ({}, 400, "0 of file, url, base64"),
        ({"url": "http://x/", "base64": "AAAA"}, 400, "2 of file, url, base64"),
        ({"base64": "no base64!"}, 400, "not base64"),
        ({"base64": 7}, 400, "must be text"),
        ({"url": "ftp://x/a"}, 400, "http or https"),
        ({"url": "http://u:p@x/a"}, 400, "user name or password"),
        ({"file": "x"}, 400, "multipart"),
        ({"base64": "AAAA", "other": 1}, 400, "unknown field 'other'"),
        (["x"], 400, "JSON object"),
        ({"base64": "AAAA" * 400_000}, 413, "1,048,576 bytes"),
        ({"base64": base64.b64encode(b"<html>").decode()}, 415, "not a picture"),
        ({"base64": base64.b64encode(picture()[:300]).decode()}, 422, "cut short"),
        ({"url": "http://127.0.0.1:1/a.png"}, 422, "loopback"),
        ({"url": "http://169.254.169.254/latest/meta-data"}, 422, "link-local"),
        ({"url": "http://[::ffff:10.0.0.1]/a"}, 422, "only public ones"),
        ({"url": "http://2130706433/a"}, 422, "loopback"),
    ],
)
def test_what_is_wrong_is_said(client, body, status, said):
    assert_problem(client.post("/v1/images", json=body), status, said)


def test_a_body_of_another_kind_and_json_that_is_none(client):
    assert_problem(
        client.post("/v1/images", content=b"x", headers={"content-type": "text/plain"}), 415, "text/plain"
    )
    broken = client.post("/v1/images", content=b"{", headers={"content-type": "application/json"})
    assert_problem(broken, 400, "not JSON")


def test_a_file_and_a_url_are_one_too_many(client):
    both = client.post("/v1/images", files={"file": picture()}, data={"url": "http://x/a.png"})
    assert_problem(both, 400, "exactly one")


def test_a_batch_has_a_row_for_each_picture(client):
    items = [in_base64(picture(3)), in_base64(b"no picture"), {"url": "http://10.0.0.1/a.png"}, 7]
    answer = client.post("/v1/batches", json={"items": items})
    assert answer.status_code == 200, answer.text
    rows = answer.json()["items"]
    assert [row["index"] for row in rows] == [0, 1, 2, 3]
    assert rows[0]["report"]["status"] == "ok" and rows[0]["problem"] is None
    assert [row["problem"]["status"] for row in rows[1:]] == [415, 422, 400]
    assert answer.json()["counts"]["error"] == 3


def test_batches_have_bounds(client):
    assert_problem(client.post("/v1/batches", json={"items": []}), 400, "no picture")
    assert_problem(client.post("/v1/batches", json={"items": 1}), 400, "must be a list")
    assert_problem(client.post("/v1/batches", json={"items": [{}] * 101}), 413, "101 pictures.*100")
    assert_problem(client.post("/v1/batches", content=bytes(9 * 2**20)), 413, "4,194,304 bytes")


def test_the_same_idempotency_key_has_one_effect(client):
    files = [("file", ("a.png", picture(4)))]
    headers = {"Idempotency-Key": "one"}
    first = client.post("/v1/jobs", files=files, headers=headers)
    second = client.post("/v1/jobs", files=files, headers=headers)
    assert first.status_code == second.status_code == 202, second.text
    assert first.json() == second.json() and first.headers["location"] == second.headers["location"]
    assert second.headers["idempotency-replayed"] == "true"
    other = client.post("/v1/jobs", files=[("file", ("b.png", picture(5)))], headers=headers)
    assert_problem(other, 422, "another request")
    assert_problem(client.post("/v1/jobs", files=files, headers={"Idempotency-Key": "a b"}), 400, "visible")
    wait_for_job(client, first.json()["id"])


def test_a_refused_request_may_be_sent_again_under_its_key(client):
    headers = {"Idempotency-Key": "two"}
    assert_problem(client.post("/v1/images", json=in_base64(b"x"), headers=headers), 415, ".")
    assert_problem(client.post("/v1/images", json=in_base64(b"x"), headers=headers), 415, ".")


def test_a_job_and_its_results(client):
    files = [("file", (f"{seed}.png", picture(seed))) for seed in range(10, 12)]
    made = client.post("/v1/jobs", files=[*files, ("file", ("bad", b"no picture"))])
    assert made.status_code == 202, made.text
    identity = made.json()["id"]
    assert made.headers["location"] == f"/v1/jobs/{identity}"
    assert wait_for_job(client, identity)["status"] == "done"
    lines = [
        ImageReport.model_validate_json(line)
        for line in client.get(f"/v1/jobs/{identity}/results").iter_lines()
    ]
    assert [line.path for line in lines] == ["10.png", "11.png", "bad"]
    assert [line.status for line in lines] == ["ok", "ok", "error"]
    table = client.get(f"/v1/jobs/{identity}/results", params={"format": "csv"})
    assert table.headers["content-type"].startswith("text/csv") and len(table.text.splitlines()) == 4
    assert_problem(client.post(f"/v1/jobs/{identity}/cancel"), 409, "done and cannot be cancelled")
    listed = client.get("/v1/jobs", params={"limit": 1})
    assert listed.json()["jobs"][0]["id"] == identity
    if listed.json()["next_cursor"]:
        assert 'rel="next"' in listed.headers["link"]
    assert client.delete(f"/v1/jobs/{identity}").status_code == 204
    assert_problem(client.get(f"/v1/jobs/{identity}"), 404, "no job")


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/v1/jobs/nonsense", 400),
        ("GET", f"/v1/jobs/{'0' * 31}", 404),
        ("GET", f"/v1/jobs/{'0' * 31}/results", 404),
        ("POST", f"/v1/jobs/{'0' * 31}/cancel", 404),
        ("DELETE", f"/v1/jobs/{'0' * 31}", 404),
        ("GET", "/v1/jobs?limit=0", 400),
        ("GET", "/v1/jobs?cursor=x", 400),
        ("GET", "/v1/jobs?status=lost", 400),
        ("GET", f"/v1/images/{'0' * 64}", 404),
        ("GET", "/v1/images/x", 400),
        ("GET", "/v1/models/nobody", 404),
        ("DELETE", "/v1/batches", 405),
    ],
)
def test_refusals_of_other_routes(client, method, path, status):
    assert_problem(client.request(method, path), status, ".")


def test_jobs_that_are_refused_leave_nothing(client):
    items = {"items": [{"base64": "AAAA"}, {"base64": "!"}]}
    assert_problem(client.post("/v1/jobs", json=items), 400, "picture 1: .*not base64")
    good = {"items": [{"base64": "AAAA"}]}
    assert_problem(client.post("/v1/jobs", json=good | {"keep_uploads": "perhaps"}), 400, "true or false")
    assert_problem(client.post("/v1/jobs", json=good | {"webhook_url": "ftp://x"}), 400, "webhook_url")


def test_the_card_and_the_preview(client):
    name = client.get("/v1/models").json()["models"][0]["name"]
    card = client.get(f"/v1/models/{name}")
    assert card.json()["training"]
    assert client.get(card.url, headers={"If-None-Match": card.headers["etag"]}).status_code == 304
    preview = client.post("/v1/thresholds/preview", json={"real": [0.1, 0.2], "false_positive_rate": 0.5})
    assert preview.json()["false_positive_rate"] == 0.5
    for body in ({"real": []}, {"real": [2]}, {"real": [0.1], "false_positive_rate": 5e-324}):
        assert_problem(client.post("/v1/thresholds/preview", json=body), 400, "real|rate")


def test_metrics_count_what_happened(client):
    send(client, picture(6))
    text = client.get("/metrics").text
    assert 'omniaid_requests_total{method="POST",route="/v1/images",status="200"}' in text
    for name in ("request_seconds_bucket", "scorings_waiting", "verdicts_total", "score_drift", "jobs_open"):
        assert f"omniaid_{name}" in text


def test_the_log_names_no_file_and_no_url(server, client):
    secret = "portrait-of-my-neighbour"
    client.post("/v1/images", files={"file": (f"{secret}.png", b"x")})
    client.post("/v1/images", json={"url": f"http://10.0.0.1/{secret}.png"})
    client.get(f"/v1/{secret}")
    said = server.said()
    assert '"route": "/v1/images"' in said and secret not in said


def test_other_origins_are_closed_out(client):
    answer = client.get("/v1/models", headers={"Origin": "https://elsewhere.example"})
    assert "access-control-allow-origin" not in answer.headers


def test_a_decoder_that_is_killed_is_replaced(server, client):
    data = picture(7)
    for child in server.children():
        os.kill(child, signal.SIGKILL)
    assert send(client, data).status_code == 200
    assert client.get("/ready").status_code == 200


def test_both_clients(server):
    with Client(server.url, timeout_s=240) as client:
        report = client.score(picture(8))
        assert client.preview_threshold([0.1, 0.2], false_positive_rate=0.5).threshold > 0.1
        assert client.model_card(client.models().models[0].name).experts
        with pytest.raises(ApiProblem, match="415") as caught:
            client.score(b"no picture")
        assert caught.value.problem.status == 415
        assert client.batch([picture(8), b"x"]).counts["error"] == 1
        job = client.wait_for(client.create_job([picture(8)], key="clients").id)
        assert client.job_reports(job.id)[0].probability == report.probability
        assert client.list_jobs(limit=1).jobs[0].id == job.id
        client.delete_job(job.id)

    async def ask() -> ImageReport:
        async with AsyncClient(server.url, timeout_s=240) as client:
            job = await client.wait_for((await client.create_job([picture(8)])).id)
            await client.delete_job(job.id)
            return await client.score(picture(8))

    # In a thread of its own: a browser test in the same run leaves its event loop running in this one.
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(asyncio.run, ask()).result().probability == report.probability


BLOCK = re.compile(r"^```(?P<language>bash|python)\n(?P<code>.*?)^```$", re.MULTILINE | re.DOTALL)
BLOCKS = [found.groups() for found in BLOCK.finditer((ROOT / "docs" / "api.md").read_text("utf-8"))]


@pytest.mark.parametrize(("language", "code"), BLOCKS, ids=[code.split("\n")[0][:40] for _, code in BLOCKS])
def test_the_documented_examples_run(server, tmp_path, language, code):
    file = tmp_path / "cat.png"
    file.write_bytes(picture(9))
    if language == "python":
        exec(code, {"URL": server.url, "PICTURE": str(file)})
        return
    httpx.post(f"{server.url}/v1/images", files={"file": file.read_bytes()}, timeout=240)
    environment = os.environ | {"URL": server.url, "PICTURE": str(file), "no_proxy": "*"}
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", code], env=environment, capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stdout + done.stderr


@SLOW
def test_keys_scopes_limits_and_origins(tmp_path):
    state = {"OMNIAID_STATE": str(tmp_path), "PATH": os.environ["PATH"]}

    def omniaid(*arguments: str) -> str:
        command = [sys.executable, "-m", "service", *arguments]
        done = subprocess.run(
            command, cwd=ROOT, env=os.environ | state, capture_output=True, text=True, timeout=240
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    scoring = omniaid("keys", "create", "a team", "--scope", "score", "--rate-per-minute", "5")
    quota = omniaid("keys", "create", "another", "--images-per-day", "1")
    assert scoring.split("_")[1] in omniaid("keys", "list")
    with (
        serving(
            tmp_path,
            OMNIAID_REQUIRE_KEYS="true",
            OMNIAID_CORS_ORIGINS="https://our.example",
            OMNIAID_REQUEST_TIMEOUT_S="240",
        ) as server,
        httpx.Client(base_url=server.url, timeout=240) as client,
    ):
        first = {"Authorization": f"Bearer {scoring}"}
        nobody = client.get("/v1/models")
        assert_problem(nobody, 401, "requires an API key")
        assert nobody.headers["www-authenticate"] == "Bearer"
        assert_problem(
            client.get("/v1/models", headers={"Authorization": "Bearer oa_x_y"}), 401, "wrong, expired"
        )
        assert_problem(client.get("/v1/jobs", headers=first), 403, "lacks the scope jobs")
        assert_problem(client.get("/metrics"), 401, ".")
        second = {"Authorization": f"Bearer {quota}"}
        assert send(client, picture(1), headers=second).status_code == 200
        spent = send(client, picture(2), headers=second)
        assert_problem(spent, 429, "at most 1 pictures per day")
        assert int(spent.headers["retry-after"]) > 0
        answers = [client.get("/v1/models", headers=first) for _ in range(12)]
        assert {answer.status_code for answer in answers} == {200, 429}
        assert_problem(answers[-1], 429, "5 requests per minute")
        allowed = client.get("/health", headers={"Origin": "https://our.example"})
        assert allowed.headers["access-control-allow-origin"] == "https://our.example"
        rotated = omniaid("keys", "rotate", quota.split("_")[1], "--grace-hours", "0")
        assert client.get("/v1/models", headers=second).status_code == 401
        assert client.get("/v1/models", headers={"Authorization": f"Bearer {rotated}"}).status_code == 200
        omniaid("keys", "revoke", quota.split("_")[1])
        assert client.get("/v1/models", headers={"Authorization": f"Bearer {rotated}"}).status_code == 401
    entries = omniaid("data", "audit")
    assert "keys rotate" in entries and hashlib.sha256(picture(1)).hexdigest() in entries
    assert "1 reports" in omniaid("data", "forget", hashlib.sha256(picture(1)).hexdigest())


@SLOW
def test_a_full_queue_gives_clean_503s(tmp_path):
    with serving(
        tmp_path, OMNIAID_CONCURRENCY="1", OMNIAID_QUEUE_LIMIT="1", OMNIAID_CACHE_DAYS="0"
    ) as server:
        with httpx.Client(base_url=server.url, timeout=240) as client, ThreadPoolExecutor(8) as pool:
            answers = list(pool.map(lambda seed: send(client, picture(seed)), range(8)))
        assert {answer.status_code for answer in answers} == {200, 503}
        refused = next(answer for answer in answers if answer.status_code == 503)
        assert_problem(refused, 503, "wait already")
        assert refused.headers["retry-after"]


@SLOW
def test_sigterm_lets_running_work_end(tmp_path):
    with serving(tmp_path, OMNIAID_DRAIN_S="600", OMNIAID_REQUEST_TIMEOUT_S="240") as server:
        with httpx.Client(base_url=server.url, timeout=240) as client, ThreadPoolExecutor(1) as pool:
            items = {"items": [in_base64(picture(seed)) for seed in range(12)]}
            batch = pool.submit(client.post, "/v1/batches", json=items)
            wait_until(lambda: "omniaid_scorings_running 0.0" not in client.get("/metrics").text, 60)
            server.process.send_signal(signal.SIGTERM)
            wait_until(lambda: client.get("/ready").status_code == 503, 60)
            late = send(client, picture())
            assert_problem(late, 503, "about to stop")
            assert batch.result().status_code == 200, batch.result().text
        assert server.process.wait(60) == 0


@SLOW
def test_work_that_is_not_done_in_time_gets_a_clean_503(tmp_path):
    with serving(tmp_path, OMNIAID_DRAIN_S="0", OMNIAID_CACHE_DAYS="0") as server:
        with httpx.Client(base_url=server.url, timeout=240) as client, ThreadPoolExecutor(1) as pool:
            items = {"items": [in_base64(picture(seed % 3)) for seed in range(100)]}
            batch = pool.submit(client.post, "/v1/batches", json=items)
            wait_until(lambda: "omniaid_scorings_running 0.0" not in client.get("/metrics").text, 60)
            server.process.send_signal(signal.SIGTERM)
            assert_problem(batch.result(), 503, "could not finish in time")
        assert server.process.wait(60) == 0


@SLOW
@pytest.mark.parametrize("kind", ["sqlite", "postgresql and redis"])
def test_a_server_killed_in_a_job_loses_nothing(request, tmp_path, kind):
    environment = {"OMNIAID_LEASE_S": "3", "OMNIAID_SWEEP_S": "0.2", "OMNIAID_CACHE_DAYS": "0"}
    if kind != "sqlite":
        environment["OMNIAID_DATABASE"] = request.getfixturevalue("postgres")
        environment["OMNIAID_QUEUE"] = request.getfixturevalue("redis")
    files = [("file", (f"{seed}.png", picture(seed))) for seed in range(12)]
    with serving(tmp_path, **environment) as server, httpx.Client(base_url=server.url, timeout=240) as client:
        identity = client.post("/v1/jobs", files=files).json()["id"]
        wait_until(lambda: client.get(f"/v1/jobs/{identity}").json()["scored"] >= 2, 240)
        _kill(server)
    with serving(tmp_path, **environment) as server, httpx.Client(base_url=server.url, timeout=240) as client:
        _check_whole(client, identity)


@SLOW
def test_a_worker_killed_in_a_job_loses_nothing(tmp_path, postgres, redis):
    environment = {
        "OMNIAID_DATABASE": postgres,
        "OMNIAID_QUEUE": redis,
        "OMNIAID_LEASE_S": "3",
        "OMNIAID_SWEEP_S": "0.2",
        "OMNIAID_CACHE_DAYS": "0",
        "OMNIAID_JOB_WORKERS": "0",
        "PYTHONUNBUFFERED": "1",
    }
    files = [("file", (f"{seed}.png", picture(seed))) for seed in range(12)]
    with serving(tmp_path, **environment) as server, httpx.Client(base_url=server.url, timeout=240) as client:
        identity = client.post("/v1/jobs", files=files).json()["id"]
        with running(tmp_path, "worker", until="works on jobs", **environment) as worker:
            wait_until(lambda: client.get(f"/v1/jobs/{identity}").json()["scored"] >= 2, 240)
            _kill(worker)
        assert client.get(f"/v1/jobs/{identity}").json()["status"] == "running"
        with running(tmp_path, "worker", until="works on jobs", **environment):
            _check_whole(client, identity)


@SLOW
def test_a_server_killed_in_a_batch_starts_again(tmp_path):
    with serving(tmp_path) as server, httpx.Client(base_url=server.url, timeout=240) as client:
        items = {"items": [in_base64(picture(seed)) for seed in range(20)]}
        with ThreadPoolExecutor(1) as pool:
            batch = pool.submit(client.post, "/v1/batches", json=items)
            wait_until(lambda: "omniaid_scorings_running 0.0" not in client.get("/metrics").text, 60)
            decoders = server.children()
            _kill(server)
            with pytest.raises(httpx.HTTPError):
                batch.result()
        wait_until(lambda: not any(Path(f"/proc/{child}").exists() for child in decoders), 30)
    with serving(tmp_path) as server, httpx.Client(base_url=server.url, timeout=240) as client:
        assert client.post("/v1/batches", json={"items": items["items"][:2]}).status_code == 200


@SLOW
def test_schemathesis_finds_no_server_error(server):
    program = Path(sys.executable).parent / "schemathesis"
    done = subprocess.run(
        [
            str(program),
            "run",
            f"{server.url}/openapi.json",
            "--checks",
            "not_a_server_error",
            "--max-examples",
            "20",
            "--seed",
            "0",
            "--request-timeout",
            "120",
            "--exclude-path",
            "/ready",  # 503 is its answer when a machine is slow
        ],
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]


def _kill(alive: Running) -> None:
    alive.process.kill()
    alive.process.wait()


def _check_whole(client: httpx.Client, identity: str) -> None:
    assert wait_for_job(client, identity)["status"] == "done"
    lines = [
        ImageReport.model_validate_json(line)
        for line in client.get(f"/v1/jobs/{identity}/results").iter_lines()
    ]
    assert [line.path for line in lines] == [f"{seed}.png" for seed in range(12)]
    assert all(line.status == "ok" for line in lines), lines
