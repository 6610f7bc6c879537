"""Samples of a built data set: which ones a run uses, and their bytes."""

import tarfile
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from detector.errors import RecipeError
from mirage.extras import need
from mirage.manifest import read_manifest

LABELS = {"real": 0, "ai": 1}
MIXED = "mixed"
DOMAINS_FILE = "domains.parquet"


@dataclass(frozen=True)
class SampleRow:
    """One stored picture, as the manifest describes it.

    Attributes:
        label: 0 real, 1 AI.
        domain: as in the data recipe; `mixed` where it is not known.
        pair: shared by a real picture and its reconstruction, else None.
    """

    key: str
    shard: str
    split: str
    label: int
    domain: str
    generator: str
    source: str
    pair: str | None


def list_samples(data: Path) -> list[SampleRow]:
    """Every kept sample of the data set at `data`, in manifest order.

    Raises:
        RecipeError: a row has a label that is neither real nor ai.
        mirage.errors.BuildError: there is no manifest.
    """
    rows = []
    for row in read_manifest(data):
        if row["status"] != "kept":
            continue
        if row["label"] not in LABELS:
            raise RecipeError(
                f"{data}: sample {row['key']} has label {row['label']!r}; real and ai are allowed"
            )
        fields = {name: row[name] for name in ("key", "shard", "split", "domain", "generator", "source")}
        rows.append(SampleRow(label=LABELS[row["label"]], pair=row["pair"] or None, **fields))
    return rows


def read_domains(data: Path, name: str = DOMAINS_FILE) -> dict[str, str]:
    """Domain by key, as `omniaid domains` labelled the data set at `data`; empty when it did not.

    `mixed` stands for a picture whose domain is not sure enough.
    """
    if not (data / name).is_file():
        return {}
    table = need("pyarrow.parquet").read_table(data / name, columns=["key", "domain"])
    return dict(zip(table["key"].to_pylist(), table["domain"].to_pylist(), strict=True))


def choose(rows: Iterable[SampleRow], split: str, per_source: int) -> list[SampleRow]:
    """The samples of one split, at most `per_source` of each source and label.

    Keys hold a content hash, so taking the first by hash is a random draw that does not change when
    other sources are added; pieces of one grid position keep the manifest's order, itself a draw by
    hash. A reconstruction stays with its real twin.
    """
    ordered = sorted(
        (row for row in rows if row.split == split), key=lambda row: (row.pair or _hash(row), row.label)
    )
    taken: Counter[tuple[str, int]] = Counter()
    chosen = []
    for row in ordered:
        if taken[row.source, row.label] < per_source:
            taken[row.source, row.label] += 1
            chosen.append(row)
    return chosen


def choose_both(rows: Iterable[SampleRow], split: str, per_source: int, data: Path) -> list[SampleRow]:
    """As `choose`, for what needs real and AI pictures.

    Args:
        rows: of the data set at `data`, which the message names.
        split: which part.
        per_source: the most of each source and label.
        data: see rows.

    Raises:
        RecipeError: the split holds no pictures of one class.
    """
    chosen = choose(rows, split, per_source)
    if len({row.label for row in chosen}) < 2:
        raise RecipeError(
            f"{data}: split {split!r} holds no pictures of one class; real and AI are both needed"
        )
    return chosen


def _hash(row: SampleRow) -> str:
    return row.key.rsplit("-", 1)[-1]


class PictureStore:
    """Random access to pictures inside shards: an index of offsets, read with one seek each."""

    def __init__(self, data: Path, shards: Sequence[str]) -> None:
        """Store over the named shards of the data set at `data`."""
        self._places = {key: place for shard in shards for key, place in _members(data / shard)}

    def read(self, row: SampleRow) -> bytes:
        """The stored file of `row`.

        Raises:
            RecipeError: its shard does not hold it.
        """
        try:
            path, offset, size = self._places[row.key]
        except KeyError as error:
            raise RecipeError(f"sample {row.key} is in the manifest but not in shard {row.shard}") from error
        with path.open("rb") as file:
            file.seek(offset)
            return file.read(size)


def _members(path: Path) -> Iterator[tuple[str, tuple[Path, int, int]]]:
    with tarfile.open(path) as archive:
        for member in archive:
            key, _, extension = member.name.partition(".")
            if extension != "json":
                yield key, (path, member.offset_data, member.size)
