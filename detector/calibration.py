"""From raw margins to calibrated probabilities and thresholds, on the calibration split only."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from detector.card import Thresholds


class Calibration(NamedTuple):
    """probability = sigmoid((margin + bias) / temperature)."""

    temperature: float
    bias: float

    def probability(self, margins: NDArray[np.float64]) -> NDArray[np.float64]:
        """Calibrated probability of AI for raw margins (N,)."""
        return 1 / (1 + np.exp(-(margins + self.bias) / self.temperature))


def fit_calibration(margins: NDArray[np.float64], labels: NDArray[np.int64]) -> Calibration:
    """Platt scaling with both classes counting alike.

    Args:
        margins: (N,) AI-minus-real logits, mean over views.
        labels: (N,) 0 real, 1 AI.

    Source: Platt 1999; Guo et al. 2017 for the temperature. Differs: the slope is kept positive,
    so calibration never turns a ranking around.
    """
    from sklearn.linear_model import LogisticRegression

    model = LogisticRegression(C=1e6, class_weight="balanced").fit(margins[:, None], labels)
    slope, intercept = float(model.coef_[0, 0]), float(model.intercept_[0])
    slope = max(slope, 1e-3)
    return Calibration(temperature=1 / slope, bias=intercept / slope)


def set_thresholds(
    probabilities: NDArray[np.float64],
    labels: NDArray[np.int64],
    false_positive_rate: float,
    false_negative_rate: float,
) -> Thresholds:
    """The `ai` threshold at a false-positive rate, the `real` threshold at a false-negative rate.

    Both are quantiles on the calibration split. Should they cross, both move to their middle, and
    nothing is left uncertain.

    Args:
        probabilities: (N,) calibrated.
        labels: (N,) 0 real, 1 AI.
        false_positive_rate: largest share of real pictures allowed at or above `ai`.
        false_negative_rate: largest share of AI pictures allowed at or below `real`.
    """
    real, ai = probabilities[labels == 0], probabilities[labels == 1]
    upper = float(np.nextafter(np.quantile(real, 1 - false_positive_rate, method="higher"), 1))
    lower = float(np.nextafter(np.quantile(ai, false_negative_rate, method="lower"), 0))
    if lower > upper:
        lower = upper = (lower + upper) / 2
    return Thresholds(
        ai=round(upper, 6),
        real=round(lower, 6),
        false_positive_rate=float((real >= round(upper, 6)).mean()),
        false_negative_rate=float((ai <= round(lower, 6)).mean()),
        how=(
            f"quantiles of calibrated probabilities on {len(real)} real and {len(ai)} AI pictures of "
            f"calibration sources: at most {false_positive_rate:.0%} of real ones reach `ai`, at most "
            f"{false_negative_rate:.0%} of AI ones fall to `real`"
        ),
    )
