"""Entries: the rows of a table that names pictures, read in a stream and put in hash order on disk."""

import csv
import errno
import json
import math
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from datetime import date, time
from decimal import Decimal
from pathlib import Path
from typing import Any

from mirage.errors import RecipeError
from mirage.extras import need
from mirage.sources.candidate import MissingSource, pick, printable

SCALARS = ("is_primitive", "is_string", "is_large_string", "is_string_view", "is_decimal", "is_dictionary")
Values = dict[str, Any] | str  # a row's values, or why it has none


@dataclass(frozen=True)
class Entry:
    """One row of a table.

    Attributes:
        name: what the row names, a path or a URL; "row N" when it names nothing.
        number: of the row, from 1, the header not counted.
        columns: the row's other scalars as text, without empty ones.
        error: why the row names nothing usable, one sentence.
    """

    name: str
    number: int
    columns: dict[str, str] = field(default_factory=dict)
    error: str | None = None


def read_entries(path: Path, column: str, source: str) -> Iterator[Entry]:
    """The rows of a Parquet, CSV, TSV or JSONL file in stored order, one after another.

    Args:
        path: of the table; the extension tells the format. A TSV has no quoting, a CSV has.
        column: whose value names the picture.
        source: name of the source, for messages.

    Raises:
        MissingSource: there is no such file.
        RecipeError: the file is no such table, or lacks the column.
    """
    reader = READERS.get(path.suffix.lower())
    if reader is None:
        raise RecipeError(f"source {source}: {path.name} must end in one of {', '.join(READERS)}")
    if not path.is_file():
        raise MissingSource(f"source {source}: the table {path} does not exist")
    found, others = False, set[str]()
    try:
        for number, values in enumerate(reader(path, column), start=1):
            if isinstance(values, dict) and not found:
                found = column in values
                others.update(list(values)[:100])
            yield _entry(number, values, column)
    except _NoColumn as error:
        raise _no_column(source, path, column, error.args[0]) from None
    except (OSError, ValueError, csv.Error) as error:
        raise RecipeError(f"source {source}: {path} cannot be read: {sentence(error)}") from error
    if others and not found:
        raise _no_column(source, path, column, sorted(others)[:100])


def by_hash(entries: Iterable[Entry], seed: int) -> Iterator[Entry]:
    """The entries in hash order of their names; a name's repetitions follow it and carry an error.

    They are sorted in a temporary file, so memory does not grow with their number.
    """
    try:
        # SQLite deletes the file of an unnamed database as it opens it: a kill leaves nothing behind.
        with closing(sqlite3.connect("", check_same_thread=False)) as database:
            database.execute("CREATE TABLE entry (digest BLOB, name TEXT, number INTEGER, rest TEXT)")
            database.executemany("INSERT INTO entry VALUES (?, ?, ?, ?)", (_pack(e, seed) for e in entries))
            before: Entry | None = None
            rows = database.execute("SELECT name, number, rest FROM entry ORDER BY digest, name, number")
            for name, number, rest in rows:
                entry = Entry(name, number, **json.loads(rest))
                if before and before.name == name:
                    told = f"row {before.number} names {name} already"
                    yield replace(entry, name=f"{name} (row {number})", error=told)
                    continue
                before = entry
                yield entry
    except sqlite3.OperationalError as error:
        raise OSError(errno.ENOSPC, f"rows cannot be sorted in a temporary file ({error})") from error


def as_text(value: Any) -> str | None:
    """The scalar as text; None for what is empty, not a number or not a scalar.

    Numbers are written so that they read back equal, dates in ISO format, truth as true and false.
    """
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode("utf-8") or None
    if isinstance(value, float):
        return None if math.isnan(value) else repr(value)
    if isinstance(value, int | Decimal):
        return str(value)
    return value.isoformat() if isinstance(value, date | time) else None


def scalars(values: dict[str, Any], without: Iterable[str] = ()) -> dict[str, str]:
    """The scalar values as text, without the named ones and without empty ones."""
    texts = {str(name): as_text(value) for name, value in values.items() if name not in frozenset(without)}
    return {name: text for name, text in texts.items() if text is not None}


def sentence(error: BaseException) -> str:
    """What the error says, on one line of at most 300 characters."""
    text = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return " ".join(str(text).split())[:300]


class _NoColumn(Exception):
    """The table lacks the column; the argument lists the ones it has."""


def _no_column(source: str, path: Path, column: str, there: Sequence[str]) -> RecipeError:
    return RecipeError(f"source {source}: {path} has no column {column!r}; it has {', '.join(there)}")


def _entry(number: int, values: Values, column: str) -> Entry:
    if isinstance(values, str):
        return Entry(f"row {number}", number, error=values)
    columns = scalars(values, without=[column])
    name = as_text(values.get(column))
    if name is None:
        return Entry(f"row {number}", number, columns, error=f"column {column} of row {number} is empty")
    return Entry(printable(name), number, columns)


def _pack(entry: Entry, seed: int) -> tuple[bytes, str, int, str]:
    rest = json.dumps({"columns": entry.columns, "error": entry.error})
    return pick(seed, entry.name, entry.name)[0], entry.name, entry.number, rest


def _read_parquet(path: Path, column: str) -> Iterator[Values]:
    parquet, types = need("pyarrow.parquet"), need("pyarrow").types
    with parquet.ParquetFile(path) as table:
        # Pictures and lists stored in the table itself are not even read.
        names = [f.name for f in table.schema_arrow if any(getattr(types, is_a)(f.type) for is_a in SCALARS)]
        if column not in names:
            raise _NoColumn(names)
        for batch in table.iter_batches(batch_size=1024, columns=names):
            yield from batch.to_pylist()


def _read_csv(path: Path, column: str) -> Iterator[Values]:
    return _read_delimited(path, column, delimiter=",", strict=True)


def _read_tsv(path: Path, column: str) -> Iterator[Values]:
    return _read_delimited(path, column, delimiter="\t", quoting=csv.QUOTE_NONE)


def _read_delimited(path: Path, column: str, **dialect: Any) -> Iterator[Values]:
    with path.open(encoding="utf-8-sig", newline="") as stream:
        reader = csv.reader(stream, **dialect)
        header = next(reader, [])
        if column not in header:
            raise _NoColumn(header)
        while True:
            try:
                fields = next(reader)
            except StopIteration:
                return
            except csv.Error as error:
                yield f"line {reader.line_num} is no row of the table: {error}"
                continue
            if len(fields) == len(header):
                yield dict(zip(header, fields, strict=True))
            elif fields:
                yield f"line {reader.line_num} has {len(fields)} fields; the header has {len(header)}"


def _read_jsonl(path: Path, column: str) -> Iterator[Values]:
    with path.open(encoding="utf-8-sig") as stream:
        for number, line in enumerate(stream, start=1):
            if line.strip():
                yield _parse_line(number, line)


def _parse_line(number: int, line: str) -> Values:
    try:
        values = json.loads(line)
    except (ValueError, RecursionError) as error:
        return f"line {number} is not JSON: {sentence(error)}"
    return values if isinstance(values, dict) else f"line {number} holds no JSON object"


READERS: dict[str, Callable[[Path, str], Iterator[Values]]] = {
    ".parquet": _read_parquet,
    ".csv": _read_csv,
    ".tsv": _read_tsv,
    ".jsonl": _read_jsonl,
    ".ndjson": _read_jsonl,
}
