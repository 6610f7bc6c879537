"""One real server, and one real browser, for every end-to-end test of a session."""

import io
import os
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import pytest
from PIL import Image

ROOT = Path(__file__).resolve().parents[2]
MAX_UPLOAD_BYTES = 2 * 2**20
LISTENING = re.compile(r"listens on (http://\S+)")
CHROMIUM_FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


@dataclass
class Server:
    """A running `omniaid serve`."""

    process: subprocess.Popen[str]
    temporary: Path
    output: list[str] = field(default_factory=list)
    url: str = ""

    def wait_until_listening(self, timeout_s: float) -> None:
        """Set `url`; every line of output is kept for failure messages."""
        ready = threading.Event()

        def read() -> None:
            assert self.process.stdout is not None
            for line in self.process.stdout:
                self.output.append(line)
                if found := LISTENING.search(line):
                    self.url = found.group(1)
                    ready.set()
            ready.set()

        threading.Thread(target=read, daemon=True).start()
        ready.wait(timeout_s)
        assert self.url, "the server did not start:\n" + "".join(self.output)


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    temporary = tmp_path_factory.mktemp("server")
    environment = os.environ | {
        "OMNIAID_MAX_UPLOAD_BYTES": str(MAX_UPLOAD_BYTES),
        "OMNIAID_THREADS": "1",
        "OMNIAID_STATE": str(temporary / "state"),
        "TMPDIR": str(temporary),
    }
    process = subprocess.Popen(
        [sys.executable, "-m", "service", "serve", "--port", "0"],
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    running = Server(process, temporary)
    try:
        running.wait_until_listening(60)
        yield running
    finally:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    assert list(temporary.glob("omniaid-*")) == [], "the server left its upload folder behind"


@pytest.fixture
def client(server: Server) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.url, timeout=60, trust_env=False) as opened:
        yield opened


@pytest.fixture(scope="session")
def photograph() -> bytes:
    """A public-domain photograph as a JPEG with an EXIF block."""
    from skimage import data

    image = Image.fromarray(data.astronaut())
    exif = Image.Exif()
    exif[0x010E] = "photograph with a description"
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", quality=88, exif=exif)
    return buffer.getvalue()


@pytest.fixture(scope="session")
def browser():
    from playwright.sync_api import sync_playwright

    executable = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if executable is None:
        pytest.skip("no Chromium on this machine")
    with sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=executable, headless=True, args=CHROMIUM_FLAGS)
        yield launched
        launched.close()
