"""Tables of a detector's quality: overall, per generator, per real source, per domain, per tier."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from detector.calibration import Calibration
from detector.card import Thresholds
from detector.evaluate import Prediction

BOOTSTRAP_ROUNDS = 500
ECE_BINS = 10

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
    tiers = list(dict.fromkeys(p["tier"] for p in predictions))
    readable = [p for p in predictions if p["error"] is None]
    tables = {
        tier: _tier([p for p in readable if p["tier"] == tier], calibration, thresholds, margin)
        for tier in tiers
    }
    return {"unreadable": len(predictions) - len(readable), "tiers": tables}


def _tier(rows: list[Prediction], calibration: Calibration, thresholds: Thresholds, margin: str) -> Table:
    labels = np.array([row["label"] for row in rows])
    p = calibration.probability(np.array([row[margin] for row in rows]))
    groups = np.array([row["source"] for row in rows])
    return {
        "pictures": {"real": int((labels == 0).sum()), "ai": int((labels == 1).sum())},
        **_overall(p, labels, thresholds),
        "auroc_interval": _interval(p, labels, groups),
        "per_generator": _per(
            rows, p, labels, 1, "generator", lambda q: _ai_row(q, p[labels == 0], thresholds)
        ),
        "per_real_source": _per(rows, p, labels, 0, "source", lambda q: _real_row(q, thresholds)),
        "real_per_domain": _per(rows, p, labels, 0, "domain", lambda q: _real_row(q, thresholds)),
        "ai_per_domain": _per(rows, p, labels, 1, "domain", lambda q: _ai_row(q, p[labels == 0], thresholds)),
    }


def _overall(p: NDArray[np.float64], labels: NDArray[np.int64], thresholds: Thresholds) -> dict[str, float]:
    from sklearn.metrics import average_precision_score, brier_score_loss, roc_auc_score, roc_curve

    fpr, tpr, _ = roc_curve(labels, p)
    decided = (p >= thresholds.ai) | (p <= thresholds.real)
    right = ((p >= thresholds.ai) == (labels == 1))[decided]
    values = {
        "auroc": roc_auc_score(labels, p),
        "average_precision": average_precision_score(labels, p),
        "equal_error_rate": fpr[np.argmin(np.abs(fpr - (1 - tpr)))],
        "tpr_at_1_percent_fpr": np.interp(0.01, fpr, tpr),
        "tpr_at_5_percent_fpr": np.interp(0.05, fpr, tpr),
        "balanced_accuracy_at_half": ((p[labels == 1] >= 0.5).mean() + (p[labels == 0] < 0.5).mean()) / 2,
        "flagged_real": (p[labels == 0] >= thresholds.ai).mean(),
        "flagged_ai": (p[labels == 1] >= thresholds.ai).mean(),
        "decided": decided.mean(),
        "right_when_decided": right.mean() if len(right) else float("nan"),
        "ece": expected_calibration_error(p, labels),
        "brier": brier_score_loss(labels, p),
    }
    return {name: round(float(value), 4) for name, value in values.items()}


def expected_calibration_error(p: NDArray[np.float64], labels: NDArray[np.int64]) -> float:
    """Mean distance between stated and observed AI share over equal-width bins, weighted by count.

    Source: Guo et al. 2017, eq. 3, for the AI class.
    """
    bins = np.minimum((p * ECE_BINS).astype(int), ECE_BINS - 1)
    gaps = [abs(p[bins == b].mean() - labels[bins == b].mean()) * (bins == b).mean() for b in np.unique(bins)]
    return float(np.sum(gaps))


def _interval(p: NDArray[np.float64], labels: NDArray[np.int64], groups: NDArray[np.str_]) -> list[float]:
    """95 % bootstrap interval of the AUROC, drawing whole sources of each class with replacement."""
    from sklearn.metrics import roc_auc_score

    rng, scores = np.random.default_rng(0), []
    members = [
        [np.flatnonzero((groups == g) & (labels == c)) for g in np.unique(groups[labels == c])]
        for c in (0, 1)
    ]
    for _ in range(BOOTSTRAP_ROUNDS):
        drawn = [side[i] for side in members for i in rng.integers(len(side), size=len(side))]
        index = np.concatenate(drawn)
        scores.append(roc_auc_score(labels[index], p[index]))
    return [round(float(v), 4) for v in np.quantile(scores, [0.025, 0.975])]


def _per(
    rows: list[Prediction],
    p: NDArray[np.float64],
    labels: NDArray[np.int64],
    label: int,
    column: str,
    row: Callable[[NDArray[np.float64]], dict[str, float]],
) -> dict[str, dict[str, float]]:
    names = np.array([r[column] for r in rows])
    return {
        str(name): row(p[(names == name) & (labels == label)]) for name in np.unique(names[labels == label])
    }


def _real_row(p: NDArray[np.float64], thresholds: Thresholds) -> dict[str, float]:
    values = {
        "flagged": (p >= thresholds.ai).mean(),
        "cleared": (p <= thresholds.real).mean(),
        "mean_probability": p.mean(),
    }
    return {"pictures": len(p)} | {name: round(float(value), 4) for name, value in values.items()}


def _ai_row(p: NDArray[np.float64], real: NDArray[np.float64], thresholds: Thresholds) -> dict[str, float]:
    from sklearn.metrics import roc_auc_score

    labels = np.r_[np.ones(len(p)), np.zeros(len(real))]
    values = {
        "found": (p >= thresholds.ai).mean(),
        "missed": (p <= thresholds.real).mean(),
        "auroc": roc_auc_score(labels, np.r_[p, real]),
    }
    return {"pictures": len(p)} | {name: round(float(value), 4) for name, value in values.items()}
