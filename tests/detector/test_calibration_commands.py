"""`omniaid calibrate` and what scans make of its file, with a tiny model and pictures of our own."""

import json

import numpy as np
import pytest
import typer
from PIL import Image
from typer.testing import CliRunner

from detector import Detector
from detector.commands import register
from detector.errors import DetectorError
from tests.detector.test_runtime import tiny_model

COUNT = 64


@pytest.fixture(scope="module")
def app():
    app = typer.Typer(pretty_exceptions_enable=False)
    app.command("other")(lambda: None)
    register(app)
    return app


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A model by brightness, and grainy pictures that get brighter one by one; a copy and a bad file."""
    top = tmp_path_factory.mktemp("calibration")
    tiny_model(top, slope=0.02, card={"min_side_px": 16, "self_test": None, "bias": -6.0})
    reals = top / "reals"
    reals.mkdir()
    rng = np.random.default_rng(0)
    for place in range(COUNT):
        pixels = np.clip(rng.normal(40 + 2 * place, 20, (40, 40, 3)), 0, 255).astype(np.uint8)
        Image.fromarray(pixels).save(reals / f"{place:02d}.png")
    (reals / "copy.png").write_bytes((reals / "00.png").read_bytes())
    (reals / "bad.jpg").write_bytes(b"")
    return top


@pytest.fixture(scope="module")
def done(app, folder):
    arguments = ["calibrate", str(folder / "reals"), "--fpr", "0.05", "--out", str(folder / "mine.json")]
    model = ["--model", str(folder / "tiny.onnx"), "--threads", "1"]
    return CliRunner().invoke(app, [*arguments, *model], catch_exceptions=False)


def test_the_file_says_what_was_fitted_on_what(done, folder):
    fitted = json.loads((folder / "mine.json").read_text())
    assert done.exit_code == 0 and "left out: 1 unreadable, 1 copies" in done.output
    assert (fitted["pictures"], fitted["flagged"]) == (COUNT, 0)
    assert fitted["left_out"] == {"unreadable": 1, "copies": 1}
    assert fitted["thresholds"]["target"] == 0.05 >= fitted["thresholds"]["upper_bound"]


def test_a_scan_uses_the_file_and_its_reports_name_it(done, app, folder):
    detector = Detector(folder / "tiny.onnx", 1, thresholds=folder / "mine.json")
    fitted = json.loads((folder / "mine.json").read_text())
    brightest = detector.score_file(folder / "reals" / f"{COUNT - 1}.png")
    assert brightest.verdict != "ai" and brightest.threshold == fitted["thresholds"]["ai"]
    assert brightest.threshold_source == "the thresholds file mine.json"
    assert detector.runtime.card.thresholds == detector.card.thresholds
    arguments = ["scan", str(folder / "reals"), "--model", str(folder / "tiny.onnx"), "--threads", "1"]
    output = CliRunner().invoke(app, [*arguments, "--thresholds", str(folder / "mine.json"), "--stability"])
    assert output.exit_code == 3 and "0 ai" in output.output
    strict = CliRunner().invoke(app, [*arguments, "--fpr", "0.01"])
    assert isinstance(strict.exception, DetectorError) and "0.01 (it has: none)" in str(strict.exception)


def test_too_few_pictures(app, folder):
    arguments = ["calibrate", str(folder / "reals"), "--fpr", "0.01", "--out", str(folder / "none.json")]
    with pytest.raises(
        DetectorError, match="needs at least 299 different real pictures in scope; there are 64"
    ):
        CliRunner().invoke(app, [*arguments, "--model", str(folder / "tiny.onnx")], catch_exceptions=False)
    assert not (folder / "none.json").exists()


def test_a_folder_that_is_none(app, tmp_path):
    with pytest.raises(DetectorError, match="is not a folder of real pictures"):
        CliRunner().invoke(app, ["calibrate", str(tmp_path / "none")], catch_exceptions=False)
