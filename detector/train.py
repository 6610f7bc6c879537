"""The trainer on cached features: runs phases, keeps checkpoints, goes on exactly where it stopped.

Source: OmniAID (arXiv 2511.08423) and its released implementation.
Differs: the head's initial state, to which it is reset for each phase, is the linear probe on the
frozen features instead of a random draw.
"""

import hashlib
import json
import math
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from detector.errors import RecipeError
from detector.model import OmniAID
from detector.phases import Phase, Phases, TrainingSet
from detector.probe import Probe
from detector.recipe import TrainRecipe

__all__ = ["Trainer", "TrainingSet", "load_trained"]

CHECKPOINT_EVERY = 20
DECIDES_WEIGHTS = {
    "seed",
    "scheme",
    "merged_domains",
    "model",
    "preprocessing",
    "samples",
    "losses",
    "experts",
    "router",
}


class Trainer:
    """Runs the phases in order, and continues exactly where an interrupted run stopped."""

    def __init__(
        self,
        model: OmniAID,
        data: TrainingSet,
        probe: Probe,
        recipe: TrainRecipe,
        folder: Path,
        on_progress: Callable[[str, int, int, dict[str, float]], None] = lambda name, step, steps, metrics: (
            None
        ),
    ) -> None:
        """Trainer writing `checkpoint.pt` and `metrics.jsonl` into `folder`."""
        self.model, self.data, self.probe, self.recipe = model, data, probe, recipe
        self.folder, self.on_progress = folder, on_progress
        self._finished: list[str] = []

    def run(self) -> None:
        """Train all phases; the model holds the result."""
        self.folder.mkdir(parents=True, exist_ok=True)
        saved = self._load()
        for phase in Phases(self.model, self.data, self.recipe):
            if phase.name in self._finished:
                continue
            self._run_phase(phase, saved if saved and saved["phase"] == phase.name else None)
            saved = None
            self._finished.append(phase.name)
            self._save(phase.name, phase.steps, None)

    def _run_phase(self, phase: Phase, saved: dict | None) -> None:
        self.probe.load_into(self.model.head)
        rate, head_rate = phase.stage.peak_lr, phase.stage.head_lr or phase.stage.peak_lr
        groups = [{"params": phase.parameters, "peak": rate}, {"params": phase.head, "peak": head_rate}]
        optimizer = torch.optim.AdamW(groups, lr=rate, weight_decay=0.0)
        first = 0
        if saved is not None and saved["optimizer"] is not None:
            self.model.load_state_dict(saved["model"], strict=False)
            optimizer.load_state_dict(saved["optimizer"])
            first = saved["step"]
        for step in range(first, phase.steps):
            self._step(phase, optimizer, step)
            if (step + 1) % CHECKPOINT_EVERY == 0:
                self._save(phase.name, step + 1, optimizer)

    def _step(self, phase: Phase, optimizer: torch.optim.Optimizer, step: int) -> None:
        cosine = 0.5 * (1 + math.cos(math.pi * step / phase.steps))
        for group in optimizer.param_groups:
            group["lr"] = phase.stage.min_lr + (group["peak"] - phase.stage.min_lr) * cosine
        batch = phase.batch(step)
        total, metrics = phase.loss(batch, phase.weights[torch.from_numpy(batch)])
        value = float(total.detach())
        if not math.isfinite(value):
            raise RecipeError(
                f"phase {phase.name}: the loss is {value} at step {step}; lower the learning rate"
            )
        optimizer.zero_grad(set_to_none=True)
        total.backward()
        optimizer.step()
        metrics = {"loss": value, **metrics}
        self._log({"phase": phase.name, "step": step, "steps": phase.steps, **metrics})
        self.on_progress(phase.name, step + 1, phase.steps, metrics)

    def _log(self, row: dict[str, object]) -> None:
        with (self.folder / "metrics.jsonl").open("a") as file:
            file.write(json.dumps(row) + "\n")

    def _save(self, phase: str, step: int, optimizer: torch.optim.Optimizer | None) -> None:
        state = {
            "identity": self._identity(),
            "finished": self._finished,
            "phase": phase,
            "step": step,
            "model": self.model.trainable_state(),
            "optimizer": None if optimizer is None else optimizer.state_dict(),
        }
        partial = self.folder / "checkpoint.pt.partial"
        torch.save(state, partial)
        partial.replace(self.folder / "checkpoint.pt")

    def _identity(self) -> str:
        """What decides the weights; thresholds, evaluation and texts of the card may change later."""
        taught = hashlib.sha256(self.data.labels.tobytes() + self.data.domains.tobytes()).hexdigest()
        return f"{taught} {self.recipe.model_dump_json(include=DECIDES_WEIGHTS)}"

    def _load(self) -> dict | None:
        path = self.folder / "checkpoint.pt"
        if not path.exists():
            (self.folder / "metrics.jsonl").unlink(missing_ok=True)
            return None
        saved = torch.load(path, weights_only=True)
        if saved["identity"] != self._identity():
            raise RecipeError(
                f"{path} belongs to another recipe or other samples; use another folder or delete it"
            )
        load_trained(self.model, saved["model"])
        self._finished = saved["finished"]
        self._trim_log(saved["phase"], saved["step"])
        return saved

    def _trim_log(self, phase: str, step: int) -> None:
        """Drop the metric rows after the checkpoint: those steps are run, and logged, again."""
        path = self.folder / "metrics.jsonl"
        rows = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
        kept = [
            row
            for row in rows
            if row["phase"] in self._finished or (row["phase"] == phase and row["step"] < step)
        ]
        path.write_text("".join(json.dumps(row) + "\n" for row in kept))


def load_trained(model: OmniAID, state: dict[str, Tensor]) -> None:
    """Load what training changes into a freshly built model, strictly.

    Raises:
        RecipeError: a key is missing or unexpected; the message names it.
    """
    expected = model.trainable_state().keys()
    wrong = sorted(set(expected) ^ set(state))
    if wrong:
        raise RecipeError(f"checkpoint and model differ in {len(wrong)} entries, first: {wrong[0]}")
    model.load_state_dict(state, strict=False)
