"""Settings of training on the pixels; stages, losses and samples are the recipe's."""

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, PositiveFloat


class EarlyStop(BaseModel):
    """When a phase ends before its last step: its AUROC on a split it does not learn from stays behind.

    Attributes:
        split: whose pictures are scored; an expert is judged by those of its own domain.
        every: optimiser steps between two scorings; the last step is always scored.
        patience: how many scorings without a better AUROC end the phase; the best weights are kept.
        least_gain: what counts as better.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    split: Literal["calibration", "devtest"] = "devtest"
    every: int = Field(default=100, ge=1)
    patience: int = Field(default=3, ge=1)
    least_gain: float = Field(default=0.0, ge=0)


class Balance(BaseModel):
    """How often pictures of each group are seen.

    Attributes:
        by: what makes a group; `none` shows every picture once an epoch.
        weights: of groups by name, 1 where none is given: `anime/ai` where domain and label make a group,
            `ai` where the label does, as always in the phase of one expert.
        max_repeat: a picture of a small group is seen at most about this often in one epoch.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    by: Literal["domain-and-label", "label", "none"] = "domain-and-label"
    weights: dict[str, PositiveFloat] = Field(default_factory=dict)
    max_repeat: float = Field(default=4.0, ge=1)


class StreamedTraining(BaseModel):
    """How a run on the pixels goes; the weights it ends with depend on neither processes nor workers.

    Attributes:
        stages: `two-stage`, the paper's: experts one after another, then the router; `end-to-end`: all at
            once, as the recipe's `experts` stage says, and kept apart from one another in all pairs.
        micro_batch: pictures in one forward pass; a stage's batch is made of several, on all devices.
        lanes: streams that the data is cut into; processes times workers must divide it.
        workers: data-loading processes of each training process; 0 loads on a thread of its own.
        shuffle: pictures of one lane that wait in memory to be drawn in random order.
        precision: what the forward pass computes in; weights and optimiser stay float32.
        gradient_checkpointing: compute blocks again in the backward pass instead of keeping them.
        strategy: how many devices share the work; `fsdp` also splits weights and optimiser over them.
        ema: share of the averaged weights that one step keeps, such as 0.999; None: no averaging.
        checkpoint_every: optimiser steps between two saved states.
        tensorboard: whether curves also go to `tensorboard/` in the run's folder.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    stages: Literal["two-stage", "end-to-end"] = "two-stage"
    micro_batch: int = Field(default=16, ge=1)
    lanes: int = Field(default=8, ge=1)
    workers: int = Field(default=0, ge=0)
    shuffle: int = Field(default=256, ge=1)
    balance: Balance = Balance()
    precision: Literal["float32", "bf16", "fp16"] = "float32"
    gradient_checkpointing: bool = False
    strategy: Literal["ddp", "fsdp"] = "ddp"
    ema: float | None = Field(default=None, gt=0, lt=1)
    early_stop: EarlyStop | None = None
    checkpoint_every: int = Field(default=100, ge=1)
    tensorboard: bool = False
