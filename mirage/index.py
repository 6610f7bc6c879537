"""The index of a build: what was finished, and which pictures were kept, on disk so that memory stays flat.

Near copies are found by multi-index hashing (Norouzi et al. 2012): the 64-bit hash is cut into four
bands of 16 bits; two hashes at most 7 bits apart agree in one band up to one bit, so 17 values a band
find every one of them. A query reads a few rows however many pictures there are.
"""

import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from mirage.perceptual import Fingerprint, distance
from mirage.shards import TEMPORARY

INDEX = "index" + TEMPORARY  # rebuilt from the journals at each start, so it is never worth keeping
BANDS = 4
BAND_BITS = 16
COARSE_REACH = 2 * BANDS - 1
# Measured on 14,000 pictures: re-encoding and resizing change at most 16 bits of 99 in 100 pictures;
# pairs from 30 bits on are different pictures of one series or style.
FINE_REACH = 24

SCHEMA = """
CREATE TABLE finished (source TEXT, path TEXT, kept INTEGER, PRIMARY KEY (source, path)) WITHOUT ROWID;
CREATE TABLE exact (twin INTEGER, sha256 TEXT, picture INTEGER, PRIMARY KEY (twin, sha256)) WITHOUT ROWID;
CREATE TABLE pictures (
  id INTEGER PRIMARY KEY, twin INTEGER, source TEXT, path TEXT, label TEXT, split TEXT,
  coarse TEXT, fine TEXT, band0 INTEGER, band1 INTEGER, band2 INTEGER, band3 INTEGER);
CREATE INDEX by_band0 ON pictures (band0);
CREATE INDEX by_band1 ON pictures (band1);
CREATE INDEX by_band2 ON pictures (band2);
CREATE INDEX by_band3 ON pictures (band3);
"""


class Known(NamedTuple):
    """A kept picture."""

    source: str
    path: str
    label: str
    split: str


class Near(NamedTuple):
    """A kept picture that looks like another one, and how many of 256 bits differ."""

    known: Known
    bits: int


class Index:
    """Finished files and kept pictures of one build, in a temporary database in its folder."""

    def __init__(self, folder: Path) -> None:
        path = folder / INDEX
        path.unlink(missing_ok=True)
        self._database = sqlite3.connect(path, isolation_level=None)
        # A crash throws the index away, so it needs neither a journal nor a flush.
        self._database.executescript("PRAGMA journal_mode = OFF; PRAGMA synchronous = OFF;" + SCHEMA)
        self._path = path

    def close(self) -> None:
        """Close and remove the database."""
        self._database.close()
        self._path.unlink(missing_ok=True)

    def finish(self, source: str, path: str, kept: bool) -> None:
        """Note that a file is done; a file with several pictures counts as kept when one of them is."""
        self._database.execute(
            "INSERT INTO finished VALUES (?, ?, ?) ON CONFLICT DO UPDATE SET kept = max(kept, excluded.kept)",
            (source, path, kept),
        )

    def finished(self, source: str) -> "Finished":
        """The source's finished paths."""
        return Finished(self._database, source)

    def kept_files(self, source: str) -> int:
        """How many finished files of the source were kept."""
        query = "SELECT count(*) FROM finished WHERE source = ? AND kept"
        return int(self._database.execute(query, (source,)).fetchone()[0])

    def add(self, known: Known, *, twin: bool, sha256: str, fingerprint: Fingerprint | None) -> None:
        """Note a kept picture.

        Args:
            known: the picture.
            twin: whether it belongs to a pair with its reconstruction; pairs are compared among themselves.
            sha256: of the file it came from.
            fingerprint: None keeps it out of the search for near copies.
        """
        hashes = (fingerprint.coarse, fingerprint.fine) if fingerprint else (None, None)
        bands = _bands(fingerprint.coarse) if fingerprint else [None] * BANDS
        row = self._database.execute(
            "INSERT INTO pictures VALUES (NULL, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (twin, *known, *hashes, *bands),
        )
        self._database.execute("INSERT OR IGNORE INTO exact VALUES (?, ?, ?)", (twin, sha256, row.lastrowid))

    def find_exact(self, sha256: str, *, twin: bool) -> Known | None:
        """The first kept picture from a file with these bytes."""
        query = (
            "SELECT source, pictures.path, label, split FROM exact JOIN pictures ON picture = id "
            "WHERE exact.twin = ? AND sha256 = ?"
        )
        row = self._database.execute(query, (twin, sha256)).fetchone()
        return Known(*row) if row else None

    def find_near(self, fingerprint: Fingerprint, *, twin: bool) -> Near | None:
        """The nearest kept picture within reach, the first of equals; None when there is none."""
        best: Near | None = None
        for known, coarse, fine in self._candidates(fingerprint.coarse, twin):
            if distance(coarse, fingerprint.coarse) > COARSE_REACH:
                continue
            bits = distance(fine, fingerprint.fine)
            if bits <= FINE_REACH and (best is None or bits < best.bits):
                best = Near(known, bits)
        return best

    def _candidates(self, coarse: str, twin: bool) -> Iterator[tuple[Known, str, str]]:
        for number, band in enumerate(_bands(coarse)):
            values = (band, *(band ^ 1 << bit for bit in range(BAND_BITS)))
            marks = ", ".join("?" * len(values))
            query = (
                "SELECT source, path, label, split, coarse, fine FROM pictures "
                f"WHERE band{number} IN ({marks}) AND twin = ? ORDER BY id"
            )
            for *known, other_coarse, other_fine in self._database.execute(query, (*values, twin)):
                yield Known(*known), other_coarse, other_fine


class Finished:
    """The finished paths of one source, looked up one by one."""

    def __init__(self, database: sqlite3.Connection, source: str) -> None:
        self._database, self._source = database, source

    def __contains__(self, path: object) -> bool:
        query = "SELECT 1 FROM finished WHERE source = ? AND path = ?"
        return self._database.execute(query, (self._source, path)).fetchone() is not None


def _bands(coarse: str) -> list[int]:
    value = int(coarse, 16)
    return [value >> BAND_BITS * number & 0xFFFF for number in range(BANDS)]
