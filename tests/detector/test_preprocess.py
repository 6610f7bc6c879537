"""The step before the global view, and that nothing changes without it."""

import json

import numpy as np
import pytest
from PIL import Image
from pydantic import ValidationError

from detector.preprocess import Preprocessing, global_view, make_views


@pytest.fixture
def image():
    rng = np.random.default_rng(0)
    return Image.fromarray(rng.integers(0, 256, (90, 130, 3), dtype=np.uint8))


def test_the_global_view_is_made_by_way_of_the_larger_square(image):
    views = make_views(image, Preprocessing(size_px=32, resized_first_px=64))
    twice = np.asarray(global_view(global_view(image, 64), 32)).transpose(2, 0, 1)
    once = make_views(image, Preprocessing(size_px=32))
    assert np.array_equal(views[0], twice)
    assert not np.array_equal(views[0], once[0])


def test_the_native_view_is_never_resized_first(image):
    views = (make_views(image, Preprocessing(size_px=32, resized_first_px=side)) for side in (None, 64))
    assert np.array_equal(*(view[1] for view in views))


def test_without_the_step_what_is_written_is_what_it_always_was(image):
    plain = Preprocessing(size_px=32)
    assert json.loads(plain.model_dump_json()) == {"size_px": 32, "views": ["global", "native"]}
    assert plain.model_dump(mode="json") == {"size_px": 32, "views": ["global", "native"]}
    twice = Preprocessing(size_px=32, resized_first_px=64)
    assert Preprocessing.model_validate_json(twice.model_dump_json()) == twice


@pytest.mark.parametrize("side", [0, 15, 4097, "wide"])
def test_other_sides_are_refused(side):
    with pytest.raises(ValidationError):
        Preprocessing(resized_first_px=side)
