"""The training recipe: one frozen model, read from YAML, unknown keys rejected."""

from pathlib import Path
from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from detector.errors import RecipeError
from detector.model import ModelConfig
from detector.preprocess import Preprocessing
from detector.training.config import StreamedTraining


class LossWeights(BaseModel):
    """Weights of the loss terms. Source: OmniAID, the Mirage configuration."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    orthogonality: float = 0.001
    balance: float = 0.001
    gate: float = 0.1
    label_smoothing: float = Field(default=0.1, ge=0, lt=1)


class StageConfig(BaseModel):
    """How one stage is trained: AdamW without weight decay, cosine to `min_lr`, no warm-up."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    epochs: int = Field(default=1, ge=1)
    batch: int = Field(default=128, ge=2)
    lr: float | None = Field(default=None, gt=0, description="None: 2e-4 * batch / 256, as in the paper")
    head_lr: float | None = Field(default=None, gt=0, description="None: the same as lr")
    min_lr: float = 1e-6

    @property
    def peak_lr(self) -> float:
        """Learning rate at the first step."""
        return self.lr if self.lr is not None else 2e-4 * self.batch / 256


class SampleConfig(BaseModel):
    """Which samples of the data set are used: the most per source, label and split.

    Attributes:
        draws: augmented views of each training picture, taking turns at the views.
        seed: of the augmentation; None: the recipe's.
        balance: which groups of pictures count alike in the probe and the router's stage: both classes, or
            both classes of every domain.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    train_per_source: int = Field(default=10_000, ge=1)
    calibration_per_source: int = Field(default=10_000, ge=1)
    devtest_per_source: int = Field(default=10_000, ge=1)
    draws: int = Field(default=1, ge=1, le=64)
    seed: int | None = None
    balance: Literal["label", "domain"] = "domain"

    @property
    def caps(self) -> dict[str, int]:
        """The most pictures per source and label, by split."""
        return {
            "train": self.train_per_source,
            "calibration": self.calibration_per_source,
            "devtest": self.devtest_per_source,
        }


class TrainRecipe(BaseModel):
    """Everything that decides a training run besides the pictures."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str = "omniaid"
    version: str
    seed: int = 0
    scheme: Literal["two-stage", "experts-only", "joint", "dense"] = Field(
        default="two-stage", description="two-stage is the paper's; the others are for comparison"
    )
    merged_domains: dict[str, str] = Field(
        default_factory=dict, description="domain of the data -> the domain of the model it counts as"
    )
    threads: int = Field(default=0, ge=0, description="0: as many as the process may use")
    model: ModelConfig = ModelConfig()
    preprocessing: Preprocessing = Preprocessing()
    samples: SampleConfig = SampleConfig()
    losses: LossWeights = LossWeights()
    experts: StageConfig = StageConfig()
    router: StageConfig = StageConfig()
    mode: Literal["cached", "streamed"] = Field(
        default="cached", description="on frozen features computed once, or on pixels drawn anew each time"
    )
    streamed: StreamedTraining | None = Field(default=None, description="settings of mode streamed")
    target_false_positive_rate: float = Field(default=0.05, gt=0, lt=1)
    target_false_negative_rate: float = Field(default=0.05, gt=0, lt=1)
    tiers: tuple[str, ...] = ("clean", "web", "hard")
    limits: tuple[str, ...] = Field(default=(), description="known failures, copied into the card")

    @model_validator(mode="after")
    def _settings_belong_to_the_mode(self) -> Self:
        if self.streamed is not None and self.mode != "streamed":
            raise ValueError(f"streamed is given, but mode is {self.mode}; add mode: streamed")
        return self


def read_recipe(path: Path) -> TrainRecipe:
    """The recipe stored at `path`.

    Raises:
        RecipeError: the file is missing, not YAML, or not a recipe.
    """
    import yaml

    try:
        content = yaml.safe_load(path.read_text("utf-8"))
        return TrainRecipe.model_validate(content)
    except FileNotFoundError as error:
        raise RecipeError(f"training recipe {path} does not exist") from error
    except yaml.YAMLError as error:
        raise RecipeError(f"{path} is not YAML: {' '.join(str(error).split())}") from error
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"]) or "the file"
        raise RecipeError(f"{path}: {place}: {first['msg']} (given: {first['input']!r})") from error
