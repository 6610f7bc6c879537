"""The web page in a real browser, against the same server as the REST tests."""

import base64
import http.server
import io
import json
import re
import threading
from pathlib import Path

import httpx
import pytest
from PIL import Image

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples"
UPLOAD = "#oa-upload input[type=file]"
WORDS = {"ai": "AI", "real": "Real", "uncertain": "Not sure", "out_of_scope": "Out of scope"}
LOCAL = ("http://127.0.0.1:", "data:", "blob:")

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def context(browser):
    """One visitor for the whole file, so that scripts are fetched once."""
    opened = browser.new_context(viewport={"width": 1280, "height": 900}, color_scheme="light")
    yield opened
    opened.close()


@pytest.fixture
def page(server, context):
    """A fresh page, which must not have asked for anything outside this machine when the test ends."""
    opened = context.new_page()
    requests: list[str] = []
    failures: list[str] = []
    opened.on("request", lambda request: requests.append(request.url))
    opened.on("pageerror", lambda error: failures.append(str(error)))
    opened.on("console", lambda message: failures.append(message.text) if message.type == "error" else None)
    opened.goto(server.url)
    opened.wait_for_selector(UPLOAD, state="attached")
    yield opened
    opened.close()
    assert len(requests) > 5
    assert [url for url in requests if not url.startswith(LOCAL)] == []
    assert failures == []


def upload(page, data: bytes, name: str = "picture.jpg") -> None:
    page.set_input_files(UPLOAD, {"name": name, "mimeType": "application/octet-stream", "buffer": data})


def shown_report(page) -> dict:
    link = page.locator("#oa-result a[download]")
    link.wait_for(state="attached")
    return json.loads(base64.b64decode(link.get_attribute("href").partition("base64,")[2]))


def test_the_page_and_the_api_give_the_same_report(page, client, photograph):
    """The page must score the original bytes, not a copy re-encoded on the way (gradio 7657)."""
    upload(page, photograph, "cat.jpg")
    on_page = shown_report(page)
    over_http = client.post("/v1/images", files={"file": ("cat.jpg", photograph)}).json()
    assert on_page == over_http


def test_verdict_gates_views_and_facts_are_shown(page, photograph):
    upload(page, photograph)
    report = shown_report(page)
    result = page.locator("#oa-result")
    assert result.locator("h2.oa-verdict").inner_text() == WORDS[report["verdict"]]
    assert result.get_by_role("img", name=re.compile("Probability of AI")).is_visible()
    text = result.inner_text()
    for expert in report["gates"]:
        assert expert in text
    assert "global view" in text and "native view" in text
    assert report["sha256"] in text and "512 × 512 px" in text
    bars = result.locator(".oa-fill").all()
    assert len(bars) == len(report["gates"]) + len(report["view_probabilities"])
    widths = [bar.bounding_box()["width"] for bar in bars[: len(report["gates"])]]
    assert max(widths) > 10, "the bars have been given their lengths"


def test_the_judged_picture_is_shown_upright(page, photograph):
    exif = Image.Exif()
    exif[0x0112] = 6
    buffer = io.BytesIO()
    Image.open(io.BytesIO(photograph)).resize((300, 200)).save(buffer, "JPEG", exif=exif)
    upload(page, buffer.getvalue())
    preview = page.locator("img.oa-preview")
    preview.wait_for()
    assert preview.evaluate("image => [image.naturalWidth, image.naturalHeight]") == [200, 300]


@pytest.mark.parametrize(
    ("data", "said"),
    [(b"just text", "not a picture"), (b"\xff\xd8\xff\xe0" + bytes(50), "damaged")],
    ids=["text", "broken"],
)
def test_a_file_that_is_no_picture_gets_one_sentence(page, data, said):
    upload(page, data, "notes.jpg")
    refused = page.locator("#oa-result .oa-refused")
    refused.wait_for()
    text = refused.inner_text()
    assert said in text and "notes.jpg" in text
    assert "Traceback" not in text and "Error" not in text
    assert page.locator("#oa-result .oa-verdict").count() == 0


def test_a_second_picture_replaces_the_first(page, photograph):
    upload(page, b"just text")
    page.locator(".oa-refused").wait_for()
    upload(page, photograph, "second.jpg")
    assert shown_report(page)["path"] == "second.jpg"
    assert page.locator(".oa-refused").count() == 0


def test_a_hostile_file_name_is_shown_as_text(page, photograph):
    name = "${1+1}{{value}}<img src=x onerror=alert(1)>.jpg"
    page.on("dialog", lambda dialog: pytest.fail("a script from a file name ran"))
    upload(page, photograph, name)
    assert shown_report(page)["path"] == name
    assert name in page.locator(".oa-facts").inner_text()


def test_a_picture_is_pasted(page, photograph):
    page.evaluate(
        """encoded => {
            const bytes = Uint8Array.from(atob(encoded), (letter) => letter.charCodeAt(0));
            const data = new DataTransfer();
            data.items.add(new File([bytes], "pasted.jpg", { type: "image/jpeg" }));
            document.dispatchEvent(new ClipboardEvent("paste", { clipboardData: data, cancelable: true }));
        }""",
        base64.b64encode(photograph).decode(),
    )
    assert shown_report(page)["path"] == "pasted.jpg"


def test_an_example_is_judged_from_the_keyboard(page, client):
    first = page.locator(".oa-gallery button").first
    first.wait_for()
    first.focus()
    page.keyboard.press("Enter")
    report = shown_report(page)
    data = (EXAMPLES / report["path"]).read_bytes()
    assert client.post("/v1/images", files={"file": (report["path"], data)}).json() == report


def test_every_example_has_a_picture(page):
    images = page.locator(".oa-gallery img")
    images.first.wait_for()
    page.mouse.wheel(0, 2000)
    page.wait_for_function(
        "() => [...document.querySelectorAll('.oa-gallery img')].every((image) => image.naturalWidth > 0)"
    )
    assert images.count() >= 10


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_fits_a_phone(server, browser, photograph, scheme):
    context = browser.new_context(viewport={"width": 360, "height": 780}, color_scheme=scheme)
    phone = context.new_page()
    phone.goto(server.url)
    upload(phone, photograph)
    verdict = phone.locator("h2.oa-verdict")
    verdict.wait_for()
    phone.wait_for_function(
        "() => document.querySelector('h2.oa-verdict').getBoundingClientRect().top < window.innerHeight"
    )
    overflowing = phone.evaluate(
        """() => [...document.querySelectorAll("#oa-result *, .oa-header *, .oa-gallery *")]
            .filter((element) => element.getBoundingClientRect().right > window.innerWidth + 1)
            .map((element) => element.className || element.tagName)"""
    )
    assert overflowing == []
    light = phone.evaluate("() => getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert light == (scheme == "light")
    context.close()


def call_upload_event(client: httpx.Client, path: str) -> str:
    """What the page's upload event answers to a forged file name."""
    events = client.get("/config").json()["dependencies"]
    event = next(event for event in events if event["targets"][0][1] == "upload")
    forged = {"path": path, "meta": {"_type": "gradio.FileData"}, "orig_name": "picture.jpg"}
    body = {"data": [forged], "fn_index": event["id"], "session_hash": "forged"}
    client.post("/gradio_api/queue/join", json=body).raise_for_status()
    with client.stream("GET", "/gradio_api/queue/data", params={"session_hash": "forged"}) as answer:
        return next(line for line in answer.iter_lines() if "process_completed" in line)


def test_a_visitor_cannot_name_a_file_of_the_server(client, photograph, tmp_path):
    private = tmp_path / "private.jpg"
    private.write_bytes(photograph)
    answer = call_upload_event(client, str(private))
    assert "only uploaded files" in answer and "base64" not in answer
    assert private.read_bytes() == photograph


def test_a_visitor_cannot_make_the_server_fetch_an_address(client):
    visits = []

    class Trap(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            visits.append(self.path)

        do_HEAD = do_GET

    with http.server.HTTPServer(("127.0.0.1", 0), Trap) as trap:
        threading.Thread(target=trap.serve_forever, daemon=True).start()
        answer = call_upload_event(client, f"http://127.0.0.1:{trap.server_port}/picture.jpg")
        trap.shutdown()
    assert "only uploaded files" in answer
    assert visits == []


def test_uploads_are_not_kept(page, server, client, photograph):
    unique = photograph + b"only in this test"
    upload(page, unique, "short-lived.jpg")
    shown_report(page)
    client.post("/v1/images", files={"file": ("short-lived.jpg", unique)}).raise_for_status()
    left = [path for path in server.temporary.rglob("*") if path.is_file()]
    assert [path for path in left if unique in path.read_bytes()] == []
    assert list(server.temporary.rglob("short-lived*")) == []
