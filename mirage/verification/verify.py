"""Verification: everything that a finished data set claims, checked against its files."""

import json
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any

from pydantic import Field

from mirage.declarations import Part
from mirage.errors import BuildError
from mirage.manifest import MANIFEST
from mirage.shards import TEMPORARY
from mirage.verification.problems import Problems
from mirage.verification.rows import STATUSES, Rows
from mirage.verification.shard import ShardCheck, check_shard
from mirage.workers import open_engine

BUILD_FILE, STATS_FILE = "build.json", "stats.json"
SHARD_TIMEOUT_S = 3600.0


class Verification(Part):
    """What was checked, and what is wrong."""

    shards: int
    samples: int = Field(description="pictures decoded and compared with their rows")
    bytes: int = Field(description="of all tar files")
    rows: int = Field(description="of the manifest")
    problems: tuple[str, ...] = Field(description="sentences that name the file; none when all is sound")
    notes: tuple[str, ...] = Field(description="sentences about what could not be checked")


def verify(
    folder: Path, *, workers: int = 1, on_progress: Callable[[str, int, int], None] | None = None
) -> Verification:
    """What is wrong with the data set in `folder`; a problem never hides the ones behind it.

    Args:
        folder: a finished data set.
        workers: processes that decode; 0 works in this one.
        on_progress: called after each shard with its name, its number from 1 and how many there are.

    Raises:
        BuildError: the folder holds no data set at all.
        MissingExtra: a package that reading needs is not installed.
    """
    names = sorted({name for path in folder.glob("*.tar*") if (name := _shard_name(path))})
    if not names and not (folder / MANIFEST).is_file():
        raise BuildError(f"{folder} holds neither shards nor a {MANIFEST}")
    problems = Problems()
    for path in sorted(folder.rglob(f"*{TEMPORARY}")):
        problems.add(str(path.relative_to(folder)), "it was left behind by a killed run")
    checks = []
    for name, check in _check_shards(folder, names, workers):
        checks.append(check)
        if on_progress:
            on_progress(name, len(checks), len(names))
    build = _read_object(folder / BUILD_FILE, problems)
    rows = Rows(folder, build.get("content", {}).get("splits") or {}, problems)
    rows.check_journals()
    seen = rows.check_manifest()
    _check_counts(folder, rows.statuses, problems)
    return Verification(
        shards=len(checks),
        samples=sum(check.samples for check in checks),
        bytes=sum(check.bytes for check in checks),
        rows=seen,
        problems=(*chain.from_iterable(check.problems for check in checks), *problems.sentences()),
        notes=tuple(_notes(checks)),
    )


def _shard_name(path: Path) -> str | None:
    """The name of the shard that a file belongs to."""
    name = path.name.removesuffix(".jsonl").removesuffix(".json")
    return name if name.endswith(".tar") else None


def _check_shards(folder: Path, names: list[str], workers: int) -> Iterator[tuple[str, ShardCheck]]:
    jobs = ((name, (folder / name,)) for name in names)
    with open_engine("local", workers, SHARD_TIMEOUT_S) as engine:
        for name, check in engine.run(check_shard, jobs, _give_up):
            yield name, check or ShardCheck()


def _give_up(arguments: tuple[Any, ...], sentence: str) -> ShardCheck:
    return ShardCheck((f"{arguments[0].name}: it could not be checked: {sentence}",))


def _check_counts(folder: Path, statuses: Counter[str], problems: Problems) -> None:
    """Compare the sums in the statistics with the rows."""
    found = {"seen": statuses.total()} | {status: statuses[status] for status in STATUSES}
    counts = _read_object(folder / STATS_FILE, problems).get("counts", {})
    for name, number in found.items():
        if counts and counts.get(name) != number:
            problems.add(STATS_FILE, f"it counts {counts.get(name)} {name}, the journals hold {number}")
    if found["seen"] != sum(found[status] for status in STATUSES):
        problems.add("journals", "seen is not kept + rejected + duplicate")


def _read_object(path: Path, problems: Problems) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        problems.add(path.name, "the file is missing")
        return {}
    except ValueError:
        content = None
    if not isinstance(content, dict):
        problems.add(path.name, "it is no JSON object")
        return {}
    return content


def _notes(checks: list[ShardCheck]) -> Iterator[str]:
    bare = sum(not check.has_checksum for check in checks)
    if bare:
        yield f"shards without a recorded checksum, as older builds wrote none: {bare:,} of {len(checks):,}"
    unhashed = sum(check.unhashed for check in checks)
    if unhashed:
        yield f"pictures without a recorded sha256 of their stored bytes, only decoded: {unhashed:,}"
