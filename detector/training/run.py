"""A whole run on the pixels: from shards and a recipe to a checkpoint, predictions and a report."""

import hashlib
import json
import platform
import zlib
from collections import Counter
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from detector.checkpoint import save_checkpoint
from detector.errors import RecipeError
from detector.evaluation.predictions import write_predictions
from detector.model import OmniAID, build_model
from detector.recipe import TrainRecipe
from detector.samples import PictureStore, SampleRow, choose_both, list_samples, read_domains
from detector.threads import available_threads
from detector.training.config import StreamedTraining
from detector.training.engine import Engine, open_engine
from detector.training.objectives import RouterObjective
from detector.training.phases import Phase, Samples, index_rows, list_phases
from detector.training.scoring import Job, Score, area_under_curve, score_all
from detector.training.stream import check_lanes
from detector.training.trainer import Progress, Trainer

CHECKPOINT, REPORT, PREDICTIONS = "checkpoint", "report.json", "predictions-devtest.parquet"
JUDGED = "devtest"
# What decides the weights: a run goes on when anything else has changed.
DECIDES = {"seed", "model", "preprocessing", "samples", "losses", "experts", "router", "merged_domains"}
DECIDES_NOT = {"workers", "checkpoint_every", "tensorboard", "strategy"}


def train_streamed(recipe: TrainRecipe, data: Path, run: Path, on_progress: Progress) -> Path | None:
    """The checkpoint's folder in `run`; None on all but the main process.

    Every process of a distributed run calls this; `torchrun` tells each which one it is.

    Args:
        recipe: what to do.
        data: a data set built by `omniaid mirage build`, with splits train and devtest.
        run: folder for state, metrics, checkpoint, predictions and report.
        on_progress: called on the main process with the step's name, how much is done, and of how much.

    Raises:
        RecipeError: the recipe does not fit the processes or the data, or `run` belongs to another.
    """
    settings = recipe.streamed or StreamedTraining()
    with open_engine(settings) as engine:
        torch.set_num_threads(recipe.threads or max(1, available_threads() // engine.processes))
        check_batches(recipe, settings, engine.processes)
        if recipe.scheme != "two-stage":
            raise RecipeError(f"scheme {recipe.scheme} needs mode cached; mode streamed has streamed.stages")
        run.mkdir(parents=True, exist_ok=True)
        splits = _splits(recipe, settings, data)
        phases = list_phases(recipe, settings, splits["train"], _judges(settings, splits))
        model = build_model(recipe.model, seed=recipe.seed)
        trainer = Trainer(
            model,
            recipe,
            settings,
            (data, splits["train"]),
            _stored(data, _judges(settings, splits)),
            run,
            engine,
            _identity(recipe, settings, splits["train"]),
            on_progress,
        )
        trainer.run(phases)
        jobs, scores = _score(model, recipe, settings, data, splits[JUDGED], engine)
        for score in scores if engine.is_main else ():
            if score.error is not None:
                trainer.faults.add(jobs[score.job][0].key, score.error)
        faults = trainer.faults.merged(engine)
        if not engine.is_main:
            return None
        report = {
            "recipe": recipe.model_dump(mode="json"),
            "data": _describe(splits, phases),
            "phases": trainer.results,
            "unreadable": {"pictures": len(faults), "by_key": faults},
            "devtest": _measure(recipe, jobs, scores),
            "processes": engine.processes,
            "versions": {name: version(name) for name in ("torch", "accelerate", "webdataset", "numpy")}
            | {"python": platform.python_version()},
        }
        return _write(run, model, recipe, report, jobs, scores)


def check_batches(recipe: TrainRecipe, settings: StreamedTraining, processes: int) -> None:
    """Make sure that every step is a whole number of micro-batches on every process.

    Raises:
        RecipeError: it is not, and the message says what would be.
    """
    check_lanes(settings.lanes, processes, settings.workers)
    unit = settings.micro_batch * processes
    for name in ("experts", "router"):
        batch = getattr(recipe, name).batch
        if batch % unit:
            raise RecipeError(
                f"{name}.batch is {batch}; {processes} processes with streamed.micro_batch "
                f"{settings.micro_batch} need a multiple of {unit}"
            )


def _splits(recipe: TrainRecipe, settings: StreamedTraining, data: Path) -> dict[str, Samples]:
    """The samples of each split that is used, train ones in stored order."""
    stored = list_samples(data)
    place = {row.key: number for number, row in enumerate(stored)}
    used = dict.fromkeys(("train", JUDGED))
    if settings.early_stop is not None:
        used[settings.early_stop.split] = None
    told, splits = read_domains(data), {}
    for name in used:
        cap = recipe.samples.caps[name]
        rows = sorted(choose_both(stored, name, cap, data), key=lambda row: place[row.key])
        splits[name] = index_rows(rows, told, recipe)
    for shard in sorted({row.shard for samples in splits.values() for row in samples.rows}):
        if not (data / shard).is_file():
            raise RecipeError(f"{data / shard} is missing; the manifest says that it holds samples")
    return splits


def _judges(settings: StreamedTraining, splits: dict[str, Samples]) -> Samples | None:
    return None if settings.early_stop is None else splits[settings.early_stop.split]


def _stored(data: Path, samples: Samples | None) -> tuple[PictureStore, Samples] | None:
    return None if samples is None else (_store(data, samples.rows), samples)


def _store(data: Path, rows: Sequence[SampleRow]) -> PictureStore:
    return PictureStore(data, sorted({row.shard for row in rows}))


def _identity(recipe: TrainRecipe, settings: StreamedTraining, train: Samples) -> str:
    """What decides the weights, as one text."""
    keys = "\n".join(
        f"{row.key} {domain}" for row, domain in zip(train.rows, train.domains.tolist(), strict=True)
    )
    return json.dumps(
        {
            "recipe": recipe.model_dump(mode="json", include=DECIDES),
            "streamed": settings.model_dump(mode="json", exclude=DECIDES_NOT),
            "pictures": zlib.crc32(keys.encode()),
        },
        sort_keys=True,
    )


def _score(
    model: OmniAID,
    recipe: TrainRecipe,
    settings: StreamedTraining,
    data: Path,
    samples: Samples,
    engine: Engine,
) -> tuple[list[Job], list[Score]]:
    """Every picture of a split under every tier of the recipe, by the finished model."""
    jobs = [(row, tier) for tier in recipe.tiers for row in samples.rows]
    module = engine.wrap(RouterObjective(engine.own(model), recipe.losses))
    store = _store(data, samples.rows)
    return jobs, score_all(module, engine, jobs, store, recipe.preprocessing, settings.micro_batch)


def _describe(splits: dict[str, Samples], phases: Sequence[Phase]) -> dict[str, Any]:
    """What was used: counts per split and class, one hash over all keys, and how often each group is seen."""
    keys = sorted(row.key for samples in splits.values() for row in samples.rows)
    counts = {
        name: dict(sorted(Counter(("real", "ai")[row.label] for row in samples.rows).items()))
        for name, samples in splits.items()
    }
    return {
        "keys_sha256": hashlib.sha256("\n".join(keys).encode()).hexdigest(),
        "pictures": counts,
        "shown_per_epoch": {phase.name: phase.plan.rates() for phase in phases},
    }


def _measure(recipe: TrainRecipe, jobs: Sequence[Job], scores: Sequence[Score]) -> dict[str, Any]:
    """AUROC and counts by tier."""
    table = {}
    for tier in recipe.tiers:
        chosen = [score for score in scores if jobs[score.job][1] == tier]
        area = area_under_curve(jobs, chosen)
        table[tier] = {
            "pictures": len(chosen),
            "scored": sum(score.margin is not None for score in chosen),
            "auroc": None if area is None else round(area, 4),
        }
    return table


def _write(
    run: Path,
    model: OmniAID,
    recipe: TrainRecipe,
    report: dict[str, Any],
    jobs: Sequence[Job],
    scores: Sequence[Score],
) -> Path:
    predictions = []
    for score in scores:
        row, tier = jobs[score.job]
        fields = {name: getattr(row, name) for name in ("key", "source", "generator", "domain", "label")}
        predictions.append(fields | {"tier": tier, "margin": score.margin, "error": score.error})
    write_predictions(predictions, run / PREDICTIONS)
    facts = {"preprocessing": recipe.preprocessing.model_dump(mode="json"), "training": report}
    save_checkpoint(model, run / CHECKPOINT, facts)
    partial = run / f"{REPORT}.partial"
    partial.write_text(json.dumps(report, indent=1) + "\n", "utf-8")
    partial.replace(run / REPORT)
    return run / CHECKPOINT
