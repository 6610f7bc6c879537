"""Golden views: preprocessing must give the same pixels on every machine and in every version.

After a deliberate change of preprocessing, write the vectors anew and say so in the changelog:

    OMNIAID_REGENERATE_GOLDEN=1 pytest tests/golden/test_views.py
"""

import base64
import hashlib
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from detector.decode import decode_picture
from detector.preprocess import Preprocessing, make_views
from tests.golden.pictures import jpeg_picture, lossless_pictures

GOLDEN = Path(__file__).with_name("views.json")
PREPROCESSING = Preprocessing(size_px=224, views=("global", "native"))
PICTURES = lossless_pictures()
STRIDE = 74  # 4 x 4 pixels of each view, so that a failure shows by how much it is off
JPEG_TOLERANCE = 3  # allowed for another inverse DCT or chroma upsampling


def measure(data: bytes) -> dict[str, Any]:
    views = make_views(decode_picture(data).image, PREPROCESSING)
    return {
        "sha256": hashlib.sha256(views.tobytes()).hexdigest(),
        "pixels": base64.b64encode(np.ascontiguousarray(views[:, :, ::STRIDE, ::STRIDE]).tobytes()).decode(),
    }


def pixels(entry: dict[str, Any]) -> np.ndarray:
    return np.frombuffer(base64.b64decode(entry["pixels"]), np.uint8).reshape(2, 3, 4, 4).astype(int)


@pytest.fixture(scope="module")
def golden() -> dict[str, Any]:
    if os.environ.get("OMNIAID_REGENERATE_GOLDEN"):
        fresh = {name: measure(data) for name, data in {**PICTURES, "jpeg-96x64.jpg": jpeg_picture()}.items()}
        GOLDEN.write_text(json.dumps(fresh, indent=1) + "\n")
    return json.loads(GOLDEN.read_text())


@pytest.mark.parametrize("name", PICTURES)
def test_lossless_pictures_give_the_golden_views(golden, name):
    measured = measure(PICTURES[name])
    assert np.abs(pixels(measured) - pixels(golden[name])).max() == 0
    assert measured["sha256"] == golden[name]["sha256"]


def test_a_jpeg_gives_the_golden_views_within_its_decoders_tolerance(golden):
    measured = measure(jpeg_picture())
    assert np.abs(pixels(measured) - pixels(golden["jpeg-96x64.jpg"])).max() <= JPEG_TOLERANCE


def test_every_golden_entry_is_compared(golden):
    assert set(golden) == {*PICTURES, "jpeg-96x64.jpg"}


def test_the_native_view_of_a_picture_of_the_input_size_is_the_picture():
    data = PICTURES["noise-224x224.png"]
    image = decode_picture(data).image
    views = make_views(image, PREPROCESSING)
    assert (views == np.asarray(image).transpose(2, 0, 1)).all()


def test_the_native_view_is_the_centre_at_full_resolution():
    image = decode_picture(PICTURES["mixture-1000x750.png"]).image
    native = make_views(image, PREPROCESSING)[1]
    top, left = (750 - 224) // 2, (1000 - 224) // 2
    assert (native == np.asarray(image)[top : top + 224, left : left + 224].transpose(2, 0, 1)).all()


def test_turned_and_upright_pixels_agree():
    turned = decode_picture(PICTURES["turned-200x150.png"]).image
    assert turned.size == (150, 200)
