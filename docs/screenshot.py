"""Takes docs/page.png: starts the server, judges one picture in Chromium, saves what is seen.

python docs/screenshot.py examples/face-glasses.jpg
"""

import io
import re
import shutil
import subprocess
import sys
from pathlib import Path

from PIL import Image
from playwright.sync_api import sync_playwright

ROOT = Path(__file__).resolve().parents[1]
TARGET = Path(__file__).resolve().with_name("page.png")


def take(url: str, picture: Path, target: Path) -> None:
    """Save the page at `url` with the verdict on `picture`."""
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox", "--disable-gpu"]
        )
        page = chromium.new_page(viewport={"width": 1280, "height": 900}, color_scheme="light")
        page.goto(url)
        page.set_input_files("#oa-upload input[type=file]", picture)
        page.locator("h2.oa-verdict").wait_for()
        page.wait_for_load_state("networkidle")
        seen = Image.open(io.BytesIO(page.screenshot(full_page=True)))
        chromium.close()
    # A palette keeps the file small enough for a README.
    seen.convert("RGB").quantize(256, dither=Image.Dither.NONE).save(target, optimize=True)


def main(picture: Path) -> None:
    """Serve, take the picture, stop."""
    command = [sys.executable, "-m", "service", "serve", "--port", "0"]
    with subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as server:
        try:
            found = next(filter(None, (re.search(r"http://\S+", line) for line in server.stdout or ())))
            take(found.group(), picture, TARGET)
        finally:
            server.terminate()


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve())
