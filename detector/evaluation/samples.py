"""The pictures of an evaluation: a built data set, or a folder in a known layout."""

import hashlib
import tarfile
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from detector.decode import read_bytes
from detector.evaluation.errors import EvaluationError
from detector.evaluation.layouts import AUTO, LAYOUTS, Found, find_pictures
from detector.evaluation.predictions import DataInfo
from detector.paths import printable
from detector.samples import MIXED, PictureStore, choose, list_samples, read_domains
from mirage.manifest import MANIFEST, read_manifest

MIRAGE = "mirage"
DEFAULT_SPLIT = "devtest"
ALL = "all"
# Of a folder that is divided, the part that is meant for testing, the best first.
TEST_SPLITS = ("test", "val")
EVERY = 10**12


@dataclass(frozen=True)
class Sample:
    """One picture to score and what is known of it; unknown texts are empty.

    Attributes:
        key: unique in the data set, the same wherever it lies.
        label: `real` or `ai`.
        subset: part of a benchmark whose real and AI pictures belong together.
    """

    key: str
    path: str
    source: str
    generator: str
    label: str
    domain: str = MIXED
    family: str = ""
    released: str = ""
    split: str = ""
    subset: str = ""
    pair: str = ""


@dataclass(frozen=True)
class Pictures:
    """What is evaluated.

    Attributes:
        info: which pictures, in words.
        samples: in the order in which they are scored.
        read: the stored bytes of one of them.
        example_left_out: one of the `info.left_out` picture files that the layout gives no class.
    """

    info: DataInfo
    samples: tuple[Sample, ...]
    read: Callable[[Sample], bytes]
    example_left_out: str = ""


def open_pictures(
    folder: Path, *, layout: str = AUTO, split: str | None = None, limit_per_source: int | None = None
) -> Pictures:
    """The pictures of a built data set or of a folder tree.

    Args:
        folder: holds a manifest, or pictures in one of `LAYOUTS`.
        layout: a name of `LAYOUTS`, `mirage`, or `auto`.
        split: part of the data; `all` for everything. None takes `devtest` of a built data set, and
            of a folder that is divided the part for testing.
        limit_per_source: most pictures of one source and class, chosen by hash.

    Raises:
        EvaluationError: the folder, its layout or its split cannot be used.
    """
    if not folder.is_dir():
        raise EvaluationError(f"{folder} is not a folder of pictures")
    if layout == MIRAGE or (layout == AUTO and (folder / MANIFEST).is_file()):
        pictures = _open_built(folder, split or DEFAULT_SPLIT, limit_per_source)
    elif layout != AUTO and layout not in LAYOUTS:
        allowed = ", ".join((AUTO, MIRAGE, *LAYOUTS))
        raise EvaluationError(f"layout {layout!r} does not exist; choose one of: {allowed}")
    else:
        pictures = _open_tree(folder, layout, split, limit_per_source)
    if not pictures.samples:
        raise EvaluationError(f"{folder}: split {pictures.info.split or ALL!r} holds no pictures")
    return pictures


def _open_built(folder: Path, split: str, limit: int | None) -> Pictures:
    rows = list_samples(folder)
    splits = sorted({row.split for row in rows})
    if split not in (*splits, ALL):
        raise EvaluationError(f"{folder} has no split {split!r}; it has: {', '.join(splits)}")
    chosen = [
        row for name in (splits if split == ALL else [split]) for row in choose(rows, name, limit or EVERY)
    ]
    by_key = {row.key: row for row in chosen}
    told = read_domains(folder)
    facts = {
        row["key"]: row for row in read_manifest(folder) if row["status"] == "kept" and row["key"] in by_key
    }
    samples = tuple(
        Sample(
            key=row.key,
            path=facts[row.key]["path"] or "",
            source=row.source,
            generator=row.generator or "",
            label=("real", "ai")[row.label],
            domain=told.get(row.key, row.domain) if row.domain == MIXED else row.domain,
            family=facts[row.key].get("family") or "",
            released=facts[row.key].get("released") or "",
            split=row.split,
            pair=row.pair or "",
        )
        for row in chosen
    )
    try:
        store = PictureStore(folder, sorted({row.shard for row in chosen}))
    except (OSError, tarfile.TarError) as error:
        raise EvaluationError(f"{folder}: a shard cannot be read: {error}") from error
    info = DataInfo(name=folder.resolve().name, layout=MIRAGE, split=split, limit_per_source=limit)
    return Pictures(info, samples, lambda sample: store.read(by_key[sample.key]))


def _open_tree(folder: Path, layout: str, split: str | None, limit: int | None) -> Pictures:
    tree = find_pictures(folder, layout)
    there = sorted({found.facts.split for found in tree.found if found.facts.split})
    if split not in (None, ALL, *there):
        has = f"it has: {', '.join(there)}" if there else "it is not divided"
        raise EvaluationError(f"{folder} has no split {split!r}; {has}")
    wanted = split or next((name for name in TEST_SPLITS if name in there), ALL)
    places = {printable(found.path): folder / found.path for found in tree.found}
    samples = [_sample(found) for found in tree.found if wanted == ALL or found.facts.split == wanted]
    info = DataInfo(
        name=folder.resolve().name,
        layout=tree.layout,
        split="" if wanted == ALL else wanted,
        limit_per_source=limit,
        left_out=len(tree.left_out),
    )
    return Pictures(
        info,
        tuple(take_by_hash(samples, limit or EVERY)),
        lambda sample: read_bytes(places[sample.key]),
        printable(tree.left_out[0]) if tree.left_out else "",
    )


def _sample(found: Found) -> Sample:
    name = printable(found.path)
    return Sample(key=name, path=name, **found.facts._asdict())


def take_by_hash(samples: Iterable[Sample], per_source: int) -> list[Sample]:
    """At most `per_source` samples of each source and class, a draw that does not depend on the others."""
    taken: Counter[tuple[str, str]] = Counter()
    chosen = []
    for sample in sorted(samples, key=lambda sample: hashlib.sha256(sample.key.encode()).digest()):
        if taken[sample.source, sample.label] < per_source:
            taken[sample.source, sample.label] += 1
            chosen.append(sample)
    return chosen
