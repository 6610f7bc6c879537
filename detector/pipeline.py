"""From a built data set to a shipped model: features, probe, two stages, calibration, tables, ONNX, card.

Every step leaves its result in the run folder and is skipped when that result is there, so the same
command continues an interrupted run.
"""

import hashlib
import json
import platform
from collections import Counter
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from detector.calibration import Calibration, fit_calibration, set_thresholds
from detector.card import ARTIFACT, ModelCard, Thresholds
from detector.domain_head import ARTIFACT_PAIR, NO_DOMAIN, index_domains
from detector.errors import RecipeError
from detector.evaluate import Prediction, predict, read_predictions, write_predictions
from detector.export import check_export, export_onnx
from detector.features import build_cache
from detector.metrics import summarise
from detector.model import OmniAID, build_model
from detector.probe import Probe, balance_weights, fit_probe
from detector.recipe import TrainRecipe
from detector.samples import DOMAINS_FILE, MIXED, PictureStore, SampleRow, choose, list_samples, read_domains
from detector.threads import available_threads
from detector.train import Trainer, TrainingSet

Progress = Callable[[str, int, int], None]


def train_model(recipe: TrainRecipe, data: Path, run: Path, on_progress: Progress) -> Path:
    """The exported ONNX file in `run`, with its card beside it, trained as `recipe` says on `data`.

    Args:
        recipe: what to do.
        data: a data set built by `omniaid mirage build`, with splits train, calibration and devtest.
        run: folder for features, checkpoints, metrics, predictions, model and card.
        on_progress: called with the step's name, how much is done, and of how much.

    Raises:
        RecipeError: the data set lacks a split or a class, or `run` belongs to other settings.
    """
    torch.set_num_threads(recipe.threads or available_threads())
    torch.manual_seed(recipe.seed)
    run.mkdir(parents=True, exist_ok=True)
    splits = _splits(recipe, data)
    used = [row for rows in splits.values() for row in rows]
    store = PictureStore(data, sorted({row.shard for row in used}))
    model = build_model(recipe.model, seed=recipe.seed)
    training, probe, teaching = _prepare(recipe, model, splits, store, run, read_domains(data), on_progress)
    Trainer(
        model, training, probe, recipe, run, lambda name, step, steps, metrics: on_progress(name, step, steps)
    ).run()
    calibration = _predictions(
        model, probe, _calibration_jobs(recipe, splits), store, recipe, run, on_progress
    )
    devtest = _predictions(model, probe, _devtest_jobs(recipe, splits), store, recipe, run, on_progress)
    return _ship(recipe, data, run, model, splits, teaching, probe, calibration, devtest)


def _splits(recipe: TrainRecipe, data: Path) -> dict[str, list[SampleRow]]:
    rows, caps = list_samples(data), recipe.samples
    splits = {
        "train": choose(rows, "train", caps.train_per_source),
        "calibration": choose(rows, "calibration", caps.calibration_per_source),
        "devtest": choose(rows, "devtest", caps.devtest_per_source),
    }
    for name, chosen in splits.items():
        if len({row.label for row in chosen}) < 2:
            raise RecipeError(
                f"{data}: split {name!r} holds no pictures of one class; real and AI are both needed"
            )
    return splits


def _prepare(
    recipe: TrainRecipe,
    model: OmniAID,
    splits: dict[str, list[SampleRow]],
    store: PictureStore,
    run: Path,
    told: dict[str, str],
    on_progress: Progress,
) -> tuple[TrainingSet, Probe, dict[str, Any]]:
    """Cached features of the train split, the linear probe, and domain labels for mixed sources.

    Args:
        told: domain by key, from `omniaid domains`; a mixed picture not in it is labelled by the head.
    """
    caches = {}
    for name in ("calibration", "train"):
        rows = splits[name]
        report = _reporter(on_progress, f"features of {name}", len(rows))
        folder = run / f"features-{name}"
        caches[name] = build_cache(
            model, rows, store, folder, recipe.preprocessing, seed=recipe.seed, on_progress=report
        )
    train, held_out = splits["train"], splits["calibration"]
    labels = _labels(train)
    domains = index_domains(caches["train"].frozen, train, told, recipe.model.domains)
    groups = list(zip(domains.tolist(), labels.tolist(), strict=True))
    validation = (np.asarray(caches["calibration"].frozen), _labels(held_out))
    probe = fit_probe(np.asarray(caches["train"].frozen), labels, balance_weights(groups), validation)
    named = {**dict(enumerate(recipe.model.domains)), ARTIFACT_PAIR: ARTIFACT, NO_DOMAIN: MIXED}
    teaching = {
        "probe_strength": probe.strength,
        "pictures_per_expert": {
            f"{named[d]} / {('real', 'ai')[c]}": n for (d, c), n in sorted(Counter(groups).items())
        },
        "domains_from": dict(sorted(Counter(_origin(row, told, recipe) for row in train).items())),
    }
    return TrainingSet(caches["train"], labels, domains), probe, teaching


def _origin(row: SampleRow, told: dict[str, str], recipe: TrainRecipe) -> str:
    """Who decided on a picture's domain, or that it stays `mixed`."""
    if row.domain in recipe.model.expert_names:
        return "recipe"
    return DOMAINS_FILE if row.key in told else "head"


def _labels(rows: Sequence[SampleRow]) -> NDArray[np.int64]:
    return np.array([row.label for row in rows], dtype=np.int64)


def _reporter(on_progress: Progress, name: str, total: int) -> Callable[[int], None]:
    return lambda done: on_progress(name, done, total)


def _calibration_jobs(
    recipe: TrainRecipe, splits: dict[str, list[SampleRow]]
) -> tuple[str, list[tuple[SampleRow, str]]]:
    """Each calibration picture once, the tiers taking turns."""
    tiers = recipe.tiers
    rows = [row for row in splits["calibration"] if row.pair is None]
    return "calibration", [(row, tiers[place % len(tiers)]) for place, row in enumerate(rows)]


def _devtest_jobs(
    recipe: TrainRecipe, splits: dict[str, list[SampleRow]]
) -> tuple[str, list[tuple[SampleRow, str]]]:
    return "devtest", [(row, tier) for tier in recipe.tiers for row in splits["devtest"]]


def _predictions(
    model: OmniAID,
    probe: Probe,
    work: tuple[str, list[tuple[SampleRow, str]]],
    store: PictureStore,
    recipe: TrainRecipe,
    run: Path,
    on_progress: Progress,
) -> list[Prediction]:
    name, jobs = work
    path = run / f"predictions-{name}.parquet"
    if not path.exists():
        report = _reporter(on_progress, f"predictions of {name}", len(jobs))
        write_predictions(predict(model.eval(), probe, jobs, store, recipe.preprocessing, report), path)
    return read_predictions(path)


def _ship(
    recipe: TrainRecipe,
    data: Path,
    run: Path,
    model: OmniAID,
    splits: dict[str, list[SampleRow]],
    teaching: dict[str, Any],
    probe: Probe,
    calibration: list[Prediction],
    devtest: list[Prediction],
) -> Path:
    ours, thresholds = _calibrate(recipe, calibration, "margin")
    baseline, baseline_thresholds = _calibrate(recipe, calibration, "probe_margin")
    path = run / f"{recipe.name}.onnx"
    export_onnx(model, path)
    difference = check_export(model, path)
    card = ModelCard(
        name=recipe.name,
        version=recipe.version,
        sha256=hashlib.sha256(path.read_bytes()).hexdigest(),
        experts=recipe.model.expert_names,
        preprocessing=recipe.preprocessing,
        temperature=ours.temperature,
        bias=ours.bias,
        thresholds=thresholds,
        training={
            "recipe": recipe.model_dump(mode="json"),
            "data": _data_summary(data, splits),
            **teaching,
            "versions": {
                name: version(name) for name in ("torch", "numpy", "pillow", "scikit-learn", "onnx")
            },
            "python": platform.python_version(),
            "onnx_against_torch": difference,
        },
        metrics={
            "split": "devtest: sources that were neither trained on nor used for calibration",
            "model": summarise(devtest, ours, thresholds),
            "frozen_linear_probe": summarise(devtest, baseline, baseline_thresholds, margin="probe_margin"),
        },
        limits=recipe.limits,
    )
    path.with_suffix(".json").write_text(card.model_dump_json(indent=1) + "\n", "utf-8")
    return path


def _calibrate(
    recipe: TrainRecipe, predictions: list[Prediction], column: str
) -> tuple[Calibration, Thresholds]:
    rows = [p for p in predictions if p["error"] is None]
    margins, labels = np.array([p[column] for p in rows]), np.array([p["label"] for p in rows])
    calibration = fit_calibration(margins, labels)
    thresholds = set_thresholds(
        calibration.probability(margins),
        labels,
        recipe.target_false_positive_rate,
        recipe.target_false_negative_rate,
    )
    return calibration, thresholds


def _data_summary(data: Path, splits: dict[str, list[SampleRow]]) -> dict[str, Any]:
    """What was used: counts per split and source, and one hash over all sample keys."""
    keys = sorted(row.key for rows in splits.values() for row in rows)
    summary: dict[str, Any] = {"keys_sha256": hashlib.sha256("\n".join(keys).encode()).hexdigest()}
    for name, rows in splits.items():
        counts = Counter((("real", "ai")[row.label], row.source, row.generator) for row in rows)
        summary[name] = {
            "pictures": len(rows),
            "ai": sum(row.label for row in rows),
            "sources": [
                {"label": label, "source": source, "generator": generator, "pictures": n}
                for (label, source, generator), n in sorted(counts.items())
            ],
        }
    built_from = data / "build.json"
    if built_from.exists():
        summary["build"] = json.loads(built_from.read_text())
    return summary
