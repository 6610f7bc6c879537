"""The JSON card that travels beside every ONNX model."""

from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from detector.errors import ModelError
from detector.preprocess import Preprocessing

# The expert whose gate is 1 by construction, so its weight says nothing about one picture.
ARTIFACT = "artifact"


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
    min_side_px: int = Field(default=128, description="below this shorter side the verdict is `uncertain`")
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
