"""Bias audit: whether a picture's label can be told from its file header alone.

Gradient-boosted trees learn the label from the container facts of `mirage.bias.headers`, and are judged
on sources they have not seen: what they still know there is a shortcut that a detector would take.
"""

import io
import json
import tarfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any, Literal, NamedTuple, get_args

import numpy as np
from pydantic import Field

from mirage.bias.features import FEATURE_NAMES, feature_vector
from mirage.bias.headers import Header, read_header
from mirage.bias.trees import Fold, HeldOut, Table, auc, auc_alone, auc_shuffled, grow, score, tabulate
from mirage.declarations import Label, Part, Split
from mirage.errors import BuildError, UnreadableImage
from mirage.extras import need
from mirage.read import list_shards

MAX_AUC = 0.60
PREFIX_BYTES = 2**16  # holds the header of nearly every file; the rest are read whole
LABELS: tuple[Label, Label] = get_args(Label)


class AuditSettings(Part):
    """How the trees are grown and judged."""

    seed: int = Field(default=0, ge=0)
    folds: int = Field(default=5, ge=2, description="fewer when a label has fewer sources")
    repeats: int = Field(default=3, ge=1, description="times the sources are dealt into folds anew")
    trees: int = Field(default=100, ge=1)
    least_sources: int = Field(default=3, ge=2, description="per label; with fewer, folds are by picture")
    least_pictures: int = Field(default=20, ge=2, description="per label; with fewer, nothing is measured")


class Leak(Part):
    """What one feature gives away on held-out folds.

    Attributes:
        feature: one of `mirage.bias.features.FEATURES`.
        drop: how much the macro AUC falls when the feature's values are shuffled.
        auc: macro AUC of a small tree that sees this feature only.
    """

    feature: str
    drop: float
    auc: float


class SourceAudit(Part):
    """How easily a source's label is told from headers alone.

    Attributes:
        source: its name.
        label: of these pictures; a source of twins has both.
        pictures: how many.
        right: mean out-of-fold probability of the right label; 0.5 is ideal.
    """

    source: str
    label: Label
    pictures: int
    right: float


class SplitAudit(Part):
    """What headers give away in one split.

    Attributes:
        pictures: label -> count.
        sources: label -> count.
        judged_by: what is held out: whole sources, single pictures, or nothing measured.
        folds: how many.
        note: why it was not judged by source; empty when it was.
        auc: every picture counts the same; mean of the repeats. It can be below 0.5, see `Audit.complaints`.
        macro_auc: every source counts the same within its label.
        auc_range: lowest and highest of both over the repeats.
        auc_by_picture: macro AUC with single pictures held out. It also counts what marks a source without
            carrying over to others, which helps a detector on the pictures it learns from and nowhere else.
        leaks: by falling `drop`.
        easiest_sources: by falling `right`.
    """

    pictures: dict[Label, int]
    sources: dict[Label, int]
    judged_by: Literal["source", "picture", "nothing"]
    folds: int = 0
    note: str = ""
    auc: float | None = None
    macro_auc: float | None = None
    auc_range: tuple[float, float] | None = None
    auc_by_picture: float | None = None
    leaks: tuple[Leak, ...] = ()
    easiest_sources: tuple[SourceAudit, ...] = ()

    @property
    def gated_auc(self) -> float | None:
        """The larger of `auc` and `macro_auc`; None when nothing was measured."""
        return max((value for value in (self.auc, self.macro_auc) if value is not None), default=None)


class Audit(Part):
    """The audit of a data set, split by split."""

    splits: dict[Split, SplitAudit]
    settings: AuditSettings
    versions: dict[str, str] = Field(description="of the packages that decide the numbers")

    def passes(self, max_auc: float = MAX_AUC, splits: Sequence[Split] = ("train",)) -> bool:
        """Whether headers tell the label in none of `splits` better than `max_auc`; see `complaints`."""
        return not self.complaints(max_auc, splits)

    def complaints(self, max_auc: float = MAX_AUC, splits: Sequence[Split] = ("train",)) -> tuple[str, ...]:
        """One sentence for each of `splits` whose pooled or macro AUC is above `max_auc`.

        An AUC far below 0.5 is no complaint. It means that what the trees learnt from some sources is
        wrong for others, which happens when headers mark sources and there are few of them; it is no
        shortcut that carries over. `auc_by_picture` shows such marks. Neither is a split in which
        nothing could be measured, as with one label only: its `note` says why.
        """
        return tuple(
            f"file headers alone tell real from AI in split {name} (AUC {split.gated_auc:.2f}, at most "
            f"{max_auc:.2f} is allowed), most of all by {', '.join(leak.feature for leak in split.leaks[:3])}"
            for name, split in self.splits.items()
            if name in splits and split.gated_auc is not None and split.gated_auc > max_auc
        )


class Record(NamedTuple):
    """One picture as the audit sees it."""

    header: Header
    label: Label
    source: str


DEFAULT_SETTINGS = AuditSettings()


def audit(
    folder: Path, splits: Sequence[Split] = get_args(Split), settings: AuditSettings = DEFAULT_SETTINGS
) -> Audit:
    """The audit of a built data set; splits without shards are left out.

    Raises:
        BuildError: the folder holds no finished shard of any of `splits`, or one cannot be read.
        MissingExtra: scikit-learn is not installed.
    """
    present = [split for split in splits if any(folder.glob(f"{split}-*.tar.jsonl"))]
    if not present:
        raise BuildError(f"{folder} holds no finished shard of {', '.join(splits)}")
    return Audit(
        splits={split: audit_records(_split_records(folder, split), settings) for split in present},
        settings=settings,
        versions={"scikit-learn": need("sklearn").__version__, "numpy": np.__version__},
    )


def _split_records(folder: Path, split: Split) -> list[Record]:
    return [record for path in list_shards(folder, split) for record in _records(path)]


def _records(path: Path) -> Iterator[Record]:
    """Every sample of one shard, of whose pictures only the beginning is read."""
    header, key = None, ""
    try:
        with tarfile.open(path, "r:") as shard:
            for member in shard:
                name, _, extension = member.name.partition(".")
                stream = shard.extractfile(member) or io.BytesIO()
                if extension != "json":
                    header, key = _stored_header(stream, member.size), name
                elif header is None or name != key:
                    raise BuildError(f"{path}: sample {name} has no picture before its .json sidecar")
                else:
                    row = json.loads(stream.read())
                    yield Record(header, row["label"], row["source"])
    except (OSError, tarfile.TarError, UnreadableImage, ValueError) as error:
        reason = error.args[0] if error.args else error
        raise BuildError(f"{path} cannot be read after sample {key or 'none'}: {reason}") from error


def _stored_header(stream: IO[bytes], file_bytes: int) -> Header:
    data = stream.read(PREFIX_BYTES)
    try:
        return read_header(data, file_bytes)
    except UnreadableImage:
        return read_header(data + stream.read())


def audit_records(records: Sequence[Record], settings: AuditSettings = DEFAULT_SETTINGS) -> SplitAudit:
    """What the headers of these pictures give away.

    Raises:
        MissingExtra: scikit-learn is not installed.
    """
    groups = {label: [record.source for record in records if record.label == label] for label in LABELS}
    counts = {label: len(found) for label, found in groups.items()}
    sources = {label: len(set(found)) for label, found in groups.items()}
    if min(counts.values()) < settings.least_pictures:
        note = f"{_listed(counts)} pictures; {settings.least_pictures} of each are needed to measure anything"
        return SplitAudit(pictures=counts, sources=sources, judged_by="nothing", note=note)
    few = min(sources.values()) < settings.least_sources
    note = (
        f"{_listed(sources)} sources; folds are by picture with fewer than {settings.least_sources} of each"
    )
    held_out: HeldOut = "picture" if few else "source"
    folds = min(settings.folds, *counts.values(), *(() if few else sources.values()))
    return SplitAudit(
        pictures=counts,
        sources=sources,
        judged_by=held_out,
        folds=folds,
        note=note if few else "",
        **_measure(_table(records), held_out, folds, settings),
    )


def _listed(counts: dict[Label, int]) -> str:
    return " and ".join(f"{count} {label}" for label, count in counts.items())


def _table(records: Sequence[Record]) -> Table:
    features = np.array([feature_vector(record.header) for record in records]).reshape(-1, len(FEATURE_NAMES))
    labels = np.array([LABELS.index(record.label) for record in records], dtype=int)
    return tabulate(features, labels, np.array([record.source for record in records], dtype=str))


def _measure(table: Table, held_out: HeldOut, folds: int, settings: AuditSettings) -> dict[str, Any]:
    seed = settings.seed
    repeats = [grow(table, held_out, folds, settings.trees, seed + more) for more in range(settings.repeats)]
    scores = [score(table.features, grown) for grown in repeats]
    pooled = [auc(table, guesses, macro=False) for guesses in scores]
    macro = [auc(table, guesses, macro=True) for guesses in scores]
    by_picture = float(np.mean(macro))
    if held_out == "source":
        grown = grow(table, "picture", settings.folds, settings.trees, seed)
        by_picture = auc(table, score(table.features, grown), macro=True)
    return {
        "auc": round(float(np.mean(pooled)), 4),
        "macro_auc": round(float(np.mean(macro)), 4),
        "auc_range": (round(min(pooled + macro), 4), round(max(pooled + macro), 4)),
        "auc_by_picture": round(by_picture, 4),
        "leaks": _leaks(table, repeats[0], macro[0], seed),
        "easiest_sources": _easiest_sources(table, np.mean(scores, axis=0)),
    }


def _leaks(table: Table, folds: Sequence[Fold], whole: float, seed: int) -> tuple[Leak, ...]:
    varied = [place for place in range(len(FEATURE_NAMES)) if np.ptp(table.features[:, place]) > 0]
    leaks = [
        Leak(
            feature=FEATURE_NAMES[place],
            drop=round(whole - auc_shuffled(table, folds, place, seed), 4),
            auc=round(auc_alone(table, folds, place, seed), 4),
        )
        for place in varied
    ]
    return tuple(sorted(leaks, key=lambda leak: (-leak.drop, leak.feature)))


def _easiest_sources(table: Table, scores: np.ndarray) -> tuple[SourceAudit, ...]:
    found = []
    for source, place in sorted(set(zip(table.sources.tolist(), table.labels.tolist(), strict=True))):
        rows = (table.sources == source) & (table.labels == place)
        right = float((scores[rows] if place else 1 - scores[rows]).mean())
        found.append(
            SourceAudit(source=source, label=LABELS[place], pictures=int(rows.sum()), right=round(right, 4))
        )
    return tuple(sorted(found, key=lambda entry: (-entry.right, entry.source)))
