"""`omniaid evidence`: one JSON line per file, whatever it is."""

import io
import json
import subprocess
import sys

from PIL import Image, PngImagePlugin

PROMPT = "a castle on a hill\nSteps: 20, Sampler: Euler a, CFG scale: 7, Seed: 1, Size: 64x64, Model: base"


def run(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "service.cli", "evidence", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


def generated() -> bytes:
    text = PngImagePlugin.PngInfo()
    text.add_text("parameters", PROMPT)
    buffer = io.BytesIO()
    Image.new("RGB", (64, 64), "gray").save(buffer, "PNG", pnginfo=text)
    return buffer.getvalue()


def test_every_file_is_a_line_and_a_bad_one_is_an_error_row(tmp_path):
    (tmp_path / "made.png").write_bytes(generated())
    (tmp_path / "noise.bin").write_bytes(b"\x00" * 100)
    done = run(tmp_path / "made.png", tmp_path / "noise.bin", tmp_path / "missing.png")
    assert done.returncode == 3, done.stderr
    made, noise, missing = map(json.loads, done.stdout.splitlines())
    (finding,) = [row for row in made["findings"] if row["kind"] == "generation"]
    assert finding["claim"] == "made_by_ai" and "a castle on a hill" in json.dumps(finding)
    assert (noise["container"], noise["findings"]) == (None, [])
    assert missing["path"].endswith("missing.png") and "does not exist" in missing["error"]


def test_prompts_are_redacted_when_asked(tmp_path):
    (tmp_path / "made.png").write_bytes(generated())
    done = run("--redact-prompts", "--no-pixels", tmp_path / "made.png")
    assert done.returncode == 0, done.stderr
    assert "castle" not in done.stdout and json.loads(done.stdout)["findings"]
