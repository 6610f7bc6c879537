"""Runs the phases in order on one or many devices, and goes on exactly where a killed run stopped.

Source: OmniAID (arXiv 2511.08423) and its released implementation.
Differs: pictures of one class or domain are shown more or less often so that groups count alike;
augmentation is this project's; random draws depend on a step's number alone, so that no generator's
state needs saving.
"""

import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from detector.errors import RecipeError
from detector.model import OmniAID
from detector.recipe import TrainRecipe
from detector.samples import PictureStore
from detector.training.config import StreamedTraining
from detector.training.engine import Engine
from detector.training.faults import Faults
from detector.training.journal import Journal, trim
from detector.training.learner import Learner, Stopper
from detector.training.phases import Phase, Samples
from detector.training.scoring import Job, area_under_curve, score_all
from detector.training.state import read_state, restore, write_state
from detector.training.stream import MicroBatch, Source, load_epoch

Progress = Callable[[str, int, int], None]
PLAIN = "clean"


class Trainer:
    """Everything a run needs; `run` trains, the model holds the result."""

    def __init__(
        self,
        model: OmniAID,
        recipe: TrainRecipe,
        settings: StreamedTraining,
        data: tuple[Path, Samples],
        judges: tuple[PictureStore, Samples] | None,
        folder: Path,
        engine: Engine,
        identity: str,
        on_progress: Progress,
    ) -> None:
        """Trainer that writes `state.pt` and `metrics.jsonl` into `folder`.

        Args:
            model: untrained; its head's weights are what every phase begins with.
            recipe: the run's.
            settings: the recipe's part for this way of training.
            data: folder of the shards, and the pictures to learn from.
            judges: pictures that stop a phase early.
            folder: of the run.
            engine: of this process.
            identity: what decides the weights.
            on_progress: called on the main process with a phase, the steps done, and of how many.
        """
        self.model, self.recipe, self.settings = model, recipe, settings
        (self.data, self.train), self.judges = data, judges
        self.folder, self.engine, self.identity = folder, engine, identity
        self.on_progress = on_progress
        self.fresh_head = {name: value.clone() for name, value in model.head.state_dict().items()}
        self.faults = Faults()
        self.results: dict[str, dict[str, Any]] = {}

    def run(self, phases: list[Phase]) -> None:
        """Train all phases."""
        saved = read_state(self.folder, self.identity)
        finished = list(saved["results"]) if saved else []
        if self.engine.is_main:
            trim(self.folder, finished, *((saved["phase"], saved["step"]) if saved else ("", 0)))
        if saved:
            restore(self.model, saved["weights"])
            self.results = saved["results"]
            self.faults = Faults(saved["bad"] if self.engine.is_main else {})
        self.journal = Journal(self.folder, writes=self.engine.is_main, tensorboard=self.settings.tensorboard)
        for phase in phases:
            if phase.name in finished:
                continue
            begun = saved if saved and saved["phase"] == phase.name and saved["learner"] else None
            self._run_phase(phase, begun)
        self.journal.close()

    def _run_phase(self, phase: Phase, saved: dict[str, Any] | None) -> None:
        if saved is None:
            self.model.head.load_state_dict(self.fresh_head)
        learner = Learner(phase, self.model, self.engine, self.settings)
        stopper = Stopper(self.settings.early_stop) if self.settings.early_stop else None
        first = 0
        if saved is not None:
            first = saved["step"]
            learner.load(saved["learner"])
            if stopper is not None:
                stopper.load(saved["stopper"])
        step = self._steps(phase, learner, stopper, first)
        with learner.averaged():
            weights = learner.weights()
        if stopper is not None and stopper.weights is not None:
            weights = stopper.weights
        restore(self.model, weights)
        best = stopper.best if stopper else None
        self.results[phase.name] = {"steps": step, "planned": phase.steps, "auroc": best}
        self._save(phase.name, step, None, None)

    def _steps(self, phase: Phase, learner: Learner, stopper: Stopper | None, first: int) -> int:
        """How many steps were made when the phase ended."""
        batches = self._batches(phase, first)
        for step in range(first, phase.steps):
            self._step(phase, learner, batches, step)
            ends = stopper is not None and self._judge(phase, learner, stopper, step)
            if ends:
                return step + 1
            if (step + 1) % self.settings.checkpoint_every == 0 and step + 1 < phase.steps:
                self._save(phase.name, step + 1, learner, stopper)
        return phase.steps

    def _share(self, phase: Phase) -> int:
        """Micro-batches that this process makes in one step."""
        return phase.stage.batch // self.settings.micro_batch // self.engine.processes

    def _batches(self, phase: Phase, first: int) -> Iterator[MicroBatch]:
        """This process's micro-batches from step `first` on."""
        settings, engine = self.settings, self.engine
        source = Source(
            self.data,
            self.train.rows,
            self.train.domains,
            phase.plan,
            self.recipe.preprocessing,
            settings.micro_batch,
            settings.shuffle,
            self.recipe.seed if self.recipe.samples.seed is None else self.recipe.samples.seed,
        )
        epoch, place = divmod(first, phase.epoch_steps)
        skip = place * self._share(phase)
        for number in range(epoch, phase.stage.epochs):
            yield from load_epoch(
                source,
                number,
                skip if number == epoch else 0,
                rank=engine.rank,
                processes=engine.processes,
                workers=settings.workers,
            )

    def _step(self, phase: Phase, learner: Learner, batches: Iterator[MicroBatch], step: int) -> None:
        share, rate = self._share(phase), learner.schedule.get_last_lr()[0]
        sums: dict[str, Tensor] = {}
        for turn in range(share):
            batch = next(batches)
            for key, reason in batch.bad:
                self.faults.add(key, reason)
            torch.manual_seed(self._draw(phase, step, turn))
            parts = self._backward(learner, batch, share, last=turn == share - 1)
            for name, value in parts.items():
                sums[name] = sums.get(name, 0.0) + value / share
        metrics = self._mean(sums)
        if not math.isfinite(metrics["loss"]):
            raise RecipeError(
                f"phase {phase.name}: the loss is {metrics['loss']} at step {step}; lower the learning rate"
            )
        learner.update()
        row = {"epoch": step // phase.epoch_steps, "steps": phase.steps, "lr": rate, **metrics}
        self.journal.log(phase.name, step, row)
        self._tell(phase.name, step + 1, phase.steps)

    def _draw(self, phase: Phase, step: int, turn: int) -> int:
        """The seed of one micro-batch's random draws, whichever process makes it."""
        number = (step * self._share(phase) + turn) * self.engine.processes + self.engine.rank
        return int(np.random.SeedSequence([self.recipe.seed, phase.number, number]).generate_state(1)[0])

    def _backward(self, learner: Learner, batch: MicroBatch, share: int, *, last: bool) -> dict[str, Tensor]:
        """The parts of one micro-batch's loss, after its gradients were added up.

        A picture that is missing leaves a gap: the others do not count for more.
        """
        device, there = self.engine.device, len(batch.labels) / batch.planned
        tensors = (part.to(device, non_blocking=True) for part in batch[:3])
        with self.engine.accumulate(learner.module, last=last):
            with self.engine.autocast():
                parts = learner.module(*tensors)
            self.engine.accelerator.backward(parts["loss"] * (there / share))
        return {name: value.detach() * there for name, value in parts.items() if name != "margin"}

    def _mean(self, sums: dict[str, Tensor]) -> dict[str, float]:
        """The means over processes."""
        values = self.engine.mean(torch.stack([value.float() for value in sums.values()]))
        return dict(zip(sums, values.tolist(), strict=True))

    def _judge(self, phase: Phase, learner: Learner, stopper: Stopper, step: int) -> bool:
        """Whether the phase should end; pictures are only scored when it is time."""
        is_due = (step + 1) % stopper.settings.every == 0 or step + 1 == phase.steps
        if self.judges is None or not is_due:
            return False
        store, samples = self.judges
        jobs: list[Job] = [
            (row, PLAIN) for row, judged in zip(samples.rows, phase.judged, strict=True) if judged
        ]
        if len({row.label for row, _ in jobs}) < 2:
            return False
        with learner.averaged():
            scores = score_all(
                learner.module, self.engine, jobs, store, self.recipe.preprocessing, self.settings.micro_batch
            )
            area = area_under_curve(jobs, scores)
            weights = learner.weights()
        if area is None:
            return False
        self.journal.log(phase.name, step, {"auroc": area, "scored": len(jobs)})
        return stopper.see(area, weights)

    def _tell(self, name: str, done: int, total: int) -> None:
        if self.engine.is_main:
            self.on_progress(name, done, total)

    def _save(self, phase: str, step: int, learner: Learner | None, stopper: Stopper | None) -> None:
        """Write the state; a phase that is done leaves its weights and its result."""
        found = learner.state() if learner else None
        bad = self.faults.merged(self.engine)
        if not self.engine.is_main:
            return
        weights = found["weights"] if found else self.model.trainable_state()
        state = {
            "identity": self.identity,
            "results": self.results,
            "phase": phase,
            "step": step,
            "weights": weights,
            "learner": found,
            "stopper": stopper.state() if stopper else None,
            "bad": bad,
        }
        write_state(self.folder, state)
