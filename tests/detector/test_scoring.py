import hashlib
import math
import os
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import detector as detector_package
from detector.decode import decode_picture
from detector.preprocess import make_views
from detector.report import ImageReport
from detector.runtime import default_model_path
from detector.scan import Input
from detector.scoring import calibrate, verdict
from tests.golden.pictures import bomb_png, encoded, gradient, lossless_pictures, noise

PICTURES = lossless_pictures()
SMOOTH = encoded(Image.fromarray(gradient(640, 480)), "JPEG", quality=90)
ROOT = Path(__file__).parents[2]


GOOD = {
    "mixture.png": PICTURES["mixture-1000x750.png"],
    "noise.png": PICTURES["noise-224x224.png"],
    "smooth.jpg": SMOOTH,
}


@pytest.fixture(scope="module")
def alone(detector):
    """Reports on the good pictures, scored one at a time from their bytes."""
    return {name: detector.score(data, name) for name, data in GOOD.items()}


def close(a: ImageReport, b: ImageReport, tolerance: float = 1e-4) -> bool:
    loose = {"probability", "gates", "view_probabilities", "view_spread", "interval", "reasons"}
    numbers = [
        [report.probability, *report.gates.values(), *report.view_probabilities.values()] for report in (a, b)
    ]
    same = a.model_dump(exclude=loose) == b.model_dump(exclude=loose)
    return same and np.abs(np.subtract(*numbers)).max() <= tolerance


def test_a_report_says_everything_about_a_good_picture(detector, alone):
    report = alone["smooth.jpg"]
    card = detector.card
    assert (report.path, report.status, report.error) == ("smooth.jpg", "ok", None)
    assert report.sha256 == hashlib.sha256(SMOOTH).hexdigest()
    assert (report.width, report.height, report.format) == (640, 480, "JPEG")
    assert report.verdict in ("ai", "real", "uncertain")
    assert (report.threshold, report.threshold_real) == (card.thresholds.ai, card.thresholds.real)
    assert tuple(report.gates) == card.experts
    assert tuple(report.view_probabilities) == card.preprocessing.views
    assert report.model is not None and report.model.sha256 == card.sha256
    assert report.warnings == ()


def test_probability_is_the_calibrated_mean_of_the_views_margins(detector, alone):
    card = detector.card
    views = make_views(decode_picture(SMOOTH).image, card.preprocessing)
    logits, gates = detector.runtime.score_views(views)
    margins = [(float(row[1] - row[0]) + card.bias) / card.temperature for row in logits]
    report = alone["smooth.jpg"]
    assert report.probability == pytest.approx(1 / (1 + math.exp(-sum(margins) / len(margins))), abs=1e-5)
    assert list(report.view_probabilities.values()) == pytest.approx(
        [1 / (1 + math.exp(-margin)) for margin in margins], abs=1e-5
    )
    assert list(report.gates.values()) == pytest.approx(gates.mean(axis=0).tolist(), abs=1e-5)


def test_the_answer_is_not_a_constant(alone):
    assert len({round(report.probability, 6) for report in alone.values()}) == len(GOOD)


def test_a_file_gives_the_same_report_as_its_bytes(detector, alone, tmp_path):
    (tmp_path / "smooth.jpg").write_bytes(SMOOTH)
    report = detector.score_file(str(tmp_path / "smooth.jpg"))
    assert close(report, alone["smooth.jpg"].model_copy(update={"path": report.path}))


BAD = {
    "empty.jpg": b"",
    "text.png": b"this is no picture",
    "cut.png": PICTURES["mixture-1000x750.png"][:5000],
    "one.png": encoded(Image.new("RGB", (1, 1)), "PNG"),
    "bomb.png": bomb_png(30_000, 30_000),
    "pointer.jpg": b"version https://git-lfs.github.com/spec/v1\noid sha256:ab\nsize 1\n",
    "strip.png": encoded(Image.new("1", (32, 32 * 101)), "PNG"),
}


@pytest.mark.parametrize("batch_size", [3, 100])
def test_bad_pictures_are_rows_in_place_and_the_others_score_as_if_alone(
    detector, alone, tmp_path, batch_size
):
    for name, data in {**BAD, **GOOD}.items():
        (tmp_path / name).write_bytes(data)
    paths = sorted(tmp_path.iterdir())
    reports = list(detector.score_many(paths, batch_size))
    assert [report.path for report in reports] == [str(path) for path in paths]
    for path, report in zip(paths, reports, strict=True):
        if path.name in GOOD:
            assert close(report, alone[path.name].model_copy(update={"path": str(path)}))
            continue
        assert report.status == "error" and report.error and "\n" not in report.error
        assert (report.verdict, report.probability) == (None, None)
        assert report.sha256 == hashlib.sha256(BAD[path.name]).hexdigest()


def test_a_batch_of_bad_pictures_only(detector, tmp_path):
    reports = list(detector.score_many([tmp_path / "absent", Input(tmp_path, "a loop")]))
    assert [report.error for report in reports] == ["the file does not exist", "a loop"]


def test_names_that_are_not_unicode_are_escaped(detector, tmp_path):
    path = os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9\n.jpg")
    Path(path).write_bytes(b"")
    report = detector.score_file(path)
    assert report.path == f"{tmp_path}/caf\\xe9\n.jpg" and "0 bytes" in report.error
    assert detector.score(b"", "upload\udce9\ud800").path == "upload\\xe9\\ud800"
    assert ImageReport.model_validate_json(report.model_dump_json()) == report


def test_small_pictures_are_out_of_scope_and_say_why(detector):
    side = detector.card.min_side_px - 1
    report = detector.score(encoded(Image.fromarray(noise(400, side)), "PNG"), "small.png")
    assert report.verdict == "out_of_scope" and report.probability is not None
    assert report.warnings == ()
    (reason,) = report.reasons
    assert reason.startswith(
        f"Insufficient resolution: the shorter side has {side} px, and below {side + 1} px"
    )


def test_blank_pictures_are_out_of_scope(detector):
    report = detector.score(encoded(Image.new("RGB", (300, 300), (200, 30, 40)), "JPEG"), "red.jpg")
    assert report.verdict == "out_of_scope" and "blank" in report.reasons[0]


def test_reasons_name_threshold_rate_and_source(detector, alone):
    for report in alone.values():
        assert f"{report.probability:.3f}" in report.reasons[0] and "the model card" in report.reasons[0]
        values = report.view_probabilities.values()
        assert report.view_spread == pytest.approx(max(values) - min(values))
        assert report.interval == (min(values), max(values))
        assert report.threshold_source == "the model card" and report.stability is None


def test_bytes_behind_a_jpeg_are_a_warning_and_do_not_move_the_score(detector, alone):
    plain, longer = alone["smooth.jpg"], detector.score(SMOOTH + b"\0\0\0\rtEXtAI", "x")
    assert longer.probability == plain.probability
    assert len(longer.warnings) == 1 and "after the end of the JPEG" in longer.warnings[0]


@pytest.mark.parametrize(
    ("probability", "side", "expected"),
    [
        (1.0, 500, "ai"), (0.9, 500, "ai"), (0.8999, 500, "uncertain"), (0.1001, 500, "uncertain"),
        (0.1, 500, "real"), (0.0, 500, "real"), (1.0, 127, "out_of_scope"), (0.0, 127, "out_of_scope"),
        (1.0, 128, "ai"),
    ],
)  # fmt: skip
def test_verdicts(detector, probability, side, expected):
    thresholds = detector.card.thresholds.model_copy(update={"ai": 0.9, "real": 0.1})
    card = detector.card.model_copy(update={"thresholds": thresholds, "min_side_px": 128})
    assert verdict(probability, side, card) == expected


def test_calibration_uses_bias_then_temperature_and_never_overflows(detector):
    card = detector.card.model_copy(update={"temperature": 2.0, "bias": 1.0})
    assert calibrate(3.0, card) == pytest.approx(1 / (1 + math.exp(-2.0)))
    assert (calibrate(1e6, card), calibrate(-1e6, card)) == (1.0, 0.0)


def test_inputs_are_consumed_only_a_little_ahead(detector, tmp_path):
    """Memory stays flat over a million files because at most two batches are under way."""
    (tmp_path / "a.jpg").write_bytes(b"")
    taken = 0

    def endless():
        nonlocal taken
        while True:
            taken += 1
            yield tmp_path / "a.jpg"

    reports = detector.score_many(endless(), batch_size=2)
    for count in range(1, 8):
        next(reports)
        assert taken <= count + 2 * 2
    reports.close()


def test_a_batch_size_of_zero_is_a_mistake(detector):
    with pytest.raises(ValueError, match="batch_size is 0"):
        next(detector.score_many([], batch_size=0))


def test_forbidden_files_and_folders_are_rows():
    """Run as another user, because root may read everything."""
    script = textwrap.dedent("""
        import os, sys
        from pathlib import Path
        from detector import Detector
        from detector.scan import find_inputs
        detector = Detector(threads=1)
        # What is imported late must be there before: the interpreter itself may be out of reach then.
        list(detector.score_many([Path(sys.argv[1], "a.jpg")]))
        if os.geteuid() == 0:
            os.setuid(65534)
        for report in detector.score_many(find_inputs([Path(sys.argv[1])])):
            print(Path(report.path).name, report.status, report.error)
    """)
    with tempfile.TemporaryDirectory() as name:
        top = Path(name)
        top.chmod(0o755)
        for file in ("a.jpg", "closed/b.jpg", "forbidden.jpg", "z.jpg"):
            (top / file).parent.mkdir(exist_ok=True)
            (top / file).write_bytes(b"")
        (top / "closed").chmod(0)
        (top / "forbidden.jpg").chmod(0)
        command = [sys.executable, "-c", script, name]
        done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
        (top / "closed").chmod(0o700)
    assert done.stdout.splitlines() == [
        "a.jpg error the file is empty (0 bytes)",
        "closed error the folder cannot be listed: permission denied",
        "forbidden.jpg error permission to read the file was denied",
        "z.jpg error the file is empty (0 bytes)",
    ], done.stderr


def test_the_public_name_is_lazy_and_there_are_no_others():
    script = "import sys, detector; assert not {'numpy', 'PIL', 'onnxruntime'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", script], cwd=ROOT, check=True)
    assert detector_package.Detector.__name__ == "Detector"
    with pytest.raises(AttributeError, match="has no attribute 'Detektor'"):
        _ = detector_package.Detektor


def test_the_default_model_is_the_packaged_one():
    assert default_model_path() == ROOT / "detector/models/omniaid.onnx"
