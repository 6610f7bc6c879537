"""The assembly of a data set: every source's pictures deduplicated, split and put into shards.

Everything happens in one fixed order (source, file, piece), so a resumed run that skips the files
of finished shards arrives at the same shards and the same manifest as an uninterrupted one.
"""

from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path

from mirage.declarations import SourceBase
from mirage.facts import Facts, UnusableFacts, facts_of, is_wanted, split_of
from mirage.index import Index, Known
from mirage.perceptual import Fingerprint
from mirage.pieces import Piece
from mirage.prepare import Preparation, Prepared, failure, prepare
from mirage.recipe import Recipe
from mirage.reconstruct import ready_model
from mirage.rows import UNKNOWN, is_twin, key_of, piece_row, provenance
from mirage.shards import Row, ShardWriter, journals, next_loose, read_journal, write_journal
from mirage.sources import Candidate, MissingSource, Surroundings, open_source
from mirage.workers import Engine

CONFLICT = "conflict: "
LOOSE_ROWS = 1000

Progress = Callable[[str, int, int], None]


@dataclass(frozen=True)
class Setting:
    """Where and how a run works, apart from the recipe.

    Attributes:
        folder: of the data set.
        recipe_dir: where relative paths of the recipe start.
        mirrors: the folder that holds bare clones, if any.
        skip_missing: go on without sources that are not on this machine.
        on_progress: called after each file with source name, its place and the number of sources.
    """

    folder: Path
    recipe_dir: Path
    mirrors: Path | None = None
    skip_missing: bool = False
    on_progress: Progress | None = None


@dataclass(frozen=True)
class Entry:
    """One file on its way: its place in the recipe and what is known of it."""

    source: SourceBase
    source_index: int
    file_index: int
    path: str
    facts: Facts
    split: str
    unusable: str | None = None


@dataclass
class Assembly:
    """One run over a recipe."""

    recipe: Recipe
    setting: Setting
    index: Index
    skipped: list[str] = field(default_factory=list)
    _writers: dict[str, ShardWriter] = field(default_factory=dict)
    _pending: dict[str, list[Row]] = field(default_factory=dict)  # rows of the open shard, by split
    _loose: list[Row] = field(default_factory=list)  # rows without a picture, for the next journal

    def work(self, engine: Engine) -> None:
        """Go through all sources; what the folder's journals hold is not done again."""
        self._load_finished()
        try:
            for number, source in enumerate(self.recipe.sources):
                try:
                    self._take(number, source, engine)
                except MissingSource as error:
                    if not self.setting.skip_missing:
                        raise
                    self.skipped.append(str(error))
            for split, writer in self._writers.items():
                self._close(split, writer)
            self._flush_loose()
        finally:
            for writer in self._writers.values():
                writer.abandon()

    def _load_finished(self) -> None:
        for path in journals(self.setting.folder):
            for row in read_journal(path):
                kept = row["status"] == "kept"
                self.index.finish(row["source"], row["path"], kept)
                if kept:
                    prints = Fingerprint(row["phash"], row["phash_fine"]) if row["phash"] else None
                    known = Known(row["source"], row["path"], row["source_label"], row["split"])
                    twin = row["pair"] is not None
                    self.index.add(known, twin=twin, sha256=row["sha256"], fingerprint=prints)

    def _take(self, number: int, source: SourceBase, engine: Engine) -> None:
        """Store the source's files up to its cap."""
        taken = self.index.kept_files(source.name)
        if taken == source.cap:
            return
        plans = self._plans(source)
        jobs = (
            (entry, None if entry.unusable else (candidate, entry.facts, plans[entry.split]))
            for entry, candidate in self._entries(number, source)
        )
        with closing(engine.run(prepare, jobs, _give_up)) as results:
            for entry, prepared in results:
                taken += self._store(entry, prepared or _unusable(entry))
                if self.setting.on_progress:
                    self.setting.on_progress(source.name, number, len(self.recipe.sources))
                if taken == source.cap:
                    break

    def _entries(self, number: int, source: SourceBase) -> Generator[tuple[Entry, Candidate]]:
        """The source's files that are wanted and not finished, each with its facts."""
        finished = self.index.finished(source.name)
        setting = self.setting
        around = Surroundings(
            setting.mirrors,
            setting.recipe_dir,
            self.recipe.seed,
            finished,
            self.recipe.limits.max_bytes,
            setting.folder / "downloads",
        )
        with closing(open_source(source, around)) as candidates:  # type: ignore[arg-type]
            for place, candidate in enumerate(candidates):
                if candidate.path not in finished and is_wanted(source, candidate):
                    yield self._entry(number, place, source, candidate), candidate

    def _entry(self, number: int, place: int, source: SourceBase, candidate: Candidate) -> Entry:
        try:
            facts = facts_of(source, candidate, self.setting.recipe_dir)
        except UnusableFacts as error:
            blank = Facts("", "", "", "", source.licence)
            return Entry(source, number, place, candidate.path, blank, "", str(error))
        known = self.recipe.generators.get(facts.generator, UNKNOWN)
        released = known.released.isoformat() if known.released else ""
        split = split_of(source, facts, released, self.recipe.splits, self.recipe.seed)
        return Entry(source, number, place, candidate.path, facts, split)

    def _plans(self, source: SourceBase) -> dict[str, Preparation]:
        """How the source's files are prepared, by the split they go to."""
        recipe, rules = self.recipe, source.rules
        min_side_px = rules.min_side_px or recipe.min_side_px
        least = min(recipe.limits.min_side_px, min_side_px)
        wanted = rules.reconstruct
        model = ready_model(wanted.method, wanted.model, self.setting.recipe_dir) if wanted else None
        plan = Preparation(
            rules,
            recipe.limits.model_copy(update={"min_side_px": least}),
            min_side_px,
            recipe.max_side_px,
            None,
            recipe.seed,
            model,
        )
        aligned = recipe.align.splits if recipe.align else ()
        return {
            split: replace(plan, align=recipe.align) if split in aligned else plan
            for split in ("train", "calibration", "devtest")
        }

    def _store(self, entry: Entry, prepared: Prepared) -> bool:
        """Whether any piece of the file was kept; all its rows go to one journal."""
        base = provenance(entry.source, entry.facts, entry.split, prepared)
        base |= {"source_index": entry.source_index, "file_index": entry.file_index}
        pieces = self._judge(entry, prepared)
        rows = [
            piece_row(base, number, piece, self.recipe.generators) | ({"status": "duplicate"} if copy else {})
            for number, (piece, copy) in enumerate(pieces)
        ]
        if all(piece.reason for piece, _ in pieces):
            self._loose += rows
            if len(self._loose) >= LOOSE_ROWS:
                self._flush_loose()
            return False
        writer = self._writer(entry.split)
        for row, (piece, _) in zip(rows, pieces, strict=True):
            if piece.reason is None:
                key = key_of(entry.source, prepared, piece)
                row |= {"shard": writer.name, "key": key, "status": "kept"}
                writer.add(key, piece.extension, piece.data, row)
        self._pending[entry.split] += rows
        return True

    def _judge(self, entry: Entry, prepared: Prepared) -> list[tuple[Piece, bool]]:
        """The file's pieces, each with whether it repeats a kept picture; new ones are noted as kept."""
        pieces = prepared.pieces
        usable = [piece for piece in pieces if piece.reason is None]
        if prepared.sha256 in self.recipe.exclude:
            return [(replace(piece, reason="the recipe excludes it"), False) for piece in pieces]
        if not usable or prepared.sha256 is None:
            return [(piece, False) for piece in pieces]
        twin = is_twin(entry.source)
        if repeated := self._same_bytes(entry, prepared.sha256, twin):
            return [(replace(pieces[0], reason=repeated), True)]
        judged = []
        for piece in pieces:
            repeated = None if piece.reason else self._near_copy(entry, piece, twin)
            if repeated and twin:
                return [(replace(pieces[0], reason=repeated), True)]
            judged.append((replace(piece, reason=repeated) if repeated else piece, repeated is not None))
            if piece.reason is None and not repeated:
                known = Known(entry.source.name, entry.path, entry.facts.label, entry.split)
                self.index.add(known, twin=twin, sha256=prepared.sha256, fingerprint=piece.fingerprint)
        return judged

    def _same_bytes(self, entry: Entry, sha256: str, twin: bool) -> str | None:
        """Why a file must not be stored again, one sentence; None when it is new."""
        known = self.index.find_exact(sha256, twin=twin)
        if known:
            return _sentence("same bytes as", entry, known)
        other = self.index.find_exact(sha256, twin=not twin)
        if other and other.split != entry.split:
            return f"its picture stands in split {other.split} already, as {other.path} of {other.source}"
        return None

    def _near_copy(self, entry: Entry, piece: Piece, twin: bool) -> str | None:
        """Why a picture must not be stored again, one sentence; None when none looks like it."""
        if piece.fingerprint is None or self.recipe.near_copies:
            return None
        near = self.index.find_near(piece.fingerprint, twin=twin)
        return near and _sentence(f"near copy ({near.bits} of 256 bits differ) of", entry, near.known)

    def _writer(self, split: str) -> ShardWriter:
        """The split's writer with room in its open shard."""
        if split not in self._writers:
            folder, recipe = self.setting.folder, self.recipe
            number = len(list(folder.glob(f"{split}-*.tar")))
            self._writers[split] = ShardWriter(folder, split, number, recipe.shard_count, recipe.shard_bytes)
            self._pending[split] = []
        writer = self._writers[split]
        if writer.full:
            self._close(split, writer)
        return writer

    def _close(self, split: str, writer: ShardWriter) -> None:
        if self._pending[split]:
            writer.close(self._pending[split])
            self._pending[split] = []

    def _flush_loose(self) -> None:
        if self._loose:
            write_journal(next_loose(self.setting.folder), self._loose)
            self._loose = []


def _sentence(how: str, entry: Entry, known: Known) -> str:
    place = f"{known.path} of {known.source}"
    if known.label != entry.facts.label:
        return f"{CONFLICT}labelled {entry.facts.label} here, but {how} {place}, labelled {known.label}"
    return f"{how} {place}"


def _unusable(entry: Entry) -> Prepared:
    return replace(failure(entry.path, entry.facts, entry.unusable or ""), failed=False)


def _give_up(arguments: tuple[Candidate, Facts, Preparation], sentence: str) -> Prepared:
    """The row of a file whose decoder crashed or hung."""
    candidate, facts, _ = arguments
    return failure(candidate.path, facts, sentence, candidate.data)


def read_conflicts(folder: Path) -> Iterator[str]:
    """A sentence for each pair of like pictures with opposite labels, for a person to settle."""
    for path in journals(folder):
        for row in read_journal(path):
            if (row["reason"] or "").startswith(CONFLICT):
                yield f"{row['source']}: {row['path']}: {row['reason']}"
