"""The builder: sources to deduplicated shards and a manifest, resumable after a kill at any moment.

Everything happens in one fixed order (source, file, piece), so a resumed run that skips the rows
of finished shards arrives at the same shards and the same manifest as an uninterrupted one.
"""

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Generator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from mirage.errors import BuildError
from mirage.extras import need
from mirage.manifest import write_manifest
from mirage.prepare import Prepared, preparation
from mirage.recipe import Recipe, Source, read_recipe
from mirage.rows import is_twin, key_of, piece_row, provenance, split_of
from mirage.shards import (
    LOOSE,
    Row,
    ShardWriter,
    clean_up,
    journals,
    read_journal,
    write_atomically,
    write_journal,
)
from mirage.sources import MissingSource, Surroundings, open_source
from mirage.workers import Pool, prepare_all, worker_pool

BUILD_FILE = "build.json"
STATS_FILE = "stats.json"
CONFLICT = "conflict: "


@dataclass(frozen=True)
class Summary:
    """What a build saw and did.

    Attributes:
        counts: of rows by status; `seen` is the sum of the others.
        conflicts: sentences about equal files with opposite labels.
        skipped: sentences about sources that were not on this machine.
    """

    counts: dict[str, int]
    conflicts: tuple[str, ...]
    skipped: tuple[str, ...]


Progress = Callable[[str, int, int], None]


def build(
    recipe_path: Path,
    folder: Path,
    *,
    mirrors: Path | None = None,
    workers: int = 1,
    skip_missing: bool = False,
    on_progress: Progress | None = None,
) -> Summary:
    """The summary of a data set built in `folder`; what an earlier run finished is not done again.

    Args:
        recipe_path: a YAML recipe.
        folder: where shards, journals and the manifest go; made when missing.
        mirrors: the folder that holds bare clones of the git sources.
        workers: processes that decode.
        skip_missing: go on without sources that are not on this machine.
        on_progress: called after each file with source name, its place and the number of sources.

    Raises:
        RecipeError: the recipe, or a source it names, cannot be used.
        BuildError: the folder holds another build, or cannot be written.
    """
    recipe = read_recipe(recipe_path)
    need("pyarrow")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _claim(folder, recipe)
        clean_up(folder)
        run = _Run(recipe, folder, Setting(recipe_path.parent, mirrors, skip_missing, on_progress))
        with worker_pool(workers) as pool:
            run.work(pool)
        write_manifest(folder)
        return _summarise(folder, run.skipped)
    except OSError as error:
        place = error.filename or folder
        raise BuildError(
            f"{place}: {error.strerror or error}; finished shards are kept, so run the same command again"
        ) from error


def _claim(folder: Path, recipe: Recipe) -> None:
    """Make sure that the folder holds this recipe's build or none."""
    digest = hashlib.sha256(recipe.model_dump_json().encode("utf-8")).hexdigest()
    path = folder / BUILD_FILE
    if path.exists():
        if json.loads(path.read_text("utf-8"))["recipe_sha256"] != digest:
            raise BuildError(f"{folder} holds a build of another recipe; choose another --out or delete it")
        return
    write_atomically(path, json.dumps({"recipe": recipe.name, "recipe_sha256": digest}).encode("utf-8"))


def _summarise(folder: Path, skipped: list[str]) -> Summary:
    counts: Counter[str] = Counter(seen=0, kept=0, rejected=0, duplicate=0)
    conflicts = []
    for path in journals(folder):
        for row in read_journal(path):
            counts.update(("seen", row["status"]))
            if (row["reason"] or "").startswith(CONFLICT):
                conflicts.append(f"{row['source']}: {row['path']}: {row['reason']}")
    stats = {"counts": dict(counts), "conflicts": sorted(conflicts), "skipped": skipped}
    write_atomically(folder / STATS_FILE, json.dumps(stats, ensure_ascii=False, indent=1).encode("utf-8"))
    return Summary(dict(counts), tuple(sorted(conflicts)), tuple(skipped))


@dataclass(frozen=True)
class Setting:
    """Where and how a run works, apart from the recipe."""

    recipe_dir: Path
    mirrors: Path | None
    skip_missing: bool
    on_progress: Progress | None


class Known(NamedTuple):
    """The first kept file with some content."""

    source: str
    path: str
    label: str
    split: str


@dataclass
class _Run:
    recipe: Recipe
    folder: Path
    setting: Setting
    skipped: list[str] = field(default_factory=list)
    _writers: dict[str, ShardWriter] = field(default_factory=dict)
    _pending: dict[str, list[Row]] = field(default_factory=dict)  # rows of the open shard, by split
    _loose: list[Row] = field(default_factory=list)  # rows without a picture, for the next journal
    _loose_before: list[Row] = field(default_factory=list)
    _known: dict[tuple[bool, str], Known] = field(default_factory=dict)  # (is a pair of twins, sha256)
    _finished: dict[str, dict[str, bool]] = field(default_factory=dict)  # source -> path -> kept

    def work(self, pool: Pool | None) -> None:
        self._load_finished()
        try:
            for index, source in enumerate(self.recipe.sources):
                try:
                    self._take(index, source, pool)
                except MissingSource as error:
                    if not self.setting.skip_missing:
                        raise
                    self.skipped.append(str(error))
            for split, writer in self._writers.items():
                self._close(split, writer)
            write_journal(self.folder / LOOSE, self._loose_before + self._loose)
        finally:
            for writer in self._writers.values():
                writer.abandon()

    def _load_finished(self) -> None:
        for path in journals(self.folder):
            for row in read_journal(path):
                kept = row["status"] == "kept"
                self._finished.setdefault(row["source"], {})[row["path"]] = kept
                if kept:
                    known = Known(row["source"], row["path"], row["source_label"], row["split"])
                    self._known[row["pair"] is not None, row["sha256"]] = known
                if path.name == LOOSE:
                    self._loose_before.append(row)

    def _take(self, index: int, source: Source, pool: Pool | None) -> None:
        """Store the source's files up to its cap."""
        finished = self._finished.get(source.name, {})
        around = Surroundings(
            self.setting.mirrors,
            self.setting.recipe_dir,
            self.recipe.seed,
            finished.keys(),
            self.recipe.limits.max_bytes,
        )
        taken = 0
        with closing(self._prepared(source, around, pool)) as files:
            for file_index, (path, prepared) in enumerate(files):
                taken += (
                    finished[path] if prepared is None else self._store(index, file_index, source, prepared)
                )
                if self.setting.on_progress:
                    self.setting.on_progress(source.name, index, len(self.recipe.sources))
                if taken == source.cap:
                    break

    def _prepared(
        self, source: Source, around: Surroundings, pool: Pool | None
    ) -> Generator[tuple[str, Prepared | None]]:
        with closing(open_source(source, around)) as candidates:
            plan = preparation(source, self.recipe)
            yield from prepare_all(candidates, plan, around.finished, pool)

    def _store(self, index: int, file_index: int, source: Source, prepared: Prepared) -> bool:
        """Whether any piece of the file was kept; all its rows go to one journal."""
        split = split_of(source, prepared.sha256 or "")
        base = provenance(source, prepared, split) | {"source_index": index, "file_index": file_index}
        usable = any(piece.reason is None for piece in prepared.pieces)
        repeated = self._repetition(source, split, prepared.sha256 or "") if usable else None
        if repeated:
            self._loose.append(
                piece_row(base, 0, prepared.pieces[0]) | {"status": "duplicate", "reason": repeated}
            )
            return False
        if not usable:
            self._loose += [piece_row(base, number, piece) for number, piece in enumerate(prepared.pieces)]
            return False
        self._known[is_twin(source), prepared.sha256 or ""] = Known(
            source.name, prepared.path, source.label, split
        )
        writer = self._writer(split)
        for number, piece in enumerate(prepared.pieces):
            row = piece_row(base, number, piece)
            if piece.reason is None:
                row |= {"shard": writer.name, "key": key_of(source, prepared, piece), "status": "kept"}
                writer.add(row["key"], piece.extension, piece.data, row)
            self._pending[split].append(row)
        return True

    def _repetition(self, source: Source, split: str, sha256: str) -> str | None:
        """Why a file must not be stored again, one sentence; None when it is new."""
        twin = is_twin(source)
        known = self._known.get((twin, sha256))
        if known and known.label != source.label:
            return (
                f"{CONFLICT}labelled {source.label} here and {known.label} as {known.path} of {known.source}"
            )
        if known:
            return f"same bytes as {known.path} of {known.source}"
        other = self._known.get((not twin, sha256))
        if other and other.split != split:
            return f"its picture stands in split {other.split} already, as {other.path} of {other.source}"
        return None

    def _writer(self, split: str) -> ShardWriter:
        """The split's writer with room in its open shard."""
        if split not in self._writers:
            number = len(list(self.folder.glob(f"{split}-*.tar")))
            self._writers[split] = ShardWriter(
                self.folder, split, number, self.recipe.shard_count, self.recipe.shard_bytes
            )
            self._pending[split] = []
        writer = self._writers[split]
        if writer.full:
            self._close(split, writer)
        return writer

    def _close(self, split: str, writer: ShardWriter) -> None:
        if self._pending[split]:
            writer.close(self._pending[split] + self._loose)
            self._pending[split], self._loose = [], []
