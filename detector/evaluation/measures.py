"""Measures of a detector, each for many weightings of the same pictures at once.

A bootstrap draw of sources is a weighting of pictures, so one sort of the scores serves every draw.
scikit-learn, which takes one weighting at a time, agrees with each of them to rounding (tested).
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from detector.evaluation.frame import AI, REAL, Frame

ECE_BINS = 10
Values = NDArray[np.float64]  # (R,), one per weighting; NaN where a weighting leaves nothing to measure


class Curve(NamedTuple):
    """ROC curve per weighting, (R, T + 1) each, from threshold above all scores to below all."""

    false_rate: NDArray[np.float64]
    true_rate: NDArray[np.float64]
    precision: NDArray[np.float64]


class Weighted:
    """Pictures under R weightings."""

    def __init__(self, frame: Frame, weights: NDArray[np.float64]) -> None:
        """Pictures of `frame` (N), weights (R, N), not negative."""
        self.frame, self.weights = frame, weights

    @cached_property
    def curve(self) -> Curve:
        """The ROC curve; equal scores are one threshold."""
        order = np.argsort(-self.frame.score, kind="stable")
        scores = self.frame.score[order]
        ends = np.flatnonzero(np.r_[scores[1:] != scores[:-1], True])
        sorted_weights, is_ai = self.weights[:, order], self.frame.label[order] == AI
        hits = _from_zero(np.cumsum(sorted_weights * is_ai, axis=1)[:, ends])
        alarms = _from_zero(np.cumsum(sorted_weights * ~is_ai, axis=1)[:, ends])
        with np.errstate(invalid="ignore", divide="ignore"):
            precision = np.where(hits + alarms > 0, hits / (hits + alarms), 1.0)
            return Curve(alarms / alarms[:, -1:], hits / hits[:, -1:], precision)

    def share(self, hit: NDArray[np.bool_] | Values, among: NDArray[np.bool_] | None = None) -> Values:
        """Weighted mean of `hit` (N,) over the pictures in `among` (N,)."""
        inside = np.ones(len(self.frame), bool) if among is None else among
        with np.errstate(invalid="ignore", divide="ignore"):
            return (self.weights @ (hit * inside)) / (self.weights @ inside.astype(float))


def _from_zero(counts: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.concatenate([np.zeros((len(counts), 1)), counts], axis=1)


def auroc(data: Weighted) -> Values:
    """Area under the ROC curve; equal scores count half."""
    x, y = data.curve.false_rate, data.curve.true_rate
    return (np.diff(x, axis=1) * (y[:, 1:] + y[:, :-1]) / 2).sum(axis=1)


def average_precision(data: Weighted) -> Values:
    """Sum of recall gained times precision, without interpolation, as in scikit-learn."""
    return (np.diff(data.curve.true_rate, axis=1) * data.curve.precision[:, 1:]).sum(axis=1)


def equal_error_rate(data: Weighted) -> Values:
    """Where the ROC curve, drawn as straight lines, has as many false alarms as misses."""
    x, y = data.curve.false_rate, data.curve.true_rate
    return _where_crossing(x + y - 1, x, 0.0, strict=False)


def true_rate_at(false_rate: float) -> Callable[[Weighted], Values]:
    """The measure: true-positive rate at a false-positive rate, on the ROC curve as straight lines."""

    def measure(data: Weighted) -> Values:
        return _where_crossing(data.curve.false_rate, data.curve.true_rate, false_rate, strict=True)

    return measure


def _where_crossing(
    rising: NDArray[np.float64], wanted: NDArray[np.float64], level: float, *, strict: bool
) -> Values:
    """`wanted` where `rising` reaches (strict: is about to exceed) `level`, between the points next to it."""
    after = np.argmax(rising > level if strict else rising >= level, axis=1)[:, None]
    before = np.maximum(after - 1, 0)
    low, high = _take(rising, before), _take(rising, after)
    start, end = _take(wanted, before), _take(wanted, after)
    with np.errstate(invalid="ignore", divide="ignore"):
        between = start + (level - low) / (high - low) * (end - start)
    return np.where(high > low, between, np.nan)


def _take(values: NDArray[np.float64], places: NDArray[np.int64]) -> Values:
    return np.take_along_axis(values, places, axis=1)[:, 0]


def calibration_error(data: Weighted) -> Values:
    """The expected calibration error under every weighting."""
    return weigh_bins(data.frame.probability, data.frame.label, data.weights)


def weigh_bins(p: NDArray[np.float64], labels: NDArray[np.int64], weights: NDArray[np.float64]) -> Values:
    """Mean distance between stated and observed AI share over equal-width bins, weighted by count.

    Args:
        p: (N,) probabilities of AI.
        labels: (N,) 0 real, 1 AI.
        weights: (R, N).

    Source: Guo et al. 2017, eq. 3, for the AI class.
    """
    bins = np.minimum((p * ECE_BINS).astype(int), ECE_BINS - 1)
    gaps = weights @ ((bins[:, None] == np.arange(ECE_BINS)) * (p - labels)[:, None])
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.abs(gaps).sum(axis=1) / weights.sum(axis=1)


def brier(data: Weighted) -> Values:
    """Mean squared distance between probability and label."""
    return data.share((data.frame.probability - data.frame.label) ** 2)


def accuracy(data: Weighted) -> Values:
    """Share of pictures on the right side of probability one half."""
    return data.share(_right(data.frame))


def balanced_accuracy(data: Weighted) -> Values:
    """Mean of both classes' accuracies."""
    return (accuracy_of(REAL)(data) + accuracy_of(AI)(data)) / 2


def accuracy_of(label: int) -> Callable[[Weighted], Values]:
    """The measure: share of one class on its side of probability one half."""
    return lambda data: data.share(_right(data.frame), data.frame.of(label))


def _right(frame: Frame) -> NDArray[np.bool_]:
    return (frame.probability >= 0.5) == (frame.label == AI)


def flagged_of(label: int) -> Callable[[Weighted], Values]:
    """The measure: share of one class with verdict `ai`."""
    return lambda data: data.share(data.frame.flagged, data.frame.of(label))


def cleared_of(label: int) -> Callable[[Weighted], Values]:
    """The measure: share of one class with verdict `real`."""
    return lambda data: data.share(data.frame.cleared, data.frame.of(label))


def decided(data: Weighted) -> Values:
    """Share of pictures with a verdict other than `uncertain`."""
    return data.share(data.frame.flagged | data.frame.cleared)


def decided_of(label: int) -> Callable[[Weighted], Values]:
    """The measure: share of one class with a verdict other than `uncertain`."""
    return lambda data: data.share(data.frame.flagged | data.frame.cleared, data.frame.of(label))


def right_when_decided(data: Weighted) -> Values:
    """Share of right verdicts among those other than `uncertain`."""
    frame = data.frame
    return data.share(frame.flagged == (frame.label == AI), frame.flagged | frame.cleared)


@dataclass(frozen=True)
class Measure:
    """One measure.

    Attributes:
        title: for a column.
        compute: its value for every weighting.
        classes: which pictures it cannot do without; `any` takes what is there.
        needs: what the detector must give.
        least_real: fewer real pictures than this cannot resolve it.
        text: one line of explanation.
    """

    title: str
    compute: Callable[[Weighted], Values]
    classes: Literal["both", "real", "ai", "any"]
    needs: Literal["score", "probability", "verdict"]
    text: str
    least_real: int = 1


MEASURES: dict[str, Measure] = {
    "auroc": Measure("AUROC", auroc, "both", "score", "area under the ROC curve"),
    "average_precision": Measure("AP", average_precision, "both", "score", "average precision, AI positive"),
    "equal_error_rate": Measure("EER", equal_error_rate, "both", "score", "false alarms = misses"),
    "tpr_at_1_percent_fpr": Measure(
        "TPR@1%FPR", true_rate_at(0.01), "both", "score", "AI found at 1 % false alarms", least_real=100
    ),
    "tpr_at_5_percent_fpr": Measure(
        "TPR@5%FPR", true_rate_at(0.05), "both", "score", "AI found at 5 % false alarms", least_real=20
    ),
    "accuracy_at_half": Measure("accuracy", accuracy, "any", "probability", "right side of p = 0.5"),
    "balanced_accuracy_at_half": Measure(
        "balanced accuracy", balanced_accuracy, "both", "probability", "mean over both classes at p = 0.5"
    ),
    "right_real_at_half": Measure(
        "real right", accuracy_of(REAL), "real", "probability", "real pictures below p = 0.5"
    ),
    "right_ai_at_half": Measure("AI right", accuracy_of(AI), "ai", "probability", "AI pictures from p = 0.5"),
    "flagged_real": Measure(
        "false alarms", flagged_of(REAL), "real", "verdict", "real pictures with verdict ai (FPR)"
    ),
    "cleared_real": Measure(
        "cleared", cleared_of(REAL), "real", "verdict", "real pictures with verdict real"
    ),
    "flagged_ai": Measure("found", flagged_of(AI), "ai", "verdict", "AI pictures with verdict ai (TPR)"),
    "cleared_ai": Measure("missed", cleared_of(AI), "ai", "verdict", "AI pictures with verdict real"),
    "decided": Measure("decided", decided, "any", "verdict", "verdicts other than uncertain (coverage)"),
    "decided_real": Measure("real decided", decided_of(REAL), "real", "verdict", "real pictures decided"),
    "decided_ai": Measure("AI decided", decided_of(AI), "ai", "verdict", "AI pictures decided"),
    "right_when_decided": Measure(
        "right when decided", right_when_decided, "any", "verdict", "right among the decided"
    ),
    "ece": Measure("ECE", calibration_error, "any", "probability", "expected calibration error, 10 bins"),
    "brier": Measure("Brier", brier, "any", "probability", "mean squared error of the probability"),
}


def measure_once(frame: Frame) -> dict[str, float]:
    """Every measure with each picture counted once; NaN where there is nothing to measure."""
    data = Weighted(frame, np.ones((1, len(frame))))
    return {name: float(measure.compute(data)[0]) for name, measure in MEASURES.items()}


def why_undefined(name: str, frame: Frame) -> str:
    """Why a measure has no value on these pictures; empty when it has one."""
    measure = MEASURES[name]
    present = {"real": int(frame.of(REAL).sum()), "ai": int(frame.of(AI).sum())}
    wanted = ("real", "ai") if measure.classes == "both" else (measure.classes,)
    for kind in wanted:
        if present.get(kind, len(frame)) == 0:
            return {"real": "no real pictures", "ai": "no AI pictures"}.get(kind, "no pictures")
    if measure.needs == "probability" and not frame.calibrated:
        return "no calibrated probabilities"
    if measure.needs == "verdict" and not frame.judged:
        return "no thresholds, so no verdicts"
    if present["real"] < measure.least_real and measure.classes == "both":
        return f"{present['real']} real pictures; fewer than {measure.least_real} cannot resolve this rate"
    if name == "right_when_decided" and not (frame.flagged | frame.cleared).any():
        return "no picture was decided"
    return ""
