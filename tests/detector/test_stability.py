"""The stability check: a verdict that re-encoding changes is withdrawn."""

import numpy as np
import pytest
from PIL import Image

from detector.card import ModelCard
from detector.report import ImageReport
from detector.runtime import Scores
from detector.scoring import judge, judge_stability
from detector.stability import REENCODINGS, compare, reencode
from tests.detector.test_runtime import CARD

MODEL = ModelCard(**CARD, sha256="ab")
BARE = ImageReport(path="a.jpg", status="ok", width=640, height=480)


def scores(margin):
    return Scores(np.array([[0, margin]], np.float32), np.array([[0.4, 1]], np.float32))


def judged(margin, *others):
    return judge_stability(judge(BARE, scores(margin), MODEL), [scores(one) for one in others], MODEL)


def test_a_steady_verdict_stays_and_says_so():
    report = judged(4.0, 4.1, 3.9, 3.0)
    assert report.verdict == "ai" and report.stability.flips == ()
    assert set(report.stability.probabilities) == {"png", "jpeg-95", "jpeg-80", "resize-0.75"}
    assert report.stability.probabilities["png"] == report.probability
    assert report.interval == pytest.approx((1 / (1 + np.exp(-3.0)), 1 / (1 + np.exp(-4.1))))
    assert report.stability.spread == pytest.approx(report.interval[1] - report.interval[0])
    assert report.reasons[-1].startswith(
        "The verdict is the same under png, jpeg-95, jpeg-80 and resize-0.75"
    )


@pytest.mark.parametrize(("margin", "others"), [(4.0, (4.0, -4.0, 4.0)), (-4.0, (-4.0, 0.0, -4.0))])
def test_a_verdict_that_flips_is_withdrawn_and_the_score_stays(margin, others):
    report = judged(margin, *others)
    assert report.verdict == "uncertain" and report.stability.flips == ("jpeg-80",)
    assert report.probability == pytest.approx(1 / (1 + np.exp(-margin)))
    assert "does not survive re-encoding: it changes under jpeg-80" in report.reasons[-1]


def test_what_was_uncertain_or_out_of_scope_is_never_decided_by_the_check():
    assert judged(0.0, 4.0, 4.0, 4.0).verdict == "uncertain"
    small = judge(BARE.model_copy(update={"height": 50}), scores(4.0), MODEL)
    report = judge_stability(small, [scores(-4.0)] * 3, MODEL)
    assert report.verdict == "out_of_scope" and report.reasons == small.reasons


def test_the_pictures_own_size_counts_not_that_of_the_copies():
    """Three quarters of 130 px is below the least size; that alone is no flip."""
    just = judge(BARE.model_copy(update={"height": 130}), scores(4.0), MODEL)
    assert judge_stability(just, [scores(4.0)] * 3, MODEL).verdict == "ai"


def test_reencodings_are_what_their_names_say():
    pixels = np.random.default_rng(0).integers(0, 256, (80, 120, 3), dtype=np.uint8)
    image = Image.fromarray(pixels)
    by_name = dict(zip(REENCODINGS, reencode(image), strict=True))
    off = {name: np.abs(np.asarray(by_name[name], int) - pixels).mean() for name in ("jpeg-95", "jpeg-80")}
    assert 0 < off["jpeg-95"] < off["jpeg-80"]
    assert by_name["resize-0.75"].size == (90, 60)


def test_scores_and_names_must_match():
    with pytest.raises(ValueError, match="zip"):
        compare((0.5, "uncertain"), [(0.5, "uncertain")])


def test_views_that_disagree_are_named():
    two = MODEL.model_copy(
        update={"preprocessing": MODEL.preprocessing.model_copy(update={"views": ("global", "native")})}
    )
    both = Scores(np.array([[0, 5], [0, -5]], np.float32), np.zeros((2, 2), np.float32))
    report = judge(BARE, both, two)
    assert report.verdict == "uncertain" and report.view_spread > 0.98
    assert report.reasons[1] == (
        "The views disagree: global (0.993) alone would say AI, native (0.007) alone would say real."
    )
