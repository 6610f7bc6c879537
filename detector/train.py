"""Two-stage training on cached features: experts one after another, then router and head.

Source: OmniAID (arXiv 2511.08423) and its released implementation.
Differs: the head's initial state, to which it is reset for each expert and for stage 2, is the
linear probe on the frozen features instead of a random draw; samples are weighted so that both
classes count alike within a domain; augmentation is drawn once per sample.
"""

import json
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from detector.errors import RecipeError
from detector.features import FeatureCache
from detector.model import OmniAID
from detector.probe import Probe, balance_weights
from detector.recipe import StageConfig, TrainRecipe
from moe_core.losses import balance_loss, gate_loss, orthogonality_loss

CHECKPOINT_EVERY = 20
DECIDES_WEIGHTS = {"seed", "model", "preprocessing", "samples", "losses", "experts", "router"}


@dataclass(frozen=True)
class TrainingSet:
    """What both stages learn from; every array has one entry per cached view.

    Attributes:
        labels: (N,) 0 real, 1 AI.
        domains: (N,) index of the semantic domain, which the router is taught; -1 for artifact pairs, -2
            for pictures whose domain is not known: they train the router's stage and no expert.
    """

    cache: FeatureCache
    labels: NDArray[np.int64]
    domains: NDArray[np.int64]


@dataclass
class Phase:
    """One optimiser's life: an expert of stage 1, or stage 2."""

    name: str
    stage: StageConfig
    index: NDArray[np.int64]
    loss: Callable[[NDArray[np.int64], Tensor], tuple[Tensor, dict[str, float]]]
    parameters: list[nn.Parameter]
    head: list[nn.Parameter]
    seed: int
    weights: Tensor = field(default_factory=lambda: torch.zeros(0))

    @property
    def steps(self) -> int:
        """Optimiser steps in all epochs; the last batch of an epoch may be smaller."""
        return self.stage.epochs * math.ceil(len(self.index) / self.stage.batch)

    def batch(self, step: int) -> NDArray[np.int64]:
        """Sample numbers of one step: a permutation of the phase's samples for each epoch."""
        per_epoch = math.ceil(len(self.index) / self.stage.batch)
        epoch, place = divmod(step, per_epoch)
        order = np.random.default_rng([self.seed, epoch]).permutation(self.index)
        return np.sort(order[place * self.stage.batch : (place + 1) * self.stage.batch])


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
        for phase in self._phases():
            if phase.name in self._finished:
                continue
            self._run_phase(phase, saved if saved and saved["phase"] == phase.name else None)
            saved = None
            self._finished.append(phase.name)
            self._save(phase.name, phase.steps, None)

    def _phases(self) -> Iterator[Phase]:
        names = self.model.config.expert_names
        for expert, name in enumerate(names):
            index = np.flatnonzero(self._members(expert))
            if len(np.unique(self.data.labels[index])) < 2:
                raise RecipeError(f"expert {name!r} has no training pictures of one class; both are needed")
            yield self._expert_phase(expert, name, index)
        yield self._router_phase()

    def _members(self, expert: int) -> NDArray[np.bool_]:
        artifact = expert == len(self.model.config.domains)
        return self.data.domains == (-1 if artifact else expert)

    def _expert_phase(self, expert: int, name: str, index: NDArray[np.int64]) -> Phase:
        """Stage 1: hard-sampled pictures of one domain train one expert and a fresh head."""
        layers = self.model.expert_layers()
        earlier = tuple(range(expert)) if name in self.model.config.domains else ()
        gate = F.one_hot(torch.tensor(expert), len(self.model.config.expert_names)).float()

        def loss(batch: NDArray[np.int64], weights: Tensor) -> tuple[Tensor, dict[str, float]]:
            features = self.model.trunk.finish(self.data.cache.shared(batch), gate.expand(len(batch), -1))
            logits = self.model.head(features)
            decision = self._decision_loss(logits, batch, weights)
            apart = (
                orthogonality_loss(layers, expert, earlier)
                if self.model.config.experts.kind == "svd"
                else None
            )
            total = decision if apart is None else decision + self.recipe.losses.orthogonality * apart
            return total, {
                "decision": float(decision.detach()),
                "orthogonality": 0.0 if apart is None else float(apart.detach()),
            }

        experts = [p for layer in layers for p in (layer.u, layer.s, layer.v) if p.requires_grad]
        weights = balance_weights(self.data.labels[index].tolist())
        return self._phase(f"expert-{name}", self.recipe.experts, index, loss, experts, 1 + expert, weights)

    def _router_phase(self) -> Phase:
        """Stage 2: merged experts stay as they are; router and a fresh head train on everything."""
        index = np.arange(len(self.data.labels))

        def loss(batch: NDArray[np.int64], weights: Tensor) -> tuple[Tensor, dict[str, float]]:
            cache, losses = self.data.cache, self.recipe.losses
            router_logits, routing, gates = self.model.route_features(cache.features(batch))
            logits = self.model.head(self.model.trunk.finish(cache.shared(batch), gates))
            decision = self._decision_loss(logits, batch, weights)
            balance = balance_loss(router_logits, routing)
            gate = gate_loss(router_logits, torch.from_numpy(self.data.domains[batch]))
            total = decision + losses.balance * balance + losses.gate * gate
            parts = {"decision": decision, "balance": balance, "gate": gate}
            return total, {name: float(value.detach()) for name, value in parts.items()}

        groups = list(zip(self.data.domains.tolist(), self.data.labels.tolist(), strict=True))
        router = list(self.model.router.parameters())
        return self._phase("router", self.recipe.router, index, loss, router, 100, balance_weights(groups))

    def _phase(
        self,
        name: str,
        stage: StageConfig,
        index: NDArray[np.int64],
        loss: Callable[[NDArray[np.int64], Tensor], tuple[Tensor, dict[str, float]]],
        parameters: list[nn.Parameter],
        offset: int,
        weights: NDArray[np.float64],
    ) -> Phase:
        spread = np.zeros(len(self.data.labels))
        spread[index] = weights
        head = list(self.model.head.linear.parameters())
        seed = self.recipe.seed * 1000 + offset
        return Phase(name, stage, index, loss, parameters, head, seed, torch.from_numpy(spread).float())

    def _decision_loss(self, logits: Tensor, batch: NDArray[np.int64], weights: Tensor) -> Tensor:
        labels = torch.from_numpy(self.data.labels[batch])
        each = F.cross_entropy(
            logits, labels, reduction="none", label_smoothing=self.recipe.losses.label_smoothing
        )
        return (each * weights).mean()

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
        return self.recipe.model_dump_json(include=DECIDES_WEIGHTS)

    def _load(self) -> dict | None:
        path = self.folder / "checkpoint.pt"
        if not path.exists():
            (self.folder / "metrics.jsonl").unlink(missing_ok=True)
            return None
        saved = torch.load(path, weights_only=True)
        if saved["identity"] != self._identity():
            raise RecipeError(f"{path} belongs to another recipe; use another folder or delete it")
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
