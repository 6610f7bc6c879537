"""Thresholds tried on pictures whose truth the caller knows."""

import math

import numpy as np

from detector.card import Thresholds
from service.schemas import Preview, PreviewRequest

CONFIDENCE = 0.95
STEPS = 60  # halvings of an interval of length one: beyond float precision


def preview_threshold(wanted: PreviewRequest, current: Thresholds) -> Preview:
    """The lowest threshold that at most the wanted share of real pictures reaches, and what it does."""
    real, ai = np.sort(np.asarray(wanted.real, float)), np.asarray(wanted.ai, float)
    allowed = math.floor(wanted.false_positive_rate * len(real) + 1e-9)
    threshold = float(np.nextafter(real[len(real) - 1 - allowed], math.inf))
    reached = int((real >= threshold).sum())
    warning = None
    if wanted.false_positive_rate * len(real) < 1:
        needed = math.ceil(1 / wanted.false_positive_rate)
        warning = (
            f"{len(real)} real pictures cannot show a rate of {wanted.false_positive_rate:g}; take {needed}"
        )
    return Preview(
        threshold=threshold,
        current_threshold=current.ai,
        false_positive_rate=reached / len(real),
        false_positive_rate_upper=upper_rate(reached, len(real)),
        current_false_positive_rate=float((real >= current.ai).mean()),
        true_positive_rate=float((ai >= threshold).mean()) if len(ai) else None,
        warning=warning,
    )


def upper_rate(found: int, count: int) -> float:
    """The largest rate that gives `found` or fewer of `count` with a probability of 5 % or more.

    Source: Clopper and Pearson 1934, one-sided.
    """
    if found >= count:
        return 1.0
    low, high = found / count, 1.0
    for _ in range(STEPS):
        middle = (low + high) / 2
        low, high = (middle, high) if _at_most(found, count, middle) > 1 - CONFIDENCE else (low, middle)
    return high


def _at_most(found: int, count: int, rate: float) -> float:
    """The probability of `found` or fewer in `count` trials, by logarithms so that nothing overflows."""
    terms = (
        [
            math.lgamma(count + 1)
            - math.lgamma(k + 1)
            - math.lgamma(count - k + 1)
            + k * math.log(rate)
            + (count - k) * math.log1p(-rate)
            for k in range(found + 1)
        ]
        if 0 < rate < 1
        else [0.0 if rate == 0 else -math.inf]
    )
    return math.fsum(math.exp(term) for term in terms)
