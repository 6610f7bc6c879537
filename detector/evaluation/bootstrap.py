"""Intervals: whole sources of each class are drawn with replacement, never single pictures.

Pictures of one source resemble each other, so drawing pictures would promise far too much. A class with
one source stays as it is, and the interval says so; where no class has two, there is no interval.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field

from detector.evaluation.frame import AI, CLASSES, REAL, Frame
from detector.evaluation.measures import MEASURES, Values, Weighted, why_undefined

CHUNK_CELLS = 2**21  # weights held at once; every measure needs a few times as much memory
DIGITS = 6
LEAST_DEFINED = 0.95


class Plan(BaseModel):
    """How intervals are made."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    rounds: int = Field(default=1000, ge=1, description="bootstrap resamples")
    seed: int = Field(default=0, ge=0)
    level: float = Field(default=0.95, gt=0, lt=1, description="share of resamples inside an interval")


class Estimate(BaseModel):
    """A value with its interval, or why there is none."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    value: float | None = None
    low: float | None = None
    high: float | None = None
    over: str = Field(default="", description="what was drawn for the interval")
    caveat: str = Field(default="", description="what the value or its interval leaves out")
    undefined: str = Field(default="", description="why there is no value")
    no_interval: str = Field(default="", description="why there is a value but no interval")


@dataclass(frozen=True)
class Sampled:
    """Measures of some pictures, and what they became in every resample.

    Attributes:
        values: by measure; absent when undefined.
        draws: (R,) by measure; absent when undefined.
        undefined: why, by measure.
        sources: number of sources of the real and of the AI pictures.
    """

    values: dict[str, float]
    draws: dict[str, Values]
    undefined: dict[str, str]
    sources: tuple[int, int]

    def estimate(self, name: str, plan: Plan) -> Estimate:
        """The value of a measure with its interval."""
        if name in self.undefined:
            return Estimate(undefined=self.undefined[name])
        drawing = describe_drawing(MEASURES[name].classes, self.sources)
        return make_estimate(self.values[name], self.draws[name], plan, drawing)


def sample(frame: Frame, plan: Plan, names: Sequence[str] = tuple(MEASURES)) -> Sampled:
    """The named measures of `frame`, once as it is and once for every resample.

    Equal sources give equal draws: two detectors on the same pictures are drawn alike.
    """
    reasons = {name: why_undefined(name, frame) for name in names}
    defined = [name for name in names if not reasons[name]]
    once = Weighted(frame, np.ones((1, len(frame))))
    values = {name: float(MEASURES[name].compute(once)[0]) for name in defined}
    chunks: dict[str, list[Values]] = {name: [] for name in defined}
    for weights in draw_weights(frame, plan) if defined else ():
        data = Weighted(frame, weights)
        for name in defined:
            chunks[name].append(MEASURES[name].compute(data))
    draws = {name: np.concatenate(parts) for name, parts in chunks.items()}
    undefined = {name: reason for name, reason in reasons.items() if reason}
    return Sampled(values, draws, undefined, (len(frame.sources(REAL)), len(frame.sources(AI))))


def draw_weights(frame: Frame, plan: Plan) -> Iterator[NDArray[np.float64]]:
    """How often each picture occurs in each resample: (rows, N) at a time, `plan.rounds` rows in all."""
    counts = {label: draw_sources(len(frame.sources(label)), plan, label) for label in (REAL, AI)}
    columns = np.zeros(len(frame), dtype=np.int64)
    for label in (REAL, AI):
        place = {name: number for number, name in enumerate(frame.sources(label))}
        for row in np.flatnonzero(frame.of(label)):
            columns[row] = place[frame.source[row]] + label * counts[REAL].shape[1]
    both = np.concatenate([counts[REAL], counts[AI]], axis=1)
    step = max(1, CHUNK_CELLS // max(1, len(frame)))
    for start in range(0, plan.rounds, step):
        yield both[start : start + step][:, columns]


def draw_sources(number: int, plan: Plan, stream: int) -> NDArray[np.float64]:
    """How often each of `number` sources is drawn in each resample: (R, number), rows sum to `number`."""
    rng = np.random.default_rng([plan.seed, stream])
    drawn = rng.integers(max(number, 1), size=(plan.rounds, number))
    counts = np.zeros((plan.rounds, number))
    np.add.at(counts, (np.arange(plan.rounds)[:, None], drawn), 1.0)
    return counts


class Drawing(NamedTuple):
    """What an interval was drawn over, in words.

    Attributes:
        over: what was drawn.
        caveat: what stayed as it is.
        impossible: why nothing could be drawn; empty when something was.
    """

    over: str = ""
    caveat: str = ""
    impossible: str = ""


def describe_drawing(classes: str, sources: tuple[int, int]) -> Drawing:
    """What is drawn for a measure.

    Args:
        classes: of the measure.
        sources: number of real and of AI sources.
    """
    used = [
        (word, number)
        for name, word, number in zip(CLASSES, ("real", "AI"), sources, strict=True)
        if number and classes in (name, "both", "any")
    ]
    drawn = " and ".join(f"{number} {word}" for word, number in used if number > 1)
    fixed = " and ".join(f"the one {word} source" for word, number in used if number == 1)
    if not drawn:
        return Drawing(impossible=f"{fixed} cannot be resampled")
    return Drawing(f"{drawn} sources", f"{fixed} stays as it is" if fixed else "")


def make_estimate(value: float, draws: Values, plan: Plan, drawing: Drawing) -> Estimate:
    """The value with the quantiles of its draws.

    Args:
        value: the measure itself.
        draws: (R,) its resamples, NaN where one left nothing to measure.
        plan: which quantiles.
        drawing: what was drawn; when nothing could be, there is no interval.
    """
    known = draws[~np.isnan(draws)]
    why_not = drawing.impossible
    if not why_not and len(known) < LEAST_DEFINED * plan.rounds:
        why_not = f"undefined in {plan.rounds - len(known)} of {plan.rounds} resamples"
    if not why_not and known.min() == known.max():
        why_not = "every resample gives the same value, which says nothing of its uncertainty"
    if why_not:
        return Estimate(value=round(value, DIGITS), no_interval=why_not, caveat=drawing.caveat)
    tail = (1 - plan.level) / 2
    low, high = (round(float(v), DIGITS) for v in np.quantile(known, [tail, 1 - tail]))
    return Estimate(value=round(value, DIGITS), low=low, high=high, over=drawing.over, caveat=drawing.caveat)
