"""Known scores at load: what is broken or constant refuses to serve."""

import base64
import json

import numpy as np
import pytest
from pydantic import ValidationError

from detector.card import KnownScore, ModelCard, SelfTest
from detector.errors import ModelError
from detector.runtime import Runtime
from detector.self_test import _made_pictures, check_answers, make_self_test
from tests.detector.test_runtime import CARD, tiny_model

PREPROCESSING = ModelCard(**CARD, sha256="ab").preprocessing


def rewrite(path, **changes):
    card = path.with_suffix(".json")
    card.write_text(json.dumps(json.loads(card.read_text()) | changes))
    return path


@pytest.fixture
def good(tmp_path):
    """A model of the pixels' mean that answers, and whose card holds its self-test."""
    path = tiny_model(tmp_path, slope=0.01, card={"self_test": None})
    runtime = Runtime(path, threads=1)
    test = make_self_test(runtime.score_views, runtime.card.preprocessing)
    return rewrite(path, self_test=test.model_dump(mode="json"))


def test_a_model_passes_its_own_self_test_and_scores(good):
    runtime = Runtime(good, threads=1)
    test = runtime.card.self_test
    assert test is not None and len(test.pictures) == 2
    margins = [one.margin for one in test.pictures]
    assert max(margins) - min(margins) > 4 * test.tolerance * 0.99


def test_a_model_without_known_scores_must_not_be_constant(tmp_path):
    constant = tiny_model(tmp_path, card={"self_test": None})
    with pytest.raises(ModelError, match=r"tiny 0 gives every picture the same score and must not be used"):
        Runtime(constant, threads=1)


def test_only_the_card_can_excuse_a_model(tmp_path):
    Runtime(tiny_model(tmp_path), threads=1)  # its card says why there is no self-test
    with pytest.raises(ValidationError, match="either pictures or why there are none"):
        SelfTest(pictures=(KnownScore(png="", margin=0), KnownScore(png="", margin=9)), why_none="no time")


def test_other_weights_under_the_same_card_are_refused(good, tmp_path):
    """The sha256 is right, the answers are not: a converter's mistake, or a broken onnxruntime."""
    test = json.loads(good.with_suffix(".json").read_text())["self_test"]
    other = tmp_path / "other"
    other.mkdir()
    path = tiny_model(other, slope=0.012, card={"self_test": test})
    with pytest.raises(ModelError, match=r"scores picture \d of its self-test .* and it must not be used$"):
        Runtime(path, threads=1)


def test_a_picture_that_is_none_is_named(good):
    test = json.loads(good.with_suffix(".json").read_text())["self_test"]
    test["pictures"][1]["png"] = base64.b64encode(b"no picture").decode()
    with pytest.raises(ModelError, match="a self-test picture in the card of model tiny 0 is no PNG file"):
        Runtime(rewrite(good, self_test=test), threads=1)


def test_values_that_are_not_finite_never_pass():
    def broken(views):
        return np.full((len(views), 2), np.nan, np.float32), np.zeros((len(views), 1), np.float32)

    with pytest.raises(ModelError):
        check_answers(
            broken,
            ModelCard(
                **CARD | {"self_test": {"pictures": known(), "tolerance": 0.1}},
                sha256="ab",
            ),
        )


def known():
    from detector.self_test import _to_png

    return [
        {"png": _to_png(picture), "margin": float(place)}
        for place, picture in enumerate(_made_pictures()[:2])
    ]


def test_a_self_test_of_a_constant_model_is_not_made():
    def constant(views):
        return np.zeros((len(views), 2), np.float32), np.zeros((len(views), 1), np.float32)

    with pytest.raises(ModelError, match="a self-test of a constant model would mean nothing"):
        make_self_test(constant, PREPROCESSING)


@pytest.mark.parametrize("margins", [(), (1.0,), (1.0, 1.05)])
def test_a_self_test_that_cannot_tell_anything_is_no_card(margins):
    pictures = tuple(KnownScore(png="", margin=margin) for margin in margins)
    with pytest.raises(ValidationError, match="two pictures with margins over twice the tolerance apart"):
        SelfTest(pictures=pictures, tolerance=0.05)


def test_the_made_pictures_are_the_same_everywhere():
    total = [int(np.asarray(picture, dtype=np.int64).sum()) for picture in _made_pictures()]
    assert total == TOTALS


TOTALS = [748800, 886427, 758016, 785226, 687144, 1004544]
