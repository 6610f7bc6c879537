"""Which inputs a scan covers: named files as they are, folders walked in a stable order."""

import errno
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from detector.paths import printable, reason

# The formats of `mirage.decode`, by the extensions people give them.
IMAGE_EXTENSIONS = frozenset((
    ".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".apng", ".webp", ".avif", ".avifs", ".heic", ".heif", ".gif",
    ".bmp", ".dib", ".tif", ".tiff", ".jp2", ".j2k", ".jpx", ".jpf", ".j2c", ".jpc",
    ".ppm", ".pgm", ".pbm", ".pnm", ".ico", ".icns", ".psd", ".qoi", ".dds", ".sgi", ".pcx",
))  # fmt: skip

Identity = tuple[int, int]  # device, inode


@dataclass(frozen=True)
class Input:
    """One row of a scan.

    Attributes:
        path: as the person named it, or as found below a named folder.
        problem: why it cannot be scored, where that is known before opening it.
    """

    path: Path
    problem: str | None = None


@dataclass(frozen=True)
class _Folder:
    path: Path
    ancestors: tuple[tuple[Identity, Path], ...]


def find_inputs(paths: Iterable[Path]) -> Iterator[Input]:
    """Inputs in the order of `paths`; folders give their pictures, depth first, sorted by name.

    Each real folder is visited once, also when it is reached by several names. Inside folders
    only names with a known image extension count; a named file is always taken.
    """
    visited: set[Identity] = set()
    for path in paths:
        if _is_folder(path):
            yield from _walk(path, visited)
        else:
            yield Input(path)


def _walk(top: Path, visited: set[Identity]) -> Iterator[Input]:
    """Pictures below `top`. An explicit stack, so that deep trees cannot exhaust Python's own."""
    stack: list[_Folder | Input] = [_Folder(top, ())]
    while stack:
        item = stack.pop()
        if isinstance(item, Input):
            yield item
            continue
        try:
            stack += reversed(_children(item, visited))
        except OSError as error:
            yield Input(item.path, f"the folder cannot be listed: {reason(error)}")


def _children(folder: _Folder, visited: set[Identity]) -> list["_Folder | Input"]:
    status = os.stat(folder.path)  # noqa: PTH116
    identity = (status.st_dev, status.st_ino)
    loop = next((path for known, path in folder.ancestors if known == identity), None)
    if loop is not None:
        return [
            Input(
                folder.path, f"the symbolic link leads back to {printable(loop)}; the loop was not followed"
            )
        ]
    if identity in visited:
        return []
    visited.add(identity)
    ancestors = (*folder.ancestors, (identity, folder.path))
    with os.scandir(folder.path) as entries:
        ordered = sorted(entries, key=lambda entry: os.fsencode(entry.name))
    children = (_child(folder.path / entry.name, entry, ancestors) for entry in ordered)
    return [child for child in children if child is not None]


def _child(
    path: Path, entry: "os.DirEntry[str]", ancestors: tuple[tuple[Identity, Path], ...]
) -> "_Folder | Input | None":
    try:
        if entry.is_dir():
            return _Folder(path, ancestors)
    except OSError as error:
        if error.errno == errno.ELOOP:
            return Input(path, "the symbolic link leads to itself; the loop was not followed")
        return Input(path, f"it cannot be looked at: {reason(error)}")
    # macOS puts such companions beside every file on foreign disks; they hold no pixels.
    if entry.name.startswith("._"):
        return None
    return Input(path) if path.suffix.lower() in IMAGE_EXTENSIONS else None


def _is_folder(path: Path) -> bool:
    try:
        return path.is_dir()
    except (OSError, ValueError):
        return False
