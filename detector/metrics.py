"""Tables of a detector's quality for its card: overall, per generator, real source, domain and tier."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from detector.calibration import Calibration
from detector.card import Thresholds
from detector.evaluation.bootstrap import Plan, sample
from detector.evaluation.frame import AI, REAL, Decision, Frame, build_frame
from detector.evaluation.measures import measure_once, weigh_bins
from detector.evaluation.predictions import Prediction, name_columns

PLAN = Plan(rounds=500)
OVERALL = (
    *("auroc", "average_precision", "equal_error_rate", "tpr_at_1_percent_fpr", "tpr_at_5_percent_fpr"),
    *("balanced_accuracy_at_half", "flagged_real", "flagged_ai", "decided", "right_when_decided"),
    *("ece", "brier"),
)
DIGITS = 4

Table = dict[str, Any]


def summarise(
    predictions: Sequence[Prediction],
    calibration: Calibration,
    thresholds: Thresholds,
    *,
    margin: str = "margin",
) -> Table:
    """All tables for one detector, one block per tier.

    Args:
        predictions: of a split with both classes.
        calibration: fitted elsewhere.
        thresholds: set elsewhere; frozen here.
        margin: which column holds the detector's margins.
    """
    names = dict.fromkeys(name for row in predictions for name in row)
    rows = {name: [row.get(name) for row in predictions] for name in names}
    # Different pictures of one source may share a key here; what counts twice is for the caller to know.
    rows["key"] = [str(number) for number in range(len(predictions))]
    columns = name_columns(rows, "predictions")
    decision = Decision(calibration, thresholds.ai, thresholds.real)
    margins = np.array([np.nan if value is None else value for value in rows[margin]], dtype=np.float64)
    frame = build_frame(columns, decision, margin=margins)
    tiers = dict.fromkeys(columns["transform"])
    return {
        "unreadable": len(predictions) - len(frame),
        "tiers": {tier: _tier(frame.take(frame.transform == tier)) for tier in tiers},
    }


def _tier(frame: Frame) -> Table:
    real, ai = frame.of(REAL), frame.of(AI)
    values = measure_once(frame)
    return {
        "pictures": {"real": int(real.sum()), "ai": int(ai.sum())},
        **{name: _rounded(values[name]) for name in OVERALL},
        "auroc_interval": _interval(frame),
        "per_generator": _per(frame, frame.generator, ai, real, _ai_row),
        "per_real_source": _per(frame, frame.source, real, None, _real_row),
        "real_per_domain": _per(frame, frame.domain, real, None, _real_row),
        "ai_per_domain": _per(frame, frame.domain, ai, real, _ai_row),
    }


def _interval(frame: Frame) -> list[float | None]:
    """95 % bootstrap interval of the AUROC, drawing whole sources of each class with replacement."""
    estimate = sample(frame, PLAN, ("auroc",)).estimate("auroc", PLAN)
    return [None if end is None else round(end, DIGITS) for end in (estimate.low, estimate.high)]


def _per(
    frame: Frame,
    names: NDArray[Any],
    own: NDArray[np.bool_],
    others: NDArray[np.bool_] | None,
    row: Callable[[Frame], Table],
) -> dict[str, Table]:
    """A row for each name among the pictures `own`, measured together with the pictures `others`."""
    return {
        str(name): row(frame.take(own & (names == name) | (False if others is None else others)))
        for name in sorted(set(names[own]))
    }


def _real_row(frame: Frame) -> Table:
    values = {
        "flagged": frame.flagged.mean(),
        "cleared": frame.cleared.mean(),
        "mean_probability": frame.probability.mean(),
    }
    return {"pictures": len(frame)} | {name: _rounded(value) for name, value in values.items()}


def _ai_row(frame: Frame) -> Table:
    values = measure_once(frame)
    return {
        "pictures": int(frame.of(AI).sum()),
        "found": _rounded(values["flagged_ai"]),
        "missed": _rounded(values["cleared_ai"]),
        "auroc": _rounded(values["auroc"]),
    }


def _rounded(value: float) -> float | None:
    """The value as the card shows it; None where there was nothing to measure."""
    return None if np.isnan(value) else round(float(value), DIGITS)


def expected_calibration_error(p: NDArray[np.float64], labels: NDArray[np.int64]) -> float:
    """The expected calibration error of probabilities (N,) for labels (N,), every picture counting once."""
    return float(weigh_bins(p, labels, np.ones((1, len(p))))[0])
