"""The JSON card that travels beside every ONNX model."""

from pathlib import Path
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from detector.errors import ModelError
from detector.preprocess import Preprocessing

# The expert whose gate is 1 by construction, so its weight says nothing about one picture.
ARTIFACT = "artifact"
MODEL_CARD = "the model card"


class Thresholds(BaseModel):
    """Where the three-state verdict changes, on calibrated probabilities."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    ai: float = Field(ge=0, le=1, description="`ai` at or above")
    real: float = Field(ge=0, le=1, description="`real` at or below")
    false_positive_rate: float = Field(
        description="measured share of real calibration pictures at or above `ai`"
    )
    false_negative_rate: float = Field(
        description="measured share of AI calibration pictures at or below `real`"
    )
    how: str = Field(description="how the thresholds were set, one sentence")
    source: str = Field(default=MODEL_CARD, description="where they come from, in words")
    target: float | None = Field(
        default=None, gt=0, lt=1, description="false-positive rate that `ai` was set for; None: see `how`"
    )
    upper_bound: float | None = Field(
        default=None, ge=0, le=1, description="of the false-positive rate; `how` says with what confidence"
    )


class KnownScore(BaseModel):
    """A tiny picture, and what the model says of it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    png: str = Field(description="the picture, a PNG file in base64")
    margin: float = Field(description="AI-minus-real logit of its first view")


class SelfTest(BaseModel):
    """What a model must answer before it serves."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    pictures: tuple[KnownScore, ...] = Field(default=(), description="at least two, with different margins")
    tolerance: float = Field(default=0.05, gt=0, description="largest deviation of a margin")
    why_none: str = Field(default="", description="why the model need not pass any test, for toy models")

    @model_validator(mode="after")
    def _tests_or_says_why_not(self) -> Self:
        margins = [one.margin for one in self.pictures]
        if self.why_none and margins:
            raise ValueError("a self-test holds either pictures or why there are none")
        if not self.why_none and (len(margins) < 2 or max(margins) - min(margins) <= 2 * self.tolerance):
            raise ValueError("a self-test needs two pictures with margins over twice the tolerance apart")
        return self


class ModelCard(BaseModel):
    """What a model is, how it was made, how well it does, and where it fails."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    version: str
    sha256: str = Field(description="of the ONNX file this card belongs to")
    experts: tuple[str, ...] = Field(description="names of the gate outputs, in order")
    preprocessing: Preprocessing
    temperature: float = Field(gt=0, description="logits are divided by this before the softmax")
    bias: float = Field(default=0.0, description="added to the AI-minus-real logit before the temperature")
    thresholds: Thresholds
    operating_points: tuple[Thresholds, ...] = Field(
        default=(), description="thresholds for other false-positive rates, each with its `target`"
    )
    min_side_px: int = Field(default=128, description="below this shorter side the verdict is `out_of_scope`")
    self_test: SelfTest | None = Field(
        default=None, description="known scores; None: only a constant answer is refused"
    )
    training: dict[str, Any] = Field(default_factory=dict, description="data, recipe, seeds, versions")
    metrics: dict[str, Any] = Field(default_factory=dict, description="tables on the devtest split")
    limits: tuple[str, ...] = Field(default=(), description="known failures, one sentence each")


def read_card(path: Path) -> ModelCard:
    """The card stored at `path`.

    Raises:
        ModelError: the file is missing, not JSON, or not a card.
    """
    try:
        return ModelCard.model_validate_json(path.read_text("utf-8"))
    except FileNotFoundError as error:
        raise ModelError(f"{path} does not exist; every ONNX model needs its card beside it") from error
    except (ValidationError, UnicodeDecodeError) as error:
        reason = error.errors()[0]["msg"] if isinstance(error, ValidationError) else "it is not UTF-8 text"
        raise ModelError(f"{path} is not a model card: {reason}") from error
