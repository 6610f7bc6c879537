"""One phase while it runs: objective, optimiser, schedule, averaged weights, and what was best so far."""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import LambdaLR
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from detector.model import OmniAID
from detector.training.config import EarlyStop, StreamedTraining
from detector.training.engine import Engine, like, whole
from detector.training.phases import Phase


class Learner:
    """Everything that a phase's steps change."""

    def __init__(self, phase: Phase, model: OmniAID, engine: Engine, settings: StreamedTraining) -> None:
        """A phase at its first step.

        Args:
            phase: what to learn.
            model: trained in place, or, where weights are split over processes, a copy of it.
            engine: of this process.
            settings: averaging, gradient checkpointing.
        """
        self.model = engine.own(model)
        self.model.trunk.checkpointing = settings.gradient_checkpointing
        objective = phase.make(self.model)
        self.module = engine.wrap(objective).train()
        stage = phase.stage
        groups: list[dict[str, Any]] = [
            {"params": list(objective.taught()), "lr": stage.peak_lr},
            {"params": list(self.model.head.linear.parameters()), "lr": stage.head_lr or stage.peak_lr},
        ]
        self.optimizer = torch.optim.AdamW(groups, weight_decay=0.0)
        self.schedule = LambdaLR(
            self.optimizer, [_cosine(stage.min_lr / group["lr"], phase.steps) for group in groups]
        )
        self.trained = nn.ParameterList([p for group in groups for p in group["params"]])
        self.average = (
            AveragedModel(self.trained, multi_avg_fn=get_ema_multi_avg_fn(settings.ema))
            if settings.ema
            else None
        )
        scaler = engine.accelerator.scaler
        self.scaler = scaler if settings.precision == "fp16" else None

    def update(self) -> None:
        """One optimiser step with the gradients that are there."""
        if self.scaler is None:
            self.optimizer.step()
        else:
            self.scaler.step(self.optimizer)
            self.scaler.update()
        self.schedule.step()
        self.optimizer.zero_grad(set_to_none=True)
        if self.average is not None:
            self.average.update_parameters(self.trained)

    @contextmanager
    def averaged(self) -> Iterator[None]:
        """The averaged weights in place of the last ones, where there are any."""
        if self.average is None:
            yield
            return
        kept = [p.detach().clone() for p in self.trained]
        _put(list(self.average.module.parameters()), self.trained)
        try:
            yield
        finally:
            _put(kept, self.trained)

    def weights(self) -> dict[str, Tensor]:
        """What the model is trained to, in one piece on the CPU."""
        return whole(self.model.trainable_state())

    def state(self) -> dict[str, Any]:
        """All of this, in one piece on the CPU."""
        return {
            "weights": self.weights(),
            "optimizer": whole(self.optimizer.state_dict()),
            "schedule": self.schedule.state_dict(),
            "average": None if self.average is None else whole(self.average.state_dict()),
            "scaler": None if self.scaler is None else self.scaler.state_dict(),
        }

    def load(self, state: dict[str, Any]) -> None:
        """Become what `state` gave; the model's weights are loaded before this is made."""
        saved = state["optimizer"]
        slots = {
            number: {name: like(value, parameter) for name, value in saved["state"][number].items()}
            for number, parameter in enumerate(self.trained)
            if number in saved["state"]
        }
        self.optimizer.load_state_dict({"state": slots, "param_groups": saved["param_groups"]})
        self.schedule.load_state_dict(state["schedule"])
        if self.average is not None:
            self.average.n_averaged.copy_(state["average"]["n_averaged"])
            saved_average = [state["average"][f"module.{number}"] for number in range(len(self.trained))]
            _put(
                [like(value, p) for value, p in zip(saved_average, self.trained, strict=True)],
                self.average.module.parameters(),
            )
        if self.scaler is not None:
            self.scaler.load_state_dict(state["scaler"])


@torch.no_grad()
def _put(values: Any, into: Any) -> None:
    for value, parameter in zip(values, into, strict=True):
        parameter.copy_(value)


def _cosine(floor: float, steps: int) -> Any:
    """The factor on a rate at each step: from 1 down to `floor`."""
    return lambda step: floor + (1 - floor) * 0.5 * (1 + math.cos(math.pi * min(step, steps) / steps))


class Stopper:
    """Keeps the best weights, and says when to stop."""

    def __init__(self, settings: EarlyStop) -> None:
        self.settings = settings
        self.best: float | None = None
        self.weights: dict[str, Tensor] | None = None
        self.waited = 0

    def see(self, score: float, weights: dict[str, Tensor]) -> bool:
        """Whether training should end, now that these weights scored this."""
        if self.best is None or score > self.best + self.settings.least_gain:
            self.best, self.weights, self.waited = score, weights, 0
        else:
            self.waited += 1
        return self.waited >= self.settings.patience

    def state(self) -> dict[str, Any]:
        """All it knows."""
        return {"best": self.best, "weights": self.weights, "waited": self.waited}

    def load(self, state: dict[str, Any]) -> None:
        """Become what `state` gave."""
        self.best, self.weights, self.waited = state["best"], state["weights"], state["waited"]
