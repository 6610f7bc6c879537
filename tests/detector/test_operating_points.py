"""Thresholds: the card's, another operating point's, or a person's own file."""

import json
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import beta

from detector.calibration import (
    bound_false_positives,
    pictures_needed,
    set_operating_points,
    upper_bound,
)
from detector.calibration_commands import describe, fit_thresholds, write
from detector.card import ModelCard, Thresholds
from detector.errors import DetectorError
from detector.operating_points import settle_thresholds
from detector.own_pictures import OwnPictures, collect_scores
from detector.report import ImageReport, ModelIdentity
from tests.detector.test_runtime import CARD

OWN = Thresholds(ai=0.9, real=0.2, false_positive_rate=0.05, false_negative_rate=0.04, how="by hand")
STRICT = OWN.model_copy(update={"ai": 0.97, "target": 0.01, "false_positive_rate": 0.009})
MODEL = ModelCard(**CARD | {"thresholds": OWN.model_copy(update={"target": 0.05})}, sha256="ab" * 32)
POINTS = MODEL.model_copy(update={"operating_points": (STRICT,)})


class Known:
    """What `fit_thresholds` needs of a detector."""

    card = MODEL
    identity = ModelIdentity(name="tiny", version="0", sha256=MODEL.sha256)


def pictures(probabilities):
    return OwnPictures(np.asarray(probabilities, float), tuple(map(str, range(len(probabilities)))), {})


@pytest.mark.parametrize(("flagged", "count"), [(0, 59), (0, 299), (1, 40), (7, 300), (130, 20_000), (5, 5)])
@pytest.mark.parametrize("confidence", [0.8, 0.95, 0.99])
def test_the_bound_is_clopper_and_pearsons(flagged, count, confidence):
    expected = 1.0 if flagged == count else beta.ppf(confidence, flagged + 1, count - flagged)
    assert upper_bound(flagged, count, confidence) == pytest.approx(expected, abs=1e-9)


def test_how_many_pictures_a_rate_needs():
    assert [pictures_needed(rate) for rate in (0.05, 0.01, 0.001)] == [59, 299, 2995]
    assert upper_bound(0, 299) <= 0.01 < upper_bound(0, 298)


@pytest.mark.parametrize("count", [59, 300])
def test_the_rate_holds_for_further_pictures_as_often_as_promised(count):
    """Uniform scores: a threshold's true rate is 1 - threshold; at most 5 % of draws may exceed it."""
    rng, rate, broken = np.random.default_rng(3), 0.05, 0
    for _ in range(200):
        bound = bound_false_positives(rng.random(count), rate)
        assert bound is not None and bound.upper_bound <= rate
        broken += 1 - bound.threshold > rate
    assert broken / 200 <= 0.05 + 3 * (0.05 * 0.95 / 200) ** 0.5


def test_equal_scores_stay_below_the_threshold():
    scores = np.r_[np.full(300, 0.4), np.full(50, 0.8)]
    bound = bound_false_positives(scores, 0.01)
    assert bound is not None and bound.flagged == 0 and 0.8 < bound.threshold < 0.8 + 1e-9
    assert bound_false_positives(np.ones(300), 0.01) is None


def test_too_few_pictures_are_one_sentence_with_the_number():
    with pytest.raises(
        DetectorError, match=r"needs at least 299 different real pictures in scope; there are 298"
    ):
        fit_thresholds(Known, pictures(np.linspace(0, 1, 298)), 0.01)


def test_pictures_at_probability_one_are_one_sentence():
    with pytest.raises(DetectorError, match="too many of them have probability 1"):
        fit_thresholds(Known, pictures(np.ones(300)), 0.01)


def test_copies_unreadable_ones_and_those_out_of_scope_do_not_count():
    good = ImageReport(path="a", status="ok", sha256="1", verdict="real", probability=0.1)
    reports = [
        good,
        good.model_copy(update={"path": "b"}),
        good.model_copy(update={"sha256": "2", "verdict": "out_of_scope"}),
        ImageReport(path="c", status="error", error="empty"),
    ]
    collected = collect_scores(reports)
    assert collected.probabilities.tolist() == [0.1] and collected.hashes == ("1",)
    assert collected.left_out == {"copies": 1, "out of scope": 1, "unreadable": 1}


def test_a_fitted_file_is_used_and_named(tmp_path):
    fitted = fit_thresholds(Known, pictures(np.linspace(0, 0.5, 1000)), 0.01)
    write(fitted, tmp_path / "mine.json")
    card = settle_thresholds(MODEL, file=tmp_path / "mine.json")
    assert 0.49 < card.thresholds.ai < 0.5 and card.thresholds.real == OWN.real
    assert card.thresholds.source == "the thresholds file mine.json"
    assert (
        card.thresholds.upper_bound <= 0.01 and card.thresholds.false_positive_rate == fitted.flagged / 1000
    )
    assert [path.name for path in tmp_path.iterdir()] == ["mine.json"]
    assert any("1000 real pictures" in line for line in describe(fitted, Known))


def test_a_low_threshold_takes_real_down_with_it():
    fitted = fit_thresholds(Known, pictures(np.linspace(0, 0.1, 1000)), 0.01)
    assert fitted.thresholds.real == fitted.thresholds.ai < OWN.real


def test_a_file_for_another_model_is_refused(tmp_path):
    fitted = fit_thresholds(Known, pictures(np.linspace(0, 0.5, 1000)), 0.01)
    write(fitted, tmp_path / "mine.json")
    other = MODEL.model_copy(update={"sha256": "cd" * 32, "version": "1"})
    with pytest.raises(
        DetectorError, match=r"was fitted for model tiny 0 \(abababababab\.\.\.\), not for tiny 1"
    ):
        settle_thresholds(other, file=tmp_path / "mine.json")


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (None, "cannot be read"),
        (b"\xff\xfe", "it is not UTF-8 text"),
        (b"{}", "is not a thresholds file of `omniaid calibrate`"),
        (json.dumps(CARD).encode(), "is not a thresholds file of `omniaid calibrate`"),
    ],
)
def test_a_file_that_is_none(tmp_path, content, reason):
    path = tmp_path / "mine.json"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(DetectorError, match=reason) as caught:
        settle_thresholds(MODEL, file=path)
    assert "\n" not in str(caught.value)


def test_a_rate_picks_its_operating_point():
    assert settle_thresholds(POINTS, false_positive_rate=0.01).thresholds == STRICT
    assert settle_thresholds(POINTS, false_positive_rate=0.05).thresholds == MODEL.thresholds
    assert settle_thresholds(POINTS) is POINTS


def test_a_rate_that_the_card_lacks_names_those_it_has():
    with pytest.raises(
        DetectorError, match=r"no thresholds for a false-positive rate of 0\.02 \(it has: 0\.01, 0\.05\)"
    ):
        settle_thresholds(POINTS, false_positive_rate=0.02)
    with pytest.raises(DetectorError, match="not both"):
        settle_thresholds(POINTS, file=Path("x"), false_positive_rate=0.01)


def test_operating_points_hold_their_rates():
    rng = np.random.default_rng(2)
    labels = np.arange(4000) % 2
    p = 1 / (1 + np.exp(-rng.normal(1.2 * (2 * labels - 1), 1)))
    points = set_operating_points(p, labels)
    assert [point.target for point in points] == [0.01, 0.05]
    assert points[0].ai > points[1].ai
    for point in points:
        assert (p[labels == 0] >= point.ai).mean() == point.false_positive_rate <= point.target
