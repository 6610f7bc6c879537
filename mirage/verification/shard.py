"""The check of one shard: its checksum, its tar file, and every sample against the journal's row."""

import hashlib
import json
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from mirage.decode import Limits, decode
from mirage.errors import UnreadableImage
from mirage.verification.problems import Problems

Row = dict[str, Any]
# What a sample's JSON file must say, and say as the journal does.
SIDECAR_COLUMNS = ("key", "label", "split", "sha256")
BLOCK_BYTES = 512
# Stored pictures were accepted once, so only their damage counts, not their size.
ANY_SIZE = Limits(min_side_px=1, max_bytes=2**40, max_pixels=2**40)


@dataclass(frozen=True)
class ShardCheck:
    """What was found in one shard.

    Attributes:
        problems: sentences that name the file.
        samples: samples read from the tar file.
        bytes: of the tar file.
        has_checksum: whether the sha256 of the tar file was recorded when it was written.
        unhashed: samples without a recorded sha256 of their stored bytes.
    """

    problems: tuple[str, ...] = ()
    samples: int = 0
    bytes: int = 0
    has_checksum: bool = True
    unhashed: int = 0


@dataclass
class _Shard:
    """A shard on its way through the checks."""

    path: Path
    rows: dict[str, Row]
    problems: Problems = field(default_factory=Problems)
    keys: set[str] = field(default_factory=set)
    unhashed: int = 0

    def add(self, kind: str, detail: str = "") -> None:
        self.problems.add(self.path.name, kind, detail)


def check_shard(path: Path) -> ShardCheck:
    """Everything wrong with the shard at `path`, its journal `<shard>.jsonl` and record `<shard>.json`."""
    journal = path.with_name(f"{path.name}.jsonl")
    rows = {row.get("key"): row for _, row in read_lines(journal) if isinstance(row, dict)}
    shard = _Shard(path, {key: row for key, row in rows.items() if key and row.get("status") == "kept"})
    if not journal.exists():
        shard.add("it has no journal, so it belongs to no finished data set")
    try:
        with path.open("rb") as stream:
            digest = hashlib.file_digest(stream, "sha256").hexdigest()
            _check_samples(shard, stream)
            size = stream.seek(0, 2)
    except FileNotFoundError:
        shard.add(f"the file is missing; its journal lists {len(shard.rows):,} pictures")
        return ShardCheck(shard.problems.sentences())
    except OSError as error:
        shard.add(f"the file cannot be read: {error.strerror or error}")
        return ShardCheck(shard.problems.sentences())
    for key in sorted(shard.rows.keys() - shard.keys):
        shard.add("the journal lists this sample, but the shard does not hold it", key)
    recorded = _check_record(shard, {"sha256": digest, "bytes": size, "samples": len(shard.keys)})
    return ShardCheck(shard.problems.sentences(), len(shard.keys), size, recorded, shard.unhashed)


def _check_record(shard: _Shard, found: dict[str, Any]) -> bool:
    """Whether a checksum was recorded; differences become problems."""
    record = shard.path.with_name(f"{shard.path.name}.json")
    try:
        recorded = json.loads(record.read_text("utf-8"))
    except FileNotFoundError:
        return False
    except ValueError:
        recorded = None
    if not isinstance(recorded, dict) or "sha256" not in recorded:
        shard.problems.add(record.name, "it is no record of a shard's sha256, bytes and samples")
        return False
    for name, value in found.items():
        if recorded.get(name, value) != value:
            shard.add(f"its {name} is {value}, recorded was {recorded[name]}")
    return True


def _check_samples(shard: _Shard, stream: IO[bytes]) -> None:
    stream.seek(0)
    try:
        with tarfile.open(fileobj=stream, mode="r:") as tar:
            for key, files in _samples(shard, tar):
                _check_sample(shard, key, files)
            end = tar.offset
    except tarfile.TarError as error:
        shard.add(f"the tar file is damaged or cut short: {error}")
        return
    # The reader stops without a word at a damaged header; a sound file ends in two blocks of zeros.
    stream.seek(end)
    rest = stream.read()
    if len(rest) < 2 * BLOCK_BYTES or rest.strip(b"\0"):
        shard.add(f"the tar file is damaged or cut short: nothing can be read after byte {end:,}")


def _samples(shard: _Shard, tar: tarfile.TarFile) -> Iterator[tuple[str, dict[str, bytes]]]:
    """Each run of files with one key, as bytes by extension."""
    current, files = "", dict[str, bytes]()
    for member in tar:
        key, _, extension = member.name.rpartition(".")
        content = tar.extractfile(member)
        if content is None or not key or "." in key:
            shard.add("a file must be named by a key without dots and an extension", repr(member.name))
            continue
        if key != current:
            if files:
                yield current, files
            current, files = key, {}
        elif extension in files:
            shard.add(f"it has two .{extension} files", key)
        files[extension] = content.read()
    if files:
        yield current, files


def _check_sample(shard: _Shard, key: str, files: dict[str, bytes]) -> None:
    if key in shard.keys:
        shard.add("the key is used twice", key)
    shard.keys.add(key)
    pictures = {extension: data for extension, data in files.items() if extension != "json"}
    if len(pictures) != 1 or "json" not in files:
        shard.add(f"a sample is one picture and one .json file, not {', '.join(sorted(files))}", key)
    row = shard.rows.get(key)
    if row is None:
        shard.add("the journal has no row of this sample", key)
    elif "json" in files:
        _check_sidecar(shard, key, files["json"], row)
    for extension, data in pictures.items():
        _check_picture(shard, key, extension, data, row or {})


def _check_sidecar(shard: _Shard, key: str, data: bytes, row: Row) -> None:
    try:
        sidecar = json.loads(data)
    except ValueError:
        sidecar = None
    if not isinstance(sidecar, dict):
        shard.add("its .json file is no JSON object", key)
        return
    columns = (sidecar.keys() & row.keys()) | set(SIDECAR_COLUMNS)
    different = sorted(name for name in columns if sidecar.get(name) != row.get(name))
    if different:
        shard.add(f"its .json file and the journal differ in {', '.join(different)}", key)


def _check_picture(shard: _Shard, key: str, extension: str, data: bytes, row: Row) -> None:
    for name, value in {"stored_format": extension, "bytes": len(data)}.items():
        if row.get(name, value) != value:
            shard.add(f"its {name} differs from the journal's", f"{key}: {value} instead of {row[name]}")
    _check_hash(shard, key, data, row)
    try:
        picture = decode(data, ANY_SIZE)
    except UnreadableImage as error:
        shard.add("the picture cannot be decoded", f"{key}: {error}")
        return
    found, told = (picture.width, picture.height), (row.get("width"), row.get("height"))
    if row and found != told:
        shard.add("its size differs from the journal's", f"{key}: {_size(found)} instead of {_size(told)}")


def _size(sides: tuple[int | None, int | None]) -> str:
    return f"{sides[0]} x {sides[1]} px"


def _check_hash(shard: _Shard, key: str, data: bytes, row: Row) -> None:
    # A picture that nothing changed is stored as the source's own bytes.
    wanted = row.get("stored_sha256") or (None if row.get("transforms") else row.get("sha256"))
    if wanted is None:
        shard.unhashed += 1
    elif hashlib.sha256(data).hexdigest() != wanted:
        shard.add("its stored bytes do not have the recorded sha256", key)


def read_lines(path: Path) -> Iterator[tuple[int, Any]]:
    """Number and content of each line of a JSONL file; None for a line that is not JSON."""
    try:
        stream = path.open("rb")
    except FileNotFoundError:
        return
    with stream:
        for number, line in enumerate(stream, 1):
            try:
                yield number, json.loads(line)
            except ValueError:
                yield number, None
