"""The card of an exported file, from what its checkpoint says."""

from dataclasses import asdict, dataclass, field
from typing import Any

from pydantic import ValidationError

from detector.calibration import Calibration
from detector.card import ModelCard, Thresholds
from detector.checkpoint import CheckpointCard
from detector.exporting.errors import ExportError
from detector.exporting.pictures import Verdicts
from detector.model import OmniAID
from detector.preprocess import Preprocessing

UNCALIBRATED = Thresholds(
    ai=0.5,
    real=0.5,
    false_positive_rate=1.0,
    false_negative_rate=1.0,
    how="not calibrated: the verdict changes at probability 0.5, and the error rates were not measured (1 is "
    "the worst there is)",
)
NOT_CALIBRATED = "The checkpoint was never calibrated: a probability is the model's own, not a frequency."


@dataclass(frozen=True)
class Exported:
    """What was exported, and what the checks measured; stands in the card under `training.export`."""

    graph: str
    precision: str
    gates: tuple[float, ...] | None = None
    onnx_against_torch: dict[str, float] = field(default_factory=dict)
    int8: dict[str, float] | None = None
    weights_in: str | None = None
    weights_sha256: str | None = None


@dataclass(frozen=True)
class Scoring:
    """What a checkpoint's facts say about scoring with it."""

    preprocessing: Preprocessing
    calibration: Calibration
    thresholds: Thresholds
    calibrated: bool

    @property
    def verdicts(self) -> Verdicts:
        """How margins become verdicts."""
        return Verdicts(self.calibration, self.thresholds.real, self.thresholds.ai)


def read_scoring(checkpoint: CheckpointCard, model: OmniAID) -> Scoring:
    """Preprocessing and calibration from a checkpoint's facts; what is not there is the plainest.

    Args:
        checkpoint: its `facts` may hold `preprocessing` and `calibration` (temperature, bias, thresholds).
        model: whose input is the preprocessing's size.

    Raises:
        ExportError: the facts do not have the fields of a card, or contradict the model.
    """
    size, facts = model.trunk.config.image_px, checkpoint.facts
    told = facts.get("calibration")
    try:
        preprocessing = Preprocessing(**facts.get("preprocessing", {"size_px": size, "views": ("global",)}))
        thresholds = UNCALIBRATED if told is None else Thresholds(**told["thresholds"])
        calibration = Calibration(*(float(told[key]) for key in ("temperature", "bias"))) if told else None
    except (ValidationError, KeyError, TypeError, ValueError) as error:
        reason = error.errors()[0]["msg"] if isinstance(error, ValidationError) else repr(error)
        raise ExportError(f"the checkpoint's facts cannot be used for a card: {reason}") from error
    if preprocessing.size_px != size:
        raise ExportError(
            f"the checkpoint's views are {preprocessing.size_px} px, but its model takes {size} px"
        )
    return Scoring(preprocessing, calibration or Calibration(1.0, 0.0), thresholds, told is not None)


def make_card(
    name: str, sha256: str, checkpoint: CheckpointCard, scoring: Scoring, exported: Exported
) -> ModelCard:
    """The card of an exported file.

    Args:
        name: of the model.
        sha256: of the ONNX file.
        checkpoint: what the file was made from; the first digits of its sha256 are the version.
        scoring: from `read_scoring`.
        exported: what was done and measured.
    """
    facts: dict[str, Any] = {"checkpoint_sha256": checkpoint.sha256, **checkpoint.facts}
    return ModelCard(
        name=name,
        version=checkpoint.sha256[:12],
        sha256=sha256,
        experts=checkpoint.model.expert_names,
        preprocessing=scoring.preprocessing,
        temperature=scoring.calibration.temperature,
        bias=scoring.calibration.bias,
        thresholds=scoring.thresholds,
        training={
            "model": checkpoint.model.model_dump(mode="json"),
            "facts": facts,
            "export": asdict(exported),
        },
        limits=() if scoring.calibrated else (NOT_CALIBRATED,),
    )
