"""The check of all rows together: journals against the manifest, the splits and the sums."""

import hashlib
import json
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from mirage.errors import BuildError
from mirage.extras import need
from mirage.manifest import MANIFEST, read_manifest
from mirage.shards import journals
from mirage.verification.problems import Problems
from mirage.verification.shard import read_lines

Row = dict[str, Any]
Place = tuple[int, int, int]
STATUSES = ("kept", "rejected", "duplicate")
PLACE_COLUMNS = ("source_index", "file_index", "piece_index")
NEEDED_COLUMNS = (*PLACE_COLUMNS, *("status", "source", "path", "sha256", "label", "split", "shard", "key"))
# What must stand in one split only: column -> what it is called.
WHOLE = {"sha256": "the source file", "pair": "the pair", "group": "the group"}


class Rows:
    """All journals' rows, checked one by one; of each only a digest and its place stay in memory."""

    def __init__(self, folder: Path, rules: Mapping[str, Any], problems: Problems) -> None:
        """Start with no rows.

        Args:
            folder: of the data set.
            rules: the recipe's `splits`, as far as known.
            problems: where problems go.
        """
        self._folder, self._rules, self._problems = folder, rules, problems
        self.statuses: Counter[str] = Counter()
        self._columns = _manifest_columns(folder)
        self._digests: dict[Place, bytes] = {}
        self._keys: dict[str, str] = {}
        self._splits: dict[tuple[str, bytes], tuple[str, str]] = {}  # (column, digest) -> split, where

    def check_journals(self) -> None:
        """Go through all journals."""
        for path in journals(self._folder):
            for number, row in read_lines(path):
                if not isinstance(row, dict) or place_of(row) is None:
                    self._problems.add(path.name, "it is no row of a journal", f"line {number}")
                else:
                    self._check_row(path.name, f"line {number}", row)

    def _check_row(self, journal: str, line: str, row: Row) -> None:
        place = place_of(row)
        assert place is not None  # checked by the caller
        self.statuses[str(row.get("status"))] += 1
        if place in self._digests:
            self._problems.add(journal, "another row has the same place in the recipe", line)
        self._digests[place] = _digest(row, self._columns)
        if row.get("status") == "kept":
            self._check_kept(journal, line, row)
        elif row.get("status") not in STATUSES:
            self._problems.add(journal, f"its status is none of {', '.join(STATUSES)}", line)
        elif not row.get("reason"):
            self._problems.add(journal, "it is not kept, but no reason is told", line)

    def _check_kept(self, journal: str, line: str, row: Row) -> None:
        key = str(row.get("key") or "")
        if row.get("shard") != journal.removesuffix(".jsonl"):
            self._problems.add(journal, "its shard is another one", f"{line}: {row.get('shard')}")
        if not key or "." in key:
            self._problems.add(journal, "its key is empty or has a dot", f"{line}: {key!r}")
        if key in self._keys:
            self._problems.add(journal, f"its key is used in {self._keys[key]}, too", f"{line}: {key}")
        self._keys.setdefault(key, journal)
        split = str(row.get("split"))
        if not journal.startswith(f"{split}-"):
            self._problems.add(journal, "its split is another one", f"{line}: {split}")
        for column, name in WHOLE.items():
            value = row.get(column)
            if value and not (column == "group" and self._is_held_out(row)):
                self._check_whole(journal, line, split, column, f"{name} {value}")

    def _is_held_out(self, row: Row) -> bool:
        """Whether the recipe takes the row's generator out of its group, into devtest."""
        after = self._rules.get("released_after")
        held = row.get("generator") in (self._rules.get("hold_out") or ())
        return row.get("label") == "ai" and (held or bool(after and (row.get("released") or "") > after))

    def _check_whole(self, journal: str, line: str, split: str, column: str, name: str) -> None:
        digest = hashlib.blake2b(name.encode("utf-8", "backslashreplace"), digest_size=12).digest()
        known, where = self._splits.setdefault((column, digest), (split, journal))
        if known != split:
            detail = f"{line}: {name} stands in {split} here and in {known} in {where}"
            self._problems.add(journal, f"one {column} is in two splits", detail)

    def check_manifest(self) -> int:
        """The number of rows of the manifest, each compared with its journal's."""
        missing = [name for name in NEEDED_COLUMNS if self._columns and name not in self._columns]
        if missing:
            self._problems.add(MANIFEST, f"it has no columns {', '.join(missing)}")
            return 0
        seen, different = 0, dict[Place | None, Row]()
        for row in self._manifest_rows():
            seen += 1
            digest = self._digests.pop(place_of(row) or (-1, -1, -1), None)
            if digest is None:
                self._problems.add(MANIFEST, "no journal has this row, or it stands twice", _name(row))
            elif digest != _digest(row, self._columns):
                different[place_of(row)] = row
        for path in journals(self._folder) if different or self._digests else ():
            for _, row in read_lines(path):
                place = place_of(row) if isinstance(row, dict) else None
                if place in self._digests:
                    self._problems.add(MANIFEST, f"it lacks a row of {path.name}", _name(row))
                elif place in different:
                    names = _differences(row, different[place], self._columns)
                    self._problems.add(MANIFEST, f"it differs from {path.name} in {names}", _name(row))
        return seen

    def _manifest_rows(self) -> Iterator[Row]:
        try:
            yield from read_manifest(self._folder)
        except BuildError:
            self._problems.add(MANIFEST, "the file is missing")
        except (OSError, need("pyarrow").ArrowException) as error:
            self._problems.add(MANIFEST, f"it cannot be read: {' '.join(str(error).split())[:200]}")


def _manifest_columns(folder: Path) -> tuple[str, ...]:
    """The manifest's columns; none when it cannot be read."""
    try:
        return tuple(need("pyarrow.parquet").read_schema(folder / MANIFEST).names)
    except (OSError, need("pyarrow").ArrowException):
        return ()


def place_of(row: Row) -> Place | None:
    """Where the row stands in the recipe; None when it does not say."""
    first, second, third = (row.get(name) for name in PLACE_COLUMNS)
    if isinstance(first, int) and isinstance(second, int) and isinstance(third, int):
        return first, second, third
    return None


def _name(row: Row) -> str:
    return f"{row.get('source')}: {row.get('path')}"


def _flat(value: Any) -> Any:
    """The value as the manifest holds it: lists are joined."""
    return "; ".join(map(str, value)) if isinstance(value, list) else value


def _digest(row: Row, columns: tuple[str, ...]) -> bytes:
    text = json.dumps([_flat(row.get(name)) for name in columns], ensure_ascii=True)
    return hashlib.blake2b(text.encode("ascii"), digest_size=12).digest()


def _differences(left: Row, right: Row, columns: tuple[str, ...]) -> str:
    return ", ".join(name for name in columns if _flat(left.get(name)) != _flat(right.get(name)))
