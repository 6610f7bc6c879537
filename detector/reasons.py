"""Why a verdict is what it is, in sentences for a person."""

from collections.abc import Iterator, Mapping
from typing import Any

from detector.card import Thresholds
from detector.report import Stability, Verdict


def give_reasons(
    verdict: Verdict, probability: float, views: Mapping[Any, float], thresholds: Thresholds
) -> tuple[str, ...]:
    """The sentences for a verdict that the score decided.

    Args:
        verdict: by the thresholds alone.
        probability: calibrated, of AI.
        views: the same of each view.
        thresholds: that were used.
    """
    return (_decision(verdict, probability, thresholds), *_disagreement(views, thresholds))


def _decision(verdict: Verdict, probability: float, thresholds: Thresholds) -> str:
    said = f"The probability of AI is {_three(probability)}"
    if verdict == "ai":
        limit = f"the threshold {_three(thresholds.ai)} of {thresholds.source}"
        return f"{said}, at or above {limit}; {_alarms(thresholds)}."
    if verdict == "real":
        return (
            f"{said}, at or below the threshold {_three(thresholds.real)} of {thresholds.source}; "
            f"{_percent(thresholds.false_negative_rate)} of the AI pictures it was set on lie there too."
        )
    return (
        f"{said}, between the thresholds {_three(thresholds.real)} for real and {_three(thresholds.ai)} for "
        f"AI of {thresholds.source}: the pixels do not settle it."
    )


def _alarms(thresholds: Thresholds) -> str:
    measured = f"{_percent(thresholds.false_positive_rate)} of the real pictures it was set on reach it"
    if thresholds.upper_bound is None:
        return measured
    return f"{measured}, and with confidence at most {_percent(thresholds.upper_bound)} of others like them"


def _disagreement(views: Mapping[Any, float], thresholds: Thresholds) -> Iterator[str]:
    """A sentence when one view alone would say AI and another real."""
    ai = [f"{name} ({_three(value)})" for name, value in views.items() if value >= thresholds.ai]
    real = [f"{name} ({_three(value)})" for name, value in views.items() if value <= thresholds.real]
    if ai and real and thresholds.real < thresholds.ai:
        yield f"The views disagree: {_and(ai)} alone would say AI, {_and(real)} alone would say real."


def explain_flips(stability: Stability, was: Verdict) -> str:
    """Why a verdict that some re-encoding changes is withdrawn."""
    values = [f"{name} ({_three(stability.probabilities[name])})" for name in stability.flips]
    return (
        f"The verdict {was} does not survive re-encoding: it changes under {_and(values)} and is withdrawn."
    )


def explain_steadiness(stability: Stability) -> str:
    """How little the re-encodings did."""
    low, high = min(stability.probabilities.values()), max(stability.probabilities.values())
    return (
        f"The verdict is the same under {_and(list(stability.probabilities))}: the probability stays "
        f"between {_three(low)} and {_three(high)}."
    )


def _and(words: list[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"


def _three(value: float) -> str:
    return f"{value:.3f}"


def _percent(share: float) -> str:
    return f"{share:.1%}".replace(".0%", "%").replace("%", " %")
