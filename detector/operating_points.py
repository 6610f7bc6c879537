"""Which thresholds a scan uses: the card's own, those of another operating point, or a person's own file."""

from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from detector.card import ModelCard, Thresholds
from detector.errors import DetectorError
from detector.paths import reason
from detector.report import ModelIdentity

SAME_RATE = 1e-9


class FittedThresholds(BaseModel):
    """Thresholds fitted on a person's own real pictures; what `omniaid calibrate` writes."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Literal["omniaid-thresholds-1"] = "omniaid-thresholds-1"
    model: ModelIdentity = Field(description="whose scores they hold for; no other model accepts them")
    thresholds: Thresholds
    confidence: float = Field(gt=0, lt=1, description="of the upper bound of the false-positive rate")
    pictures: int = Field(ge=1, description="real pictures that they were fitted on")
    flagged: int = Field(ge=0, description="of these at or above `ai`")
    left_out: dict[str, int] = Field(default_factory=dict, description="pictures not used, by reason")
    pictures_sha256: str = Field(description="of the sorted hashes of the pictures' bytes")


def settle_thresholds(
    card: ModelCard, file: Path | None = None, false_positive_rate: float | None = None
) -> ModelCard:
    """The card with the thresholds that are asked for; without a wish, its own.

    Args:
        card: of the model.
        file: written by `omniaid calibrate` for this model.
        false_positive_rate: of one of the card's operating points, e.g. 0.01.

    Raises:
        DetectorError: both are given, the file cannot be used, or there is no such operating point.
    """
    if file is not None and false_positive_rate is not None:
        raise DetectorError("give either a thresholds file or a false-positive rate, not both")
    if file is not None:
        return card.model_copy(update={"thresholds": read_thresholds(file, card)})
    if false_positive_rate is not None:
        return card.model_copy(update={"thresholds": at_rate(card, false_positive_rate)})
    return card


def at_rate(card: ModelCard, rate: float) -> Thresholds:
    """The card's thresholds for a false-positive rate.

    Raises:
        DetectorError: it has none for that rate; names those it has.
    """
    points = [point for point in (*card.operating_points, card.thresholds) if point.target is not None]
    for point in points:
        if abs((point.target or 0) - rate) < SAME_RATE:
            return point
    known = ", ".join(sorted({f"{point.target:g}" for point in points})) or "none"
    raise DetectorError(
        f"model {card.name} {card.version} has no thresholds for a false-positive rate of {rate:g} (it has: "
        f"{known}); `omniaid calibrate` fits some on your own real pictures"
    )


def read_thresholds(path: Path, card: ModelCard) -> Thresholds:
    """The thresholds in a file of `omniaid calibrate`.

    Raises:
        DetectorError: the file is missing, is not such a file, or was fitted for another model.
    """
    try:
        fitted = FittedThresholds.model_validate_json(path.read_text("utf-8"))
    except OSError as error:
        raise DetectorError(f"thresholds file {path} cannot be read: {reason(error)}") from error
    except (ValidationError, UnicodeDecodeError) as error:
        why = error.errors()[0]["msg"] if isinstance(error, ValidationError) else "it is not UTF-8 text"
        raise DetectorError(f"{path} is not a thresholds file of `omniaid calibrate`: {why}") from error
    if fitted.model.sha256 != card.sha256:
        raise DetectorError(
            f"{path} was fitted for model {fitted.model.name} {fitted.model.version} "
            f"({fitted.model.sha256[:12]}...), not for {card.name} {card.version} ({card.sha256[:12]}...); "
            "calibrate again with this model"
        )
    return fitted.thresholds.model_copy(update={"source": f"the thresholds file {path.name}"})
