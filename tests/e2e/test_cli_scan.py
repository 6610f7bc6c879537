"""`omniaid scan` as a person runs it: a real process, real files, real exit codes."""

import csv
import io
import json
import os
import struct
import subprocess
import sys
import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from detector.runtime import default_model_path

ROOT = Path(__file__).parents[2]


def omniaid(*arguments, cwd=ROOT, **options):
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "80", "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [sys.executable, "-m", "service", *arguments],
        capture_output=True, cwd=cwd, env=environment, check=False, timeout=60, **options,
    )  # fmt: skip


def save(path, width=256, height=200):
    y, x = np.mgrid[0:height, 0:width]
    Image.fromarray(np.stack([x % 256, y % 256, (x * y) % 256], axis=-1).astype(np.uint8)).save(path)


@pytest.fixture
def good(tmp_path):
    """A folder with one good picture."""
    folder = tmp_path / "good"
    folder.mkdir()
    save(folder / "b.png")
    return folder


@pytest.fixture
def eager_model(tmp_path):
    """The shipped model with a card that calls everything `ai`."""
    (tmp_path / "eager.onnx").symlink_to(default_model_path())
    card = json.loads(default_model_path().with_suffix(".json").read_text("utf-8"))
    card["thresholds"] |= {"ai": 0.0, "real": 0.0}
    (tmp_path / "eager.json").write_text(json.dumps(card))
    return tmp_path / "eager.onnx"


def test_a_folder_with_every_kind_of_trouble(good):
    """Each bad input is one row, in place; all others are scored; the exit code is 3."""
    save(good / "a.jpg")
    (good / "d-empty.jpg").write_bytes(b"")
    (good / "e-text.png").write_text("no picture")
    (good / "f-cut.jpg").write_bytes((good / "a.jpg").read_bytes()[:1500])
    save(good / "g-one.png", 1, 1)
    claimed = struct.pack(">4sIIBBBBB", b"IHDR", 30_000, 30_000, 8, 0, 0, 0, 0)
    header = struct.pack(">I", 13) + claimed + struct.pack(">I", zlib.crc32(claimed))
    (good / "h-bomb.png").write_bytes(b"\x89PNG\r\n\x1a\n" + header + struct.pack(">I4sI", 9, b"IDAT", 0))
    (good / "i-loop").symlink_to(good)
    (good / "j-gone.jpg").symlink_to("nowhere")
    os.mkfifo(good / "k-fifo.jpg")
    odd = {b"l-new\nline.png": "l-new\nline.png", b"m-\xe9\xff.png": "m-\\xe9\\xff.png"}
    for name in odd:
        os.link(good / "b.png", os.fsencode(good) + b"/" + name)
    done = omniaid("scan", "--format", "jsonl", good, good / "absent.jpg")
    rows = [json.loads(line) for line in done.stdout.decode().splitlines()]
    found = {row["path"].removeprefix(f"{good}/"): row for row in rows}
    scored = ["a.jpg", "b.png", *odd.values()]
    reasons = {
        "d-empty.jpg": "0 bytes",
        "e-text.png": "not a picture",
        "f-cut.jpg": "cut short",
        "g-one.png": "1 x 1 px",
        "h-bomb.png": "900,000,000 pixels",
        "i-loop": f"leads back to {good}",
        "j-gone.jpg": "points to nowhere, which does not exist",
        "k-fifo.jpg": "FIFO",
        "absent.jpg": "does not exist",
    }
    assert done.returncode == 3, done.stderr
    assert list(found) == [*sorted([*scored, *set(reasons) - {"absent.jpg"}]), "absent.jpg"]
    assert [name for name, row in found.items() if row["status"] == "ok"] == scored
    for name, reason in reasons.items():
        assert reason in found[name]["error"]
    assert found["b.png"]["probability"] == pytest.approx(found["l-new\nline.png"]["probability"], abs=1e-4)
    assert b"scanned 13: " in done.stderr and b", 9 error (" in done.stderr


def test_the_table_is_the_default_and_keeps_one_line_per_name(good):
    os.link(good / "b.png", os.fsencode(good) + b"/new\nline\x1b.png")
    done = omniaid("scan", ".", cwd=good)
    lines = [line for line in done.stdout.decode().splitlines() if not line.startswith(" " * 11)]
    assert lines[0].split() == ["verdict", "P(AI)", "strongest", "experts", "picture"]
    assert [line.split()[-1] for line in lines[1:]] == ["b.png", "new\\nline\\x1b.png"]
    assert all(line.split()[0] in ("ai", "real", "uncertain", "out_of_scope") for line in lines[1:])
    assert max(map(len, lines)) <= 80
    assert (done.returncode, done.stderr.count(b"\n")) == (0, 1)


def test_findings_fail_when_asked_and_errors_win(good, eager_model):
    assert omniaid("scan", good, "--model", eager_model, "--fail-on", "ai").returncode == 1
    (good / "bad.png").write_bytes(b"")
    assert omniaid("scan", good, "--model", eager_model, "--fail-on", "ai").returncode == 3


def test_a_csv_file_is_written_whole(good, tmp_path):
    out = tmp_path / "report.csv"
    done = omniaid("scan", "--format", "csv", "--out", out, "--batch-size", "1", "--threads", "1", good)
    assert (done.returncode, done.stdout) == (0, b"")
    (row,) = csv.DictReader(io.StringIO(out.read_bytes().decode(), newline=""))
    assert (row["path"], row["status"], row["format"]) == (str(good / "b.png"), "ok", "PNG")
    assert 0 <= float(row["probability"]) <= 1 and float(row["gate_artifact"]) == pytest.approx(1)
    assert not list(tmp_path.glob(".*"))


def test_a_user_error_is_one_line_and_exit_code_2(tmp_path):
    done = omniaid("scan", ".", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, b"")
    assert done.stderr == b"omniaid: no image files found in .\n"


def test_a_reader_that_goes_away_is_no_traceback(good):
    reader, writer = os.pipe()
    os.close(reader)
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "service", "scan", str(good)]
    done = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, env=environment, check=False)
    os.close(writer)
    assert (done.returncode, done.stderr) == (141, b"")
