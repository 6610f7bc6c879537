"""From raw margins to calibrated probabilities and thresholds, on the calibration split only."""

import math
from collections.abc import Sequence
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
        target=false_positive_rate,
        how=(
            f"quantiles of calibrated probabilities on {len(real)} real and {len(ai)} AI pictures of "
            f"calibration sources: at most {false_positive_rate:.0%} of real ones reach `ai`, at most "
            f"{false_negative_rate:.0%} of AI ones fall to `real`"
        ),
    )


def set_operating_points(
    probabilities: NDArray[np.float64],
    labels: NDArray[np.int64],
    false_positive_rates: Sequence[float] = (0.01, 0.05),
    false_negative_rate: float = 0.05,
) -> tuple[Thresholds, ...]:
    """Thresholds for several false-positive rates, as a card's `operating_points`; see `set_thresholds`."""
    return tuple(
        set_thresholds(probabilities, labels, rate, false_negative_rate) for rate in false_positive_rates
    )


def upper_bound(flagged: int, pictures: int, confidence: float = 0.95) -> float:
    """Largest rate that `flagged` of `pictures` do not speak against: the one-sided Clopper-Pearson bound.

    With the (flagged + 1)-th largest score as threshold it holds exactly, for any continuous
    distribution of scores: the share above an order statistic has the beta distribution it inverts.

    Source: Clopper and Pearson 1934; Wilks 1941 for order statistics.
    """
    if flagged >= pictures:
        return 1.0
    low, high = flagged / pictures, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if _at_most(flagged, pictures, middle) > 1 - confidence else (low, middle)
    return high


def _at_most(successes: int, trials: int, rate: float) -> float:
    """Probability of at most that many successes, binomial; in logarithms, since terms get tiny."""
    if rate <= 0:
        return 1.0
    if rate >= 1:
        return float(successes >= trials)
    total, yes, no = math.lgamma(trials + 1), math.log(rate), math.log1p(-rate)
    terms = (
        total - math.lgamma(k + 1) - math.lgamma(trials - k + 1) + k * yes + (trials - k) * no
        for k in range(successes + 1)
    )
    return min(1.0, math.fsum(math.exp(term) for term in terms))


def pictures_needed(rate: float, confidence: float = 0.95) -> int:
    """Fewest real pictures that can hold a false-positive rate with this confidence: none is flagged."""
    return math.ceil(math.log(1 - confidence) / math.log1p(-rate) - 1e-9)


class Bound(NamedTuple):
    """An `ai` threshold, and what it is known to do.

    Attributes:
        threshold: `ai` at or above.
        flagged: real pictures at or above it.
        upper_bound: of the false-positive rate.
    """

    threshold: float
    flagged: int
    upper_bound: float


def bound_false_positives(real: NDArray[np.float64], rate: float, confidence: float = 0.95) -> Bound | None:
    """The lowest `ai` threshold whose false-positive rate is at most `rate` with this confidence.

    Args:
        real: (N,) probabilities of real pictures.
        rate: largest allowed.
        confidence: of the bound.

    Returns:
        None when no threshold does: too few pictures, or too many at probability 1.
    """
    ordered = np.sort(real)[::-1]
    if len(ordered) < pictures_needed(rate, confidence):
        return None
    allowed = 0
    # The bound of one more flagged picture is at most `rate` exactly when so few would be this unlikely.
    while allowed + 1 < len(ordered) and _at_most(allowed + 1, len(ordered), rate) <= 1 - confidence:
        allowed += 1
    threshold = float(np.nextafter(ordered[allowed], 2))
    if threshold > 1:
        return None
    flagged = int((real >= threshold).sum())
    return Bound(threshold, flagged, upper_bound(allowed, len(ordered), confidence))
