"""Ablations: variants of one training recipe, trained on the same cached features, compared in pairs.

All variants share the blocks before the first with experts, so each costs only its own training. A
variant whose model would need other features is refused.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from detector.backbones import load_backbone
from detector.calibration import fit_calibration, set_thresholds
from detector.errors import RecipeError
from detector.evaluation.bootstrap import Estimate, Plan, sample
from detector.evaluation.comparisons import Baseline, baseline_tables
from detector.evaluation.frame import Decision, Frame, build_frame
from detector.evaluation.predictions import Columns, name_columns
from detector.evaluation.run import TARGET_RATE
from detector.model import OmniAID, build_model
from detector.preparation import Fit, Materials, Progress, teach
from detector.probe import Probe, fit_probe
from detector.recipe import TrainRecipe, read_recipe
from detector.threads import available_threads
from detector.train import Trainer

PROBE = "frozen linear probe"
MEASURES = ("auroc", "tpr_at_5_percent_fpr", "balanced_accuracy_at_half")


class Variant(BaseModel):
    """One variant: what it changes in the base recipe.

    Attributes:
        name: unique.
        why: what the comparison tells, one sentence for the table.
        changes: nested keys of the training recipe; what is not named stays.
        seeds: of the training, each a run of its own.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str = Field(pattern=r"^[a-z0-9][a-z0-9-]*$")
    why: str
    changes: dict[str, Any] = Field(default_factory=dict)
    seeds: tuple[int, ...] = Field(default=(0,), min_length=1)


class AblationRecipe(BaseModel):
    """Which variants of which training recipe are compared."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    base: Path = Field(description="training recipe, beside this file")
    variants: tuple[Variant, ...] = Field(min_length=1)
    rounds: int = Field(default=500, ge=10, description="draws of the bootstrap")


def read_ablations(path: Path) -> tuple[AblationRecipe, TrainRecipe]:
    """The ablation recipe at `path` and the training recipe that it starts from.

    Raises:
        RecipeError: one of them is missing or not what it should be, or two variants have one name.
    """
    import yaml

    try:
        recipe = AblationRecipe.model_validate(yaml.safe_load(path.read_text("utf-8")))
    except FileNotFoundError as error:
        raise RecipeError(f"ablation recipe {path} does not exist") from error
    except yaml.YAMLError as error:
        raise RecipeError(f"{path} is not YAML: {' '.join(str(error).split())}") from error
    except ValidationError as error:
        first = error.errors()[0]
        raise RecipeError(f"{path}: {'.'.join(map(str, first['loc']))}: {first['msg']}") from error
    names = [variant.name for variant in recipe.variants]
    if len(set(names)) < len(names):
        raise RecipeError(f"{path}: two variants have one name")
    return recipe, read_recipe(path.parent / recipe.base)


def change(recipe: TrainRecipe, changes: Mapping[str, Any], seed: int) -> TrainRecipe:
    """`recipe` with nested values replaced and another training seed; the augmentation keeps its own.

    Raises:
        RecipeError: the result is no recipe.
    """
    values = _merge(recipe.model_dump(mode="json"), changes)
    if values["samples"]["seed"] is None:
        values["samples"]["seed"] = recipe.seed
    try:
        return TrainRecipe.model_validate(values | {"seed": seed})
    except ValidationError as error:
        first = error.errors()[0]
        raise RecipeError(f"changed recipe: {'.'.join(map(str, first['loc']))}: {first['msg']}") from error


def _merge(values: dict[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(values)
    for key, new in changes.items():
        nested = isinstance(new, Mapping) and isinstance(merged.get(key), dict)
        merged[key] = _merge(merged[key], new) if nested else new
    return merged


class Trained(NamedTuple):
    """One variant with one seed: its devtest predictions, calibrated on its own calibration predictions.

    Attributes:
        gates: (N, E) mean over views, for the readable devtest predictions.
        names: of the E gates.
        trainable: how many numbers training changed besides the head.
    """

    frame: Frame
    probe: Frame
    gates: NDArray[np.float64]
    names: tuple[str, ...]
    trainable: int


def run_ablations(
    recipe: AblationRecipe, base: TrainRecipe, data: Path, run: Path, on_progress: Progress
) -> dict[str, Any]:
    """The comparison of all variants, also stored as `ablations.json` and `ablations.md` in `run`.

    Args:
        recipe: variants.
        base: the training recipe they change.
        data: a built data set.
        run: the base recipe's run folder; its cached features are used, or made there.
        on_progress: called with the step's name, how much is done, and of how much.

    Raises:
        RecipeError: a variant needs other features than the base, or is no recipe.
    """
    import torch

    torch.set_num_threads(base.threads or available_threads())
    # First, so that what is wrong with the data is said before anything heavy is loaded.
    materials = Materials.gather(base, data, run, on_progress)
    backbone = load_backbone(base.model.backbone)
    plan, rows, fit = Plan(rounds=recipe.rounds), [], _remember_probes()
    first: Trained | None = None
    for variant in recipe.variants:
        trained = [
            _train(variant, materials.serve(change(base, variant.changes, seed), data), backbone, fit)
            for seed in variant.seeds
        ]
        first = first or trained[0]
        rows += _rows(variant, trained, first, plan)
    result = {"base": base.name, "version": base.version, "rounds": recipe.rounds, "rows": rows}
    (run / "ablations.json").write_text(json.dumps(result, indent=1) + "\n", "utf-8")
    (run / "ablations.md").write_text(render(result), "utf-8")
    return result


def _remember_probes() -> Fit:
    """`fit_probe`, but only once for the same labels and weights: all variants share the features."""
    fitted: dict[bytes, Probe] = {}

    def fit(features: Any, labels: Any, weights: Any, validation: Any) -> Probe:
        key = labels.tobytes() + weights.tobytes()
        if key not in fitted:
            fitted[key] = fit_probe(features, labels, weights, validation)
        return fitted[key]

    return fit


def _train(variant: Variant, materials: Materials, backbone: Any, fit: Fit) -> Trained:
    """One variant with one seed, continued from what its folder holds."""
    recipe, run = materials.recipe, materials.run
    model = build_model(recipe.model, seed=recipe.seed, backbone=backbone)
    training, probe, _ = teach(materials, materials.training_caches(model), fit)
    folder, name = run / "ablations" / f"{variant.name}-{recipe.seed}", f"{variant.name} {recipe.seed}"
    Trainer(
        *(model, training, probe, recipe, folder),
        lambda phase, step, steps, metrics: materials.on_progress(f"{name}: {phase}", step, steps),
    ).run()
    columns = {}
    for split in ("calibration", "devtest"):
        rows = materials.predictions(split, model, probe, folder / f"predictions-{split}.parquet")
        names = dict.fromkeys(key for row in rows for key in row)
        listed = {key: [row.get(key) for row in rows] for key in names}
        listed["key"] = [f"{row['key']} {number}" for number, row in enumerate(rows)]
        columns[split] = (name_columns(listed, split), listed)
    gates = np.array([row for row in columns["devtest"][1]["gates"] if row is not None])
    ours, theirs = _frame(columns, "margin"), _frame(columns, "probe_margin")
    return Trained(ours, theirs, gates, model.config.expert_names, _count(model, recipe))


def _frame(columns: Mapping[str, tuple[Columns, Mapping[str, Any]]], column: str) -> Frame:
    named, listed = columns["calibration"]
    margins = np.array([np.nan if value is None else value for value in listed[column]], dtype=np.float64)
    known = ~np.isnan(margins)
    labels = (named["label"] == "ai")[known].astype(np.int64)
    calibration = fit_calibration(margins[known], labels)
    limits = set_thresholds(calibration.probability(margins[known]), labels, TARGET_RATE, TARGET_RATE)
    decision = Decision(calibration, limits.ai, limits.real)
    named, listed = columns["devtest"]
    margins = np.array([np.nan if value is None else value for value in listed[column]], dtype=np.float64)
    return build_frame(named, decision, margin=margins)


def _count(model: OmniAID, recipe: TrainRecipe) -> int:
    """How many numbers the variant's training changes, besides the head that all share."""
    if recipe.scheme == "dense":
        return sum(sum(part.numel() for part in layer.trained_factors(0)) for layer in model.expert_layers())
    experts = range(len(model.config.expert_names) - (model.config.artifact_gate == 0))
    factors = sum(
        part.numel()
        for layer in model.expert_layers()
        for expert in experts
        for part in layer.trained_factors(expert)
    )
    router = 0 if recipe.scheme == "experts-only" else sum(p.numel() for p in model.router.parameters())
    return factors + router


def _rows(variant: Variant, trained: list[Trained], first: Trained, plan: Plan) -> list[dict[str, Any]]:
    """Per tier: each seed's measures, their mean, differences to the probe, routing against `first`."""
    rows, agreement = [], _agreement(trained[0], first)
    for tier in trained[0].frame.transforms():
        parts = [sample(one.frame.take(one.frame.transform == tier), plan) for one in trained]
        row: dict[str, Any] = {"variant": variant.name, "why": variant.why, "tier": tier}
        row |= {"seeds": list(variant.seeds)}
        row |= {"changed_numbers": trained[0].trainable, "routed_alike": agreement}
        for measure in MEASURES:
            values = [part.values[measure] for part in parts]
            row[measure] = {"mean": float(np.mean(values)), "each": [float(value) for value in values]}
        rows.append(row | {"minus_probe": _minus_probe(trained, tier, plan)})
    return rows


def _agreement(one: Trained, other: Trained) -> float | None:
    """Share of pictures with the same strongest semantic expert; None for models with other experts."""
    if one.names != other.names or one.gates.shape != other.gates.shape:
        return None
    strongest, others = (gates[:, :-1].argmax(axis=1) for gates in (one.gates, other.gates))
    return float((strongest == others).mean())


def _minus_probe(trained: list[Trained], tier: str, plan: Plan) -> list[dict[str, Any]]:
    """Every seed's AUROC minus the probe's, drawn in pairs over sources."""
    found = []
    for one in trained:
        ours, probe = (frame.take(frame.transform == tier) for frame in (one.frame, one.probe))
        differences = baseline_tables(ours, {PROBE: Baseline(probe)}, plan)[1]
        estimate: Estimate = differences.rows[0].values["auroc"]
        found.append({"value": estimate.value, "low": estimate.low, "high": estimate.high})
    return found


def render(result: Mapping[str, Any]) -> str:
    """The comparison as Markdown, one table per tier."""
    lines = [f"# Ablations of {result['base']} {result['version']}", ""]
    lines += [
        "Made by `omniaid ablate`; every variant is trained on the same cached features. AUROC minus the"
    ]
    lines += [
        "frozen linear probe's on the same pictures, 95 % intervals drawn over sources, first seed.",
        "",
    ]
    for tier in dict.fromkeys(row["tier"] for row in result["rows"]):
        lines += [
            f"## {tier}",
            "",
            "| variant | numbers trained | AUROC, mean (each seed) | minus probe | routed alike |",
        ]
        lines += ["|---|---|---|---|---|"]
        lines += [_line(row) for row in result["rows"] if row["tier"] == tier]
        lines.append("")
    lines += [
        "Routed alike: share of pictures with the same strongest semantic expert as in the first variant.",
        "",
    ]
    lines += ["## What each variant asks", ""]
    asked = {row["variant"]: row["why"] for row in result["rows"]}
    return "\n".join([*lines, *(f"- **{name}**: {why}" for name, why in asked.items()), ""])


def _line(row: Mapping[str, Any]) -> str:
    each = ", ".join(f"{value:.4f}" for value in row["auroc"]["each"])
    first = row["minus_probe"][0]
    ends = ("-" if first[end] is None else f"{first[end]:+.4f}" for end in ("value", "low", "high"))
    value, low, high = ends
    mean = f"{row['auroc']['mean']:.4f} ({each})"
    alike = "-" if row["routed_alike"] is None else f"{row['routed_alike']:.1%}"
    return f"| {row['variant']} | {row['changed_numbers']:,} | {mean} | {value} [{low}, {high}] | {alike} |"
