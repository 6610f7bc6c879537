"""From a built data set to a shipped model: features, probe, two stages, calibration, tables, ONNX, card.

Every step leaves its result in the run folder and is skipped when that result is there, so the same
command continues an interrupted run.
"""

import hashlib
import json
import platform
from collections import Counter
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch

from detector.calibration import Calibration, fit_calibration, set_operating_points, set_thresholds
from detector.card import ModelCard, Thresholds
from detector.evaluate import Prediction
from detector.export import check_export, export_onnx
from detector.metrics import summarise
from detector.model import OmniAID, build_model
from detector.preparation import Materials, Progress, teach
from detector.recipe import TrainRecipe
from detector.runtime import Runtime
from detector.samples import SampleRow
from detector.self_test import make_self_test
from detector.threads import available_threads
from detector.train import Trainer


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
    materials = Materials.gather(recipe, data, run, on_progress)
    model = build_model(recipe.model, seed=recipe.seed)
    training, probe, teaching = teach(materials, materials.training_caches(model))
    Trainer(
        model, training, probe, recipe, run, lambda name, step, steps, metrics: on_progress(name, step, steps)
    ).run()
    calibration, devtest = (
        materials.predictions(name, model, probe, run / f"predictions-{name}.parquet")
        for name in ("calibration", "devtest")
    )
    return _ship(recipe, data, run, model, materials.splits, teaching, calibration, devtest)


def _ship(
    recipe: TrainRecipe,
    data: Path,
    run: Path,
    model: OmniAID,
    splits: Mapping[str, list[SampleRow]],
    teaching: dict[str, Any],
    calibration: list[Prediction],
    devtest: list[Prediction],
) -> Path:
    ours, thresholds, points = _calibrate(recipe, calibration, "margin")
    baseline, baseline_thresholds, _ = _calibrate(recipe, calibration, "probe_margin")
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
        operating_points=points,
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
    _write_card(card, path)
    # The shipped file itself answers, so that the known scores hold for what is loaded.
    known = make_self_test(Runtime(path).score_views, recipe.preprocessing)
    _write_card(card.model_copy(update={"self_test": known}), path)
    return path


def _write_card(card: ModelCard, path: Path) -> None:
    path.with_suffix(".json").write_text(card.model_dump_json(indent=1) + "\n", "utf-8")


def _calibrate(
    recipe: TrainRecipe, predictions: list[Prediction], column: str
) -> tuple[Calibration, Thresholds, tuple[Thresholds, ...]]:
    """Temperature and bias, the recipe's thresholds, and those of other false-positive rates."""
    rows = [p for p in predictions if p["error"] is None]
    margins, labels = np.array([p[column] for p in rows]), np.array([p["label"] for p in rows])
    calibration = fit_calibration(margins, labels)
    probabilities, missed = calibration.probability(margins), recipe.target_false_negative_rate
    thresholds = set_thresholds(probabilities, labels, recipe.target_false_positive_rate, missed)
    points = set_operating_points(probabilities, labels, false_negative_rate=missed)
    return calibration, thresholds, points


def _data_summary(data: Path, splits: Mapping[str, list[SampleRow]]) -> dict[str, Any]:
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
