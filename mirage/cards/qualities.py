"""Qualities of the JPEG pictures in a shard, read from their headers."""

import json
import tarfile
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from typing import IO

from mirage.bias.headers import read_header
from mirage.errors import BuildError, UnreadableImage

PREFIX_BYTES = 2**16  # holds the tables of nearly every JPEG file


def read_qualities(path: Path) -> Iterator[tuple[str, int]]:
    """Label and quality of every JPEG picture of a shard; of the pictures only the beginning is read.

    Raises:
        BuildError: the shard cannot be read.
    """
    quality = None
    try:
        with tarfile.open(path, "r:") as shard:
            for member in shard:
                stream = shard.extractfile(member) or BytesIO()
                if not member.name.endswith(".json"):
                    quality = _quality(stream) if member.name.endswith(".jpg") else None
                elif quality is not None:
                    yield str(json.loads(stream.read())["label"]), quality
    except (OSError, tarfile.TarError, ValueError, KeyError) as error:
        raise BuildError(f"{path} cannot be read: {error}; check with `omniaid mirage verify`") from error


def _quality(stream: IO[bytes]) -> int | None:
    data = stream.read(PREFIX_BYTES)
    try:
        return read_header(data).quality
    except UnreadableImage:
        pass  # the metadata in front of the tables was longer than the beginning
    try:
        return read_header(data + stream.read()).quality
    except UnreadableImage:
        return None
