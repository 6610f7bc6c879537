"""What the card itself says: the model, its data, what it is not for, what it was compared with."""

from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from detector.card import ModelCard, Thresholds
from detector.evaluation.sections import NOTHING, Grid, Section
from detector.scope import POLICY
from mirage.manifest import read_manifest

SPLITS = ("train", "calibration", "devtest")
COMPARED = {
    "auroc": "AUROC",
    "balanced_accuracy_at_half": "balanced accuracy",
    "flagged_real": "false alarms",
    "flagged_ai": "found",
    "decided": "decided",
    "right_when_decided": "right when decided",
    "ece": "ECE",
}
ROWS = {
    "per_generator": (
        "generator",
        {"pictures": "pictures", "found": "found", "missed": "missed", "auroc": "AUROC"},
    ),
    "per_real_source": (
        "real source",
        {"pictures": "pictures", "flagged": "false alarms", "cleared": "cleared"},
    ),
    "real_per_domain": (
        "domain, real pictures",
        {"pictures": "pictures", "flagged": "false alarms", "cleared": "cleared"},
    ),
    "ai_per_domain": ("domain, AI pictures", {"pictures": "pictures", "found": "found", "auroc": "AUROC"}),
}


def describe_model(card: ModelCard) -> Section:
    """Name, input, calibration and thresholds."""
    views = ", ".join(card.preprocessing.views)
    own_test = card.self_test is not None and bool(card.self_test.pictures)
    text = [
        f"{card.name} {card.version}; ONNX file with sha256 {card.sha256}.",
        f"Experts: {', '.join(card.experts)}.",
        f"A picture becomes {len(card.preprocessing.views)} views of {card.preprocessing.size_px} px: "
        f"{views}; their logits are averaged.",
        f"probability of AI = sigmoid((margin + {card.bias:.4f}) / {card.temperature:.4f}).",
        "When it is loaded, the model must have its sha256 and "
        + ("give the known scores of two tiny pictures." if own_test else "not answer with a constant."),
    ]
    points = list(dict.fromkeys((card.thresholds, *card.operating_points)))
    rows = [_threshold_row(point, "default" if point is card.thresholds else "") for point in points]
    columns = ("", "set for FPR", "ai from", "real to", "real flagged", "AI cleared")
    return Section("The model", text, (), [Grid("", columns, rows, 5)], [point.how for point in points[:1]])


def _threshold_row(point: Thresholds, name: str) -> list[str]:
    target = NOTHING if point.target is None else f"{point.target:.1%}"
    rates = (point.false_positive_rate, point.false_negative_rate)
    return [name, target, f"{point.ai:.4f}", f"{point.real:.4f}", *(f"{rate:.1%}" for rate in rates)]


def describe_data(card: ModelCard, data: Path | None) -> Section:
    """Counts per split and source, with licences where the built data set is at hand."""
    told: dict[str, Any] = card.training.get("data", {})
    licences = {} if data is None else read_licences(data)
    text = []
    if "keys_sha256" in told:
        text.append(f"sha256 of all sample keys: {told['keys_sha256']}.")
    grids = []
    for name in SPLITS:
        split = told.get(name)
        if not isinstance(split, dict) or "sources" not in split:
            continue
        text.append(f"{name}: {split['pictures']:,} pictures, {split['ai']:,} of them AI.")
        rows = [
            [
                row["label"],
                row["source"],
                row["generator"] or NOTHING,
                licences.get(row["source"], NOTHING),
                f"{row['pictures']:,}",
            ]
            for row in split["sources"]
        ]
        grids.append(Grid(name, ("class", "source", "generator or kind", "licence", "pictures"), rows, 1))
    if not text:
        text = ["The card does not say what the model learnt from."]
    remarks = [] if licences else ["Licences stand in the data set's manifest, which was not given."]
    return Section("Data", text, (), grids, remarks)


def read_licences(data: Path) -> dict[str, str]:
    """Licences by source, from the manifest of a built data set."""
    found: dict[str, set[str]] = defaultdict(set)
    for row in read_manifest(data):
        if row["status"] == "kept" and row.get("licence"):
            found[row["source"]].add(row["licence"])
    return {source: "; ".join(sorted(names)) for source, names in found.items()}


def describe_metrics(card: ModelCard) -> Section:
    """The card's own tables, for when no predictions are at hand."""
    tiers: dict[str, Any] = card.metrics.get("model", {}).get("tiers", {})
    text = [str(card.metrics["split"])] if "split" in card.metrics else []
    grids = []
    for tier, table in tiers.items():
        for key, (name, columns) in ROWS.items():
            rows = [
                [what, *(_number(row.get(column)) for column in columns)]
                for what, row in table.get(key, {}).items()
            ]
            if rows:
                grids.append(Grid(f"{tier}, by {name}", (name, *columns.values()), rows, len(columns)))
    return Section("Tables", text or ["The card holds no tables."], (), grids, [])


def describe_comparison(card: ModelCard) -> Section | None:
    """The model beside what was measured with it on the same pictures: probe, dense tuning, other seeds."""
    rows = list(_compared(card.metrics))
    if not rows:
        return None
    columns = ("tier", "detector", *COMPARED.values())
    text = ["Each with its own calibration and thresholds, fitted on the same calibration pictures."]
    return Section("Compared with", text, (), [Grid("", columns, rows, len(COMPARED))], [])


def _compared(metrics: dict[str, Any]) -> Iterator[list[str]]:
    named = {
        name: block["tiers"]
        for name, block in metrics.items()
        if isinstance(block, dict) and "tiers" in block
    }
    for tier in dict.fromkeys(tier for tiers in named.values() for tier in tiers):
        for name, tiers in named.items():
            if tier in tiers:
                values = (_number(tiers[tier].get(measure)) for measure in COMPARED)
                yield [tier, name.replace("_", " "), *values]


def describe_limits(card: ModelCard) -> Section:
    """Known failures, and what the detector does not judge."""
    tiers = card.metrics.get("model", {}).get("tiers", {})
    text = [*card.limits, *_worst(tiers.get("clean", {}))]
    return Section("Known failures", text or ["None is recorded, which means nobody looked."], (), [], [])


def _worst(table: dict[str, Any], count: int = 5) -> Iterator[str]:
    real = sorted(table.get("per_real_source", {}).items(), key=lambda one: -(one[1].get("flagged") or 0))
    if alarms := [f"{name} ({row['flagged']:.0%})" for name, row in real[:count] if row.get("flagged")]:
        yield f"Real sources flagged most often: {', '.join(alarms)}."
    found = [
        (name, row["found"])
        for name, row in table.get("per_generator", {}).items()
        if row.get("found") is not None
    ]
    if found:
        least = ", ".join(
            f"{name} ({share:.0%})" for name, share in sorted(found, key=lambda one: one[1])[:count]
        )
        yield f"Generators found least often: {least}."


def describe_scope(card: ModelCard) -> Section:
    """What gets the verdict `out_of_scope`."""
    size = f"Pictures with a shorter side below {card.min_side_px} px: insufficient resolution."
    return Section("Out of scope", [size, *POLICY], (), [], [])


def _number(value: Any) -> str:
    if value is None:
        return NOTHING
    return f"{value:,}" if isinstance(value, int) else f"{value:.3f}"
