"""Candidates: one file of a source, before anything is known about it, and what openers share."""

import hashlib
from collections.abc import Container, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from mirage.errors import RecipeError

EXTENSIONS = frozenset(
    (
        *(".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".apng", ".webp", ".avif", ".heic", ".heif"),
        *(".gif", ".bmp", ".tif", ".tiff", ".jp2", ".j2k", ".ppm", ".pgm"),
    )
)


class MissingSource(RecipeError):
    """A source's folder, clone or revision is not on this machine."""


@dataclass(frozen=True)
class Candidate:
    """One file of a source, before anything is known about it.

    Attributes:
        path: inside the source; bytes that are not UTF-8 appear as \\xNN escapes.
        data: its bytes; None when the caller has finished this path already, or on an error.
        error: why there are no bytes, one sentence.
        columns: what the source itself says of the file: columns of its table, keys of its sidecar.
    """

    path: str
    data: bytes | None = None
    error: str | None = None
    columns: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Surroundings:
    """What openers need besides the source itself.

    Attributes:
        mirrors: the folder that holds bare clones, if any.
        recipe_dir: where relative paths of the recipe start.
        seed: of the pick by hash.
        finished: paths of this source whose bytes are not needed any more.
        max_bytes: larger files are not read.
        cache: a folder for what is downloaded.
    """

    mirrors: Path | None
    recipe_dir: Path
    seed: int
    finished: Container[str]
    max_bytes: int
    cache: Path


def pick(seed: int, identity: str, path: str) -> tuple[bytes, str]:
    """The sort key of a file: a hash of the seed and of what identifies it, then its path."""
    return hashlib.sha256(f"{seed}\0{identity}".encode("utf-8", "surrogateescape")).digest(), path


def printable(path: str) -> str:
    """The path as text that can be written anywhere; bytes that are not UTF-8 become \\xNN."""
    return path.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def read_file(path: Path, name: str, around: Surroundings) -> Candidate:
    """The candidate of a file on this machine; one that cannot be read carries its error."""
    if name in around.finished:
        return Candidate(name)
    try:
        size = path.stat().st_size
        if size > around.max_bytes:
            return Candidate(name, error=too_large(size, around.max_bytes))
        return Candidate(name, path.read_bytes())
    except OSError as error:
        return Candidate(name, error=f"the file cannot be read: {error.strerror}")


def too_large(size: int, limit: int) -> str:
    """The sentence about a file above the limit, in bytes."""
    return f"the file has {size:,} bytes; at most {limit:,} are read"
