"""Shards on disk: written whole or not at all, each with a journal of the rows it finishes."""

import hashlib
import io
import json
import os
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

Row = dict[str, Any]
TEMPORARY = ".partial"
LOOSE = "rows-"  # journals of rows that belong to no shard


def write_atomically(path: Path, data: bytes) -> None:
    """Put `data` at `path`: other readers see the old file or the whole new one, also after a power cut."""
    temporary = path.with_name(path.name + TEMPORARY)
    with temporary.open("wb") as stream:
        stream.write(data)
        _settle(stream)
    publish(temporary, path)


def _settle(stream: IO[bytes]) -> None:
    stream.flush()
    os.fsync(stream.fileno())


def publish(temporary: Path, path: Path) -> None:
    """Give a finished temporary file its name, also after a power cut."""
    temporary.replace(path)
    if os.name == "posix":
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


class ShardWriter:
    """Writes one split's samples into numbered tar files.

    A shard counts as finished once its journal `<shard>.jsonl` exists; the journal is written after
    the tar file and its sidecar, so a kill at any moment leaves either all or something to clean up.
    """

    def __init__(self, folder: Path, split: str, next_number: int, max_count: int, max_bytes: int) -> None:
        self._folder, self._split, self._number = folder, split, next_number
        self._max_count, self._max_bytes = max_count, max_bytes
        self._stream: IO[bytes] | None = None
        self._tar: tarfile.TarFile | None = None
        self._count = 0
        self._bytes = 0

    @property
    def name(self) -> str:
        """The file name of the shard that the next sample goes to."""
        return f"{self._split}-{self._number:06d}.tar"

    @property
    def full(self) -> bool:
        """Whether the open shard has reached its number of samples or bytes."""
        return self._count >= self._max_count or self._bytes >= self._max_bytes

    def add(self, key: str, extension: str, data: bytes, sidecar: Row) -> None:
        """Append one sample: the picture and its JSON sidecar."""
        if self._tar is None:
            self._stream = (self._folder / (self.name + TEMPORARY)).open("wb")
            self._tar = tarfile.TarFile(fileobj=self._stream, mode="w", format=tarfile.USTAR_FORMAT)
        text = json.dumps(sidecar, ensure_ascii=False, sort_keys=True).encode("utf-8")
        for name, content in ((f"{key}.{extension}", data), (f"{key}.json", text)):
            # TarInfo's zero time and owner keep rebuilt shards identical byte for byte.
            member = tarfile.TarInfo(name)
            member.size = len(content)
            self._tar.addfile(member, io.BytesIO(content))
            self._bytes += len(content)
        self._count += 1

    def close(self, rows: list[Row]) -> None:
        """Publish the open shard, then the journal with the rows it finishes."""
        if self._tar is None or self._stream is None:
            return
        self._tar.close()
        _settle(self._stream)
        self._stream.close()
        temporary = self._folder / (self.name + TEMPORARY)
        write_atomically(self._folder / f"{self.name}.json", _sidecar(temporary, self._count))
        publish(temporary, self._folder / self.name)
        write_journal(self._folder / f"{self.name}.jsonl", rows)
        self._number += 1
        self._tar = self._stream = None
        self._count = self._bytes = 0

    def abandon(self) -> None:
        """Close the open file without publishing it."""
        if self._stream is not None:
            self._stream.close()


def _sidecar(shard: Path, samples: int) -> bytes:
    with shard.open("rb") as stream:
        digest = hashlib.file_digest(stream, "sha256").hexdigest()
    facts = {"sha256": digest, "bytes": shard.stat().st_size, "samples": samples}
    return json.dumps(facts).encode("utf-8")


def write_journal(path: Path, rows: list[Row]) -> None:
    """Store rows as JSON lines in the order of the recipe, whole or not at all."""
    ordered = sorted(rows, key=order)
    lines = (json.dumps(row, ensure_ascii=False, sort_keys=True) + "\n" for row in ordered)
    write_atomically(path, "".join(lines).encode("utf-8"))


def order(row: Row) -> tuple[int, int, int]:
    """Where a row stands in the recipe: source, file, piece."""
    return row["source_index"], row["file_index"], row["piece_index"]


def clean_up(folder: Path) -> None:
    """Remove what a killed run left: temporary files and shards without a journal."""
    for path in folder.glob(f"*{TEMPORARY}"):
        path.unlink()
    for path in (*folder.glob("*.tar"), *folder.glob("*.tar.json")):
        if not (folder / f"{path.name.removesuffix('.json')}.jsonl").exists():
            path.unlink()


def journals(folder: Path) -> list[Path]:
    """Every finished journal of the folder."""
    return sorted((*folder.glob("*.tar.jsonl"), *folder.glob(f"{LOOSE}*.jsonl")))


def next_loose(folder: Path) -> Path:
    """The path of the next journal of rows that belong to no shard."""
    numbers = [int(path.stem.removeprefix(LOOSE)) for path in folder.glob(f"{LOOSE}*.jsonl")]
    return folder / f"{LOOSE}{max(numbers, default=-1) + 1:06d}.jsonl"


def forget_failed(folder: Path) -> int:
    """The number of files to try again, because no bytes came or their decoder crashed or hung."""
    forgotten = 0
    for path in journals(folder):
        rows = list(read_journal(path))
        lasting = [row for row in rows if not row.get("failed")]
        if len(lasting) < len(rows):
            forgotten += len(rows) - len(lasting)
            write_journal(path, lasting)
    return forgotten


def read_journal(path: Path) -> Iterator[Row]:
    """The rows of one journal, in the order of the recipe."""
    with path.open(encoding="utf-8") as stream:
        for line in stream:
            yield json.loads(line)
