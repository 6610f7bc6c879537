"""Frame: the predictions of one detector as columns, with its probabilities and verdicts."""

from dataclasses import dataclass, fields
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from detector.calibration import Calibration
from detector.evaluation.errors import EvaluationError
from detector.evaluation.predictions import Columns, Origin

REAL, AI = 0, 1
CLASSES = ("real", "ai")
Flags = NDArray[np.bool_]


@dataclass(frozen=True)
class Decision:
    """From a margin to a probability and a verdict. All of it was fitted elsewhere and is frozen here.

    Attributes:
        calibration: None when there is none, and margins rank pictures but are no probabilities.
        ai: verdict `ai` at or above this probability; None when there are no thresholds.
        real: verdict `real` at or below this probability.
        min_side_px: a picture with a shorter side below this is `out_of_scope`.
    """

    calibration: Calibration | None = None
    ai: float | None = None
    real: float | None = None
    min_side_px: int = 0

    @classmethod
    def of(cls, origin: Origin) -> Self:
        """The decision of the model that made the predictions."""
        return cls(
            Calibration(origin.temperature, origin.bias),
            origin.threshold_ai,
            origin.threshold_real,
            origin.min_side_px,
        )


@dataclass(frozen=True)
class Frame:
    """Readable predictions of one detector, by column; all arrays have one length N.

    Attributes:
        label: 0 real, 1 AI.
        score: what ranks pictures, higher for AI: the margin, or the probability where there is no margin.
        probability: calibrated; NaN when the detector has no calibration.
        flagged: the verdict is `ai`.
        cleared: the verdict is `real`.
        judged: whether verdicts exist at all.
    """

    key: NDArray[Any]
    source: NDArray[Any]
    generator: NDArray[Any]
    domain: NDArray[Any]
    family: NDArray[Any]
    released: NDArray[Any]
    subset: NDArray[Any]
    transform: NDArray[Any]
    label: NDArray[np.int64]
    score: NDArray[np.float64]
    probability: NDArray[np.float64]
    flagged: Flags
    cleared: Flags
    judged: bool

    def __len__(self) -> int:
        return len(self.key)

    def take(self, chosen: Flags | NDArray[np.int64]) -> "Frame":
        """The chosen pictures: a mask (N,) or indices."""
        columns = {field.name: getattr(self, field.name) for field in fields(self)}
        return Frame(**{k: v if k == "judged" else v[chosen] for k, v in columns.items()})

    @property
    def calibrated(self) -> bool:
        """Whether every probability is known."""
        return not bool(np.isnan(self.probability).any())

    def of(self, label: int) -> Flags:
        """Mask of one class."""
        return self.label == label

    def sources(self, label: int) -> list[str]:
        """Names of the sources of one class, sorted."""
        return sorted(set(self.source[self.of(label)]))

    def transforms(self) -> list[str]:
        """Names of the transforms, in the order they first occur."""
        return list(dict.fromkeys(self.transform))


def build_frame(
    columns: Columns,
    decision: Decision,
    *,
    margin: NDArray[np.float64] | None = None,
    place: str = "predictions",
) -> Frame:
    """The frame of one detector over the readable rows of `columns`.

    Args:
        columns: of `read_columns` or `name_columns`.
        decision: how margins become probabilities and verdicts. Without a calibration, the column
            `probability` is taken as it is.
        margin: (N,) another detector's margins over the same rows, instead of the column `margin`.
        place: for messages.

    Raises:
        EvaluationError: a readable row has neither a margin nor a probability.
    """
    readable = columns["error"] == ""
    margins = columns["margin"] if margin is None else margin
    stored = columns["probability"] if margin is None else np.full(len(readable), np.nan)
    score = np.where(np.isnan(margins), stored, margins)
    if (lacking := np.isnan(score) & readable).any():
        key = columns["key"][np.flatnonzero(lacking)[0]]
        raise EvaluationError(
            f"{place}: picture {key} has no score and no error; a row needs margin, probability or error"
        )
    if np.isnan(margins[readable]).any() and not np.isnan(margins[readable]).all():
        raise EvaluationError(
            f"{place}: some rows have a margin and others only a probability; they do not rank together"
        )
    probability = _probabilities(margins, stored, decision)
    flagged, cleared = _verdicts(probability, columns, decision)
    names = ("key", "source", "generator", "domain", "family", "released", "subset", "transform")
    whole = Frame(
        **{name: columns[name] for name in names},
        label=(columns["label"] == "ai").astype(np.int64),
        score=score,
        probability=probability,
        flagged=flagged,
        cleared=cleared,
        judged=decision.ai is not None and not bool(np.isnan(probability[readable]).any()),
    )
    return whole.take(readable)


def _probabilities(
    margins: NDArray[np.float64], stored: NDArray[np.float64], decision: Decision
) -> NDArray[np.float64]:
    if decision.calibration is None:
        return stored
    with np.errstate(over="ignore"):
        return np.where(np.isnan(margins), stored, decision.calibration.probability(margins))


def _verdicts(probability: NDArray[np.float64], columns: Columns, decision: Decision) -> tuple[Flags, Flags]:
    """Masks of the verdicts `ai` and `real`, by the rule of `detector.scoring.verdict`."""
    if decision.ai is None or decision.real is None:
        return np.zeros(len(probability), bool), np.zeros(len(probability), bool)
    # Where a size is not known (NaN), the picture counts as large enough.
    large = ~(np.fmin(columns["width"], columns["height"]) < decision.min_side_px)
    judged = large & (columns["verdict"] != "out_of_scope")
    flagged = judged & (probability >= decision.ai)
    return flagged, judged & ~flagged & (probability <= decision.real)
