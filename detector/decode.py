"""From a path to a picture: opens regular files only, counts bytes while reading, decodes once."""

import hashlib
import os
import stat
from pathlib import Path
from typing import BinaryIO

from detector.errors import UnscorableImage
from detector.paths import why_unreadable
from mirage.decode import Limits, Picture, decode
from mirage.errors import UnreadableImage

DEFAULT_LIMITS = Limits()
MAX_ASPECT = 100
CHUNK_BYTES = 2**20

KINDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a FIFO",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a character device",
    stat.S_IFBLK: "a block device",
}


def read_picture(source: Path | bytes, limits: Limits = DEFAULT_LIMITS) -> tuple[str, Picture]:
    """The sha256 (hexadecimal) of the source's bytes and the picture in them.

    Raises:
        UnscorableImage: the file cannot be read, or its bytes are no picture within the limits.
    """
    data = source if isinstance(source, bytes) else read_bytes(source, limits.max_bytes)
    return hashlib.sha256(data).hexdigest(), decode_picture(data, limits)


def decode_picture(data: bytes, limits: Limits = DEFAULT_LIMITS) -> Picture:
    """The picture in `data`.

    Raises:
        UnscorableImage: no picture, damaged, outside the limits, or a strip.
    """
    try:
        picture = decode(data, limits)
    except UnreadableImage as error:
        raise UnscorableImage(str(error)) from error
    longer, shorter = max(picture.image.size), min(picture.image.size)
    # Enlarging a strip's shorter side to the model's input would take gigabytes for a small file.
    if longer > MAX_ASPECT * shorter:
        raise UnscorableImage(
            f"the picture is {picture.width} x {picture.height} px; "
            f"its longer side may be at most {MAX_ASPECT} times its shorter side"
        )
    return picture


def read_bytes(path: Path, max_bytes: int = DEFAULT_LIMITS.max_bytes) -> bytes:
    """The content of a regular file of at most `max_bytes`; anything else is never opened.

    Raises:
        UnscorableImage: the file is missing, not regular, forbidden, too large, or cannot be read.
    """
    try:
        _require_regular(os.stat(path).st_mode)  # noqa: PTH116, also takes names that are not UTF-8
        # Non-blocking: the name may have become a FIFO since it was looked at.
        flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
        with os.fdopen(os.open(path, flags), "rb") as file:
            _require_regular(os.fstat(file.fileno()).st_mode)
            return _read_capped(file, max_bytes)
    except (OSError, ValueError) as error:
        raise UnscorableImage(why_unreadable(error, path)) from error


def _require_regular(mode: int) -> None:
    if not stat.S_ISREG(mode):
        kind = KINDS.get(stat.S_IFMT(mode), "a special file")
        raise UnscorableImage(f"it is {kind}, not a regular file, and was not opened")


def _read_capped(file: BinaryIO, max_bytes: int) -> bytes:
    chunks, total = [], 0
    while chunk := file.read(CHUNK_BYTES):
        total += len(chunk)
        if total > max_bytes:
            raise UnscorableImage(f"the file has more than {max_bytes:,} bytes, the most that is read")
        chunks.append(chunk)
    return b"".join(chunks)
