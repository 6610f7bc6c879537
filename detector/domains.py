"""Domain labels for a built data set, by the head on the backbone or zero-shot, and how well they agree.

The recipe's own domains are never changed: labels lie in files beside the manifest, and count only for
pictures whose recipe says `mixed`.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field

from detector.card import ARTIFACT, read_card
from detector.domain_head import CONFIDENCE, frozen_features, judge_rows
from detector.errors import RecipeError
from detector.recipe import SampleConfig, TrainRecipe
from detector.runtime import default_model_path
from detector.samples import DOMAINS_FILE, MIXED, PictureStore, SampleRow, choose, list_samples, read_domains
from detector.zero_shot import zero_shot_labeller
from mirage.extras import need
from mirage.shards import write_atomically

Method = Literal["head", "zero-shot"]
Progress = Callable[[str, int, int], None]
Table = dict[str, Any]
REPORT_FILE = "domains.json"
FEATURES_FOLDER = "domain-features"
SPLITS = ("train", "calibration", "devtest")


class DomainSettings(BaseModel):
    """How pictures are labelled."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    confidence: float = Field(default=CONFIDENCE, ge=0, le=1, description="below it a picture stays `mixed`")
    limit: int | None = Field(default=None, ge=1, description="most pictures per source and label, by hash")
    recipe: TrainRecipe | None = Field(
        default=None, description="head: backbone, views, seed, caps; None: the shipped model's, no caps"
    )
    features: Path | None = Field(
        default=None, description="head: folder of cached features, such as a run folder of the same recipe"
    )
    model: str = Field(default="ViT-B-32", description="zero-shot: a name open_clip knows")
    weights: str | None = Field(default=None, description="zero-shot: a checkpoint file or the hub's tag")


class DomainReport(BaseModel):
    """What was labelled, by what, and how far it can be trusted."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    method: Method
    model: str
    weights_sha256: str = Field(description="of the tensors, see `detector.zero_shot.tensor_digest`")
    confidence: float
    limit: int | None
    seed: int | None = Field(description="of folds and views; None where nothing is drawn")
    pictures: int
    counts: dict[str, int] = Field(description="pictures by the method's label")
    mixed: dict[str, dict[str, int]] = Field(description="the same of `mixed` sources, real and AI apart")
    agreement: Table | None = Field(description="see `measure_agreement`; None without a judged picture")
    cross_agreement: Table | None = Field(description="see `compare_methods`; None before the other ran")
    details: Table


@dataclass(frozen=True)
class Scored:
    """A method's opinion: (N, D) probabilities of N rows, NaN in a row that it must not judge."""

    rows: list[SampleRow]
    probabilities: NDArray[np.float64]
    domains: tuple[str, ...]
    model: str
    weights_sha256: str
    seed: int | None = None
    details: Table = field(default_factory=dict)


def label_domains(
    folder: Path,
    method: Method,
    settings: DomainSettings | None = None,
    on_progress: Progress = lambda step, done, total: None,
) -> DomainReport:
    """The report on labels for the data set at `folder`, written to `domains.json` there.

    The labels go to `domains.parquet`: key, domain, probability (of the likeliest domain), method, agrees
    (with the recipe's domain; null where that or the label is `mixed`). Each method's labels also stay in
    `domains-<method>.parquet`, so that methods can be compared.

    Args:
        folder: a data set built by `omniaid mirage build`; its shards and manifest are only read.
        method: how.
        settings: the method's; defaults when None.
        on_progress: called with the step's name, how much is done, and of how much.

    Raises:
        RecipeError: the method is unknown, or (head) fewer than two domains are known.
        ModelError: the model cannot be loaded.
        mirage.errors.BuildError: there is no manifest.
    """
    if method not in SCORERS:
        raise RecipeError(f"domain method {method!r} is unknown; allowed: {', '.join(get_args(Method))}")
    settings = settings or DomainSettings()
    scored = SCORERS[method](folder, settings, on_progress)
    labels = _labels(scored, method, settings.confidence)
    report = DomainReport(
        method=method,
        model=scored.model,
        weights_sha256=scored.weights_sha256,
        confidence=settings.confidence,
        limit=settings.limit,
        seed=scored.seed,
        pictures=len(labels),
        counts=_counts([label["domain"] for label in labels], scored.domains),
        mixed={name: _mixed(scored, labels, value) for value, name in enumerate(("real", "ai"))},
        agreement=measure_agreement(scored, settings.confidence),
        cross_agreement=compare_methods(folder, method, labels),
        details=scored.details,
    )
    table = _parquet(labels)
    write_atomically(folder / _file(method), table)
    write_atomically(folder / REPORT_FILE, (report.model_dump_json(indent=1) + "\n").encode())
    write_atomically(folder / DOMAINS_FILE, table)
    return report


def shipped_recipe() -> TrainRecipe:
    """The recipe of the packaged model, on all samples."""
    card = read_card(default_model_path().with_suffix(".json"))
    return TrainRecipe.model_validate(card.training["recipe"] | {"samples": {}})


def _score_with_head(folder: Path, settings: DomainSettings, on_progress: Progress) -> Scored:
    recipe = settings.recipe or shipped_recipe()
    caps = recipe.samples if settings.limit is None else _caps(settings.limit)
    splits, domains = _chosen(folder, caps), recipe.model.domains
    cache = settings.features or folder / FEATURES_FOLDER
    features, digest = frozen_features(folder, splits, recipe, cache, on_progress)
    rows = [row for part in splits.values() for row in part]
    kept = [number for number, row in enumerate(rows) if row.domain != ARTIFACT]
    features, rows = features[kept], [rows[number] for number in kept]
    probabilities, details = judge_rows(features, rows, domains, seed=recipe.seed)
    details["recipe"] = recipe.model_dump(mode="json", include={"model", "preprocessing", "samples"})
    return Scored(rows, probabilities, domains, recipe.model.backbone, digest, recipe.seed, details)


def _score_zero_shot(folder: Path, settings: DomainSettings, on_progress: Progress) -> Scored:
    """The contrastive model has learnt from none of the pictures, so it judges all."""
    splits = _chosen(folder, _caps(settings.limit))
    rows = [row for part in splits.values() for row in part if row.domain != ARTIFACT]
    labeller = zero_shot_labeller(settings.model, settings.weights)
    store = PictureStore(folder, sorted({row.shard for row in rows}))
    probabilities = labeller.judge(rows, store, lambda done: on_progress("zero-shot labels", done, len(rows)))
    digest, details = labeller.weights_sha256, {"weights": settings.weights}
    return Scored(rows, probabilities, labeller.domains, settings.model, digest, details=details)


SCORERS: dict[str, Callable[[Path, DomainSettings, Progress], Scored]] = {
    "head": _score_with_head,
    "zero-shot": _score_zero_shot,
}


def _chosen(folder: Path, caps: SampleConfig) -> dict[str, list[SampleRow]]:
    rows = list_samples(folder)
    chosen = {name: choose(rows, name, getattr(caps, f"{name}_per_source")) for name in SPLITS}
    if not rows:
        raise RecipeError(f"{folder} holds no kept picture; build it with at least one source")
    return {name: rows for name, rows in chosen.items() if rows}


def _caps(limit: int | None) -> SampleConfig:
    caps = {} if limit is None else {f"{split}_per_source": limit for split in SPLITS}
    return SampleConfig.model_validate(caps)


def _labels(scored: Scored, method: Method, confidence: float) -> list[Table]:
    """The rows of `domains.parquet`; a picture the method must not judge is `mixed` without a probability."""
    labels = []
    for row, chances in zip(scored.rows, scored.probabilities, strict=True):
        judged = not np.isnan(chances).any()
        best = float(chances.max()) if judged else None
        sure = best is not None and best >= confidence
        domain = scored.domains[int(chances.argmax())] if sure else MIXED
        agrees = domain == row.domain if sure and row.domain in scored.domains else None
        labels.append(
            {"key": row.key, "domain": domain, "probability": best, "method": method, "agrees": agrees}
        )
    return labels


def _counts(labels: Sequence[str], domains: Sequence[str]) -> dict[str, int]:
    counts = Counter(labels)
    return {name: counts[name] for name in (*domains, MIXED)}


def _mixed(scored: Scored, labels: list[Table], value: int) -> dict[str, int]:
    pairs = zip(scored.rows, labels, strict=True)
    chosen = [label["domain"] for row, label in pairs if row.domain == MIXED and row.label == value]
    return _counts(chosen, scored.domains)


def measure_agreement(scored: Scored, confidence: float) -> Table | None:
    """The likeliest domains against those that the recipe names, over pictures the method may judge.

    Returns:
        None without such a picture, else `pictures`; `not_judged`, of known domain, which no other source
        teaches; `accuracy`; `balanced_accuracy`, the mean recall over domains; `mean_probability` of the
        likeliest domain, equal to the accuracy when probabilities mean what they say; `decided`, at or
        above the confidence, and their accuracy; tables per domain (whose accuracy is the recall), per
        label and per source (worst first); `confusion`: the recipe's domain, then the likeliest.
    """
    known = np.array([row.domain in scored.domains for row in scored.rows], dtype=bool)
    judged = np.flatnonzero(known & ~np.isnan(scored.probabilities).any(axis=1))
    if not len(judged):
        return None
    rows, chances = [scored.rows[number] for number in judged], scored.probabilities[judged]
    truth = np.array([row.domain for row in rows])
    likeliest = np.array(scored.domains)[chances.argmax(axis=1)]
    right, sure = truth == likeliest, chances.max(axis=1) >= confidence
    domains, confusion = _per(truth, right, sure), _confusion(truth, likeliest, scored.domains)
    for name, table in domains.items():
        called = sum(line[name] for line in confusion.values())
        table["sources"] = len({row.source for row in rows if row.domain == name})
        table["precision"] = round(confusion[name][name] / called, 4) if called else None
    sources = _per(np.array([f"{row.source} ({row.domain})" for row in rows]), right, sure)
    return {
        "pictures": len(rows),
        "not_judged": int(known.sum()) - len(rows),
        "accuracy": round(float(right.mean()), 4),
        "balanced_accuracy": round(float(np.mean([table["accuracy"] for table in domains.values()])), 4),
        "mean_probability": round(float(chances.max(axis=1).mean()), 4),
        "decided": int(sure.sum()),
        "accuracy_decided": round(float(right[sure].mean()), 4) if sure.any() else None,
        "per_domain": domains,
        "per_label": _per(np.array([("real", "ai")[row.label] for row in rows]), right, sure),
        "per_source": dict(sorted(sources.items(), key=lambda item: item[1]["accuracy"])),
        "confusion": confusion,
    }


def _confusion(
    truth: NDArray[np.str_], likeliest: NDArray[np.str_], domains: Sequence[str]
) -> dict[str, dict[str, int]]:
    pairs = Counter(zip(truth.tolist(), likeliest.tolist(), strict=True))
    return {name: {called: pairs[name, called] for called in domains} for name in domains}


def _per(groups: NDArray[np.str_], right: NDArray[np.bool_], sure: NDArray[np.bool_]) -> dict[str, Table]:
    tables = {}
    for name in np.unique(groups):
        members = groups == name
        counts = {"pictures": int(members.sum()), "decided": int(sure[members].sum())}
        tables[str(name)] = counts | {"accuracy": round(float(right[members].mean()), 4)}
    return tables


def compare_methods(folder: Path, method: Method, labels: list[Table]) -> Table | None:
    """Cohen's kappa between these labels and those another method left in `folder`; None when none did.

    Counted over pictures that both labelled; `kappa` over those that both decided, and None when fewer
    than two domains occur there.
    """
    from sklearn.metrics import cohen_kappa_score

    others = [name for name in get_args(Method) if name != method and (folder / _file(name)).is_file()]
    if not others:
        return None
    theirs = read_domains(folder, _file(others[0]))
    pairs = [(label["domain"], theirs[label["key"]]) for label in labels if label["key"] in theirs]
    both = [pair for pair in pairs if MIXED not in pair]
    spread = len({name for pair in both for name in pair}) > 1
    return {
        "other": others[0],
        "pictures": len(pairs),
        "both_decided": len(both),
        "same": sum(ours == their for ours, their in both),
        "kappa": round(float(cohen_kappa_score(*zip(*both, strict=True))), 4) if spread else None,
    }


def _file(method: str) -> str:
    return f"domains-{method}.parquet"


def _parquet(labels: list[Table]) -> bytes:
    pyarrow, parquet = need("pyarrow"), need("pyarrow.parquet")
    text = [(name, pyarrow.string()) for name in ("key", "domain", "method")]
    schema = pyarrow.schema([*text, ("probability", pyarrow.float64()), ("agrees", pyarrow.bool_())])
    stream = BytesIO()
    parquet.write_table(pyarrow.Table.from_pylist(labels, schema=schema), stream)
    return stream.getvalue()
