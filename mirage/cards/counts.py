"""Counts: the numbers of a finished data set, gathered in one pass over its manifest."""

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from pydantic import Field

from mirage.cards.qualities import read_qualities
from mirage.cards.reasons import CONFLICT, NEAR_COPY, classify
from mirage.declarations import Part
from mirage.manifest import read_manifest

Row = dict[str, Any]
LABELS = ("real", "ai")
SPLITS = ("train", "calibration", "devtest")


def _steps(low: float, high: float, count: int) -> tuple[float, ...]:
    """`count` + 1 edges in equal ratios."""
    return tuple(float(f"{low * (high / low) ** (place / count):.6g}") for place in range(count + 1))


# The edges of every histogram; values outside stand in the outermost bins.
EDGES: dict[str, tuple[float, ...]] = {
    "width": _steps(32, 8192, 32),
    "height": _steps(32, 8192, 32),
    "megapixels": _steps(0.001, 100, 40),
    "aspect": _steps(0.25, 4, 32),
    "bytes per pixel": _steps(0.01, 10, 36),
    "JPEG quality": tuple(range(1, 102, 2)),
}
MEASURES: dict[str, Callable[[Row], float]] = {
    "width": lambda row: row["width"],
    "height": lambda row: row["height"],
    "megapixels": lambda row: row["width"] * row["height"] / 1e6,
    "aspect": lambda row: row["width"] / row["height"],
    "bytes per pixel": lambda row: row["bytes"] / (row["width"] * row["height"]),
}


class Group(Part):
    """Kept pictures that have all of these in common."""

    split: str
    label: str
    domain: str
    generator: str
    family: str
    licence: str
    kind: str = Field(description="of the source")
    stored_format: str
    pictures: int
    bytes: int


class Spread(Part):
    """How one measure is spread over the kept pictures of one class; values to three digits."""

    label: str
    measure: str
    pictures: int
    least: float
    low: float = Field(description="5 of 100 are smaller")
    median: float
    high: float = Field(description="5 of 100 are larger")
    most: float
    histogram: tuple[int, ...] = Field(description="pictures between one edge of EDGES and the next")


class SourceCounts(Part):
    """What one source brought."""

    source: str
    kind: str
    repo: str
    revision: str
    note: str
    labels: tuple[str, ...]
    generators: tuple[str, ...]
    licences: tuple[str, ...]
    splits: dict[str, int] = Field(description="kept pictures")
    seen: int
    kept: int
    rejected: int
    duplicate: int


class GeneratorCounts(Part):
    """What one generator made, or of real pictures what one kind of device or hand made."""

    label: str
    generator: str
    family: str
    released: str = Field(description="YYYY-MM-DD, empty when unknown")
    splits: dict[str, int] = Field(description="kept pictures")
    kept: int


class Counts(Part):
    """The numbers of a data set: seen = kept + rejected + duplicate."""

    seen: int
    kept: int
    rejected: int
    duplicate: int
    bytes: int
    rejected_by: dict[str, int] = Field(description="kind of reason -> rows, most first")
    duplicate_by: dict[str, int] = Field(description="kind of reason -> rows, most first")
    groups: tuple[Group, ...]
    spreads: tuple[Spread, ...]
    sources: tuple[SourceCounts, ...] = Field(description="in the recipe's order")
    generators: tuple[GeneratorCounts, ...] = Field(description="most pictures first")
    released: tuple[str, str] | None = Field(description="first and last release date of a generator")
    near_copies: int
    conflicts: int
    pairs: int

    def by(self, *names: str) -> dict[tuple[str, ...], int]:
        """Kept pictures for each combination of the named fields of `Group`."""
        summed: Counter[tuple[str, ...]] = Counter()
        for group in self.groups:
            summed[tuple(getattr(group, name) for name in names)] += group.pictures
        return dict(sorted(summed.items()))

    def spread(self, measure: str) -> dict[str, Spread]:
        """The classes' spreads of one measure, by label; empty when it was not taken."""
        return {spread.label: spread for spread in self.spreads if spread.measure == measure}


def count(folder: Path, *, headers: bool = False) -> Counts:
    """The numbers of the data set in `folder`; memory does not grow with its pictures, save for pairs.

    Args:
        folder: a finished data set.
        headers: also read the shards' picture headers, for the JPEG qualities.

    Raises:
        BuildError: the folder holds no manifest, or a shard cannot be read.
    """
    tally = _Tally()
    for row in read_manifest(folder):
        tally.add(row)
    if headers:
        tally.add_qualities(sorted(folder.glob("*.tar")))
    return tally.result()


class _Tally:
    """Running sums over rows."""

    def __init__(self) -> None:
        self.statuses: Counter[str] = Counter()
        self.reasons: dict[str, Counter[str]] = {"rejected": Counter(), "duplicate": Counter()}
        self.groups: Counter[tuple[str, ...]] = Counter()
        self.bytes: Counter[tuple[str, ...]] = Counter()
        self.values: dict[tuple[str, str], Counter[float]] = {}
        self.sources: dict[str, _Source] = {}
        self.generators: dict[tuple[str, ...], Counter[str]] = {}
        self.pairs: set[str] = set()

    def add(self, row: Row) -> None:
        self.statuses[row["status"]] += 1
        source = self.sources.setdefault(row["source"], _Source(row))
        source.statuses[row["status"]] += 1
        if row["status"] == "kept":
            source.add_kept(row)
            self._add_kept(row)
        else:
            self.reasons.setdefault(row["status"], Counter())[classify(_text(row, "reason"))] += 1

    def _add_kept(self, row: Row) -> None:
        group = tuple(_text(row, name) for name in list(Group.model_fields)[:-2])
        self.groups[group] += 1
        self.bytes[group] += row["bytes"]
        for measure, value in MEASURES.items():
            self.add_value(row["label"], measure, value(row))
        made = tuple(_text(row, name) for name in ("label", "generator", "family", "released"))
        self.generators.setdefault(made, Counter())[row["split"]] += 1
        if row.get("pair"):
            self.pairs.add(row["pair"])

    def add_value(self, label: str, measure: str, value: float) -> None:
        # Three digits keep the number of different values small, however many pictures there are.
        short = value if isinstance(value, int) else float(f"{value:.3g}")
        self.values.setdefault((label, measure), Counter())[short] += 1

    def add_qualities(self, shards: Iterable[Path]) -> None:
        for path in shards:
            for label, quality in read_qualities(path):
                self.add_value(label, "JPEG quality", quality)

    def result(self) -> Counts:
        made = sorted(self.generators.items(), key=lambda item: (-item[1].total(), item[0]))
        groups = [(key, pictures, self.bytes[key]) for key, pictures in sorted(self.groups.items())]
        dates = sorted(released for (_, _, _, released) in self.generators if released)
        rejected, duplicates = self.reasons["rejected"], self.reasons["duplicate"]
        return Counts(
            seen=self.statuses.total(),
            kept=self.statuses["kept"],
            rejected=self.statuses["rejected"],
            duplicate=self.statuses["duplicate"],
            bytes=self.bytes.total(),
            rejected_by=dict(rejected.most_common()),
            duplicate_by=dict(duplicates.most_common()),
            groups=tuple(_group(*group) for group in groups),
            spreads=tuple(_spread(*key, values) for key, values in sorted(self.values.items())),
            sources=tuple(source.result() for source in self.sources.values()),
            generators=tuple(_generator(key, splits) for key, splits in made),
            released=(dates[0], dates[-1]) if dates else None,
            near_copies=duplicates[NEAR_COPY],
            conflicts=duplicates[CONFLICT],
            pairs=len(self.pairs),
        )


class _Source:
    """Running sums of one source."""

    def __init__(self, row: Row) -> None:
        self.facts = {name: _text(row, name) for name in ("source", "kind", "repo", "revision", "note")}
        self.statuses: Counter[str] = Counter()
        self.splits: Counter[str] = Counter()
        self.told: dict[str, set[str]] = {"label": set(), "generator": set(), "licence": set()}

    def add_kept(self, row: Row) -> None:
        self.splits[row["split"]] += 1
        for name, values in self.told.items():
            values.add(_text(row, name))

    def result(self) -> SourceCounts:
        told = {f"{name}s": tuple(sorted(values)) for name, values in self.told.items()}
        outcome = {status: self.statuses[status] for status in ("kept", "rejected", "duplicate")}
        return SourceCounts.model_validate(
            self.facts | told | outcome | {"splits": _in_order(self.splits), "seen": self.statuses.total()}
        )


def _text(row: Row, name: str) -> str:
    return row.get(name) or ""


def _in_order(splits: Counter[str]) -> dict[str, int]:
    names = (*SPLITS, *sorted(set(splits) - set(SPLITS)))
    return {name: splits[name] for name in names if name in splits}


def _group(key: tuple[str, ...], pictures: int, size: int) -> Group:
    return Group.model_validate(dict(zip(Group.model_fields, (*key, pictures, size), strict=True)))


def _generator(key: tuple[str, ...], splits: Counter[str]) -> GeneratorCounts:
    facts = dict(zip(("label", "generator", "family", "released"), key, strict=True))
    return GeneratorCounts.model_validate(facts | {"splits": _in_order(splits), "kept": splits.total()})


def _spread(label: str, measure: str, values: Counter[float]) -> Spread:
    edges = EDGES[measure]
    bins = [0] * (len(edges) - 1)
    for value, pictures in values.items():
        bins[min(max(bisect_right(edges, value) - 1, 0), len(bins) - 1)] += pictures
    shares = {"least": 0.0, "low": 0.05, "median": 0.5, "high": 0.95, "most": 1.0}
    marks = {name: _quantile(values, share) for name, share in shares.items()}
    facts = {"label": label, "measure": measure, "pictures": values.total(), "histogram": tuple(bins)}
    return Spread.model_validate(facts | marks)


def _quantile(values: Counter[float], share: float) -> float:
    """The smallest value that at least `share` of all are not above."""
    reached, wanted = 0, share * values.total()
    for value in sorted(values):
        reached += values[value]
        if reached >= wanted:
            return value
    return 0.0
