"""Pictures on this machine that a table names."""

from collections.abc import Generator
from dataclasses import replace
from pathlib import Path
from typing import Literal

from pydantic import Field

from mirage.declarations import SourceBase
from mirage.sources.candidate import Candidate, MissingSource, Surroundings, read_file
from mirage.sources.entries import Entry, by_hash, read_entries, sentence


class TableSource(SourceBase):
    """Pictures on this machine that a Parquet, CSV, TSV or JSONL file names, one a row."""

    kind: Literal["table"]
    path: Path = Field(description="of the table; a relative one starts at the recipe's folder")
    path_column: str = Field(default="path", description="names the picture files")
    root: Path | None = Field(
        default=None, description="where the table's relative paths start, and below which all must lie"
    )


def open_table(source: TableSource, around: Surroundings) -> Generator[Candidate]:
    """The files that the table names, in hash order of their paths; other scalar columns come along.

    `root` is the table's own folder unless the source names one. A file that is missing or lies
    outside `root`, links followed, is a candidate with an error, and so is a path's second row.

    Raises:
        MissingSource: the table or `root` is not on this machine.
        RecipeError: the table cannot be read, or lacks the column.
    """
    table = around.recipe_dir / source.path
    root = (around.recipe_dir / source.root if source.root else table.parent).resolve()
    if not root.is_dir():
        raise MissingSource(f"source {source.name}: the folder {root} does not exist")
    for entry in by_hash(read_entries(table, source.path_column, source.name), around.seed):
        yield replace(_read(entry, root, around), columns=entry.columns)


def _read(entry: Entry, root: Path, around: Surroundings) -> Candidate:
    """The named file; errors tell no folder of this machine, so manifests of a rebuild are equal."""
    if entry.name in around.finished:
        return Candidate(entry.name)
    if entry.error:
        return Candidate(entry.name, error=entry.error)
    try:
        path = (root / entry.name).resolve()
        if not path.is_relative_to(root):
            return Candidate(entry.name, error="the path leads outside the folder that is its root")
        if not path.is_file():
            return Candidate(entry.name, error="there is no file of this path")
    except (OSError, ValueError) as error:  # a name too long, a null byte
        return Candidate(entry.name, error=f"the path cannot be used: {sentence(error)}")
    except RuntimeError:
        return Candidate(entry.name, error="the path is a link that leads to itself")
    return read_file(path, entry.name, around)
