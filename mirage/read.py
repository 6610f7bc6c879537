"""Finished shards read back, sample by sample, through the webdataset library (no torch needed)."""

import json
import tarfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mirage.errors import BuildError
from mirage.extras import need


@dataclass(frozen=True)
class Sample:
    """One stored picture.

    Attributes:
        key: unique within the data set, no dots.
        data: the picture file's bytes; `mirage.decode.decode` reads them.
        metadata: the JSON sidecar: label, generator, domain, split, provenance.
    """

    key: str
    data: bytes
    metadata: dict[str, Any]


def list_shards(folder: Path, split: str) -> list[Path]:
    """The finished shards of one split, in order.

    Raises:
        BuildError: the folder holds none.
    """
    shards = sorted(
        path for path in folder.glob(f"{split}-*.tar") if path.with_name(f"{path.name}.jsonl").exists()
    )
    if not shards:
        raise BuildError(f"{folder} holds no finished shard of split {split!r}")
    return shards


def read_shards(paths: Iterable[Path]) -> Iterator[Sample]:
    """Every sample of the shards, in stored order.

    Raises:
        BuildError: a shard cannot be read, or a sample lacks its picture or sidecar.
    """
    webdataset = need("webdataset")
    for path in paths:
        try:
            with path.open("rb") as stream:
                opened = [{"url": str(path), "stream": stream}]
                files = webdataset.tariterators.tar_file_expander(opened, handler=_fail)
                for group in webdataset.tariterators.group_by_keys(files, handler=_fail):
                    yield _sample(group, path)
        except (OSError, tarfile.TarError) as error:
            raise BuildError(f"{path} cannot be read: {error.args[0] if error.args else error}") from error


def _fail(error: Exception) -> bool:
    raise error


def _sample(group: dict[str, Any], path: Path) -> Sample:
    key = group["__key__"]
    pictures = [name for name in group if not name.startswith("__") and name != "json"]
    if len(pictures) != 1 or "json" not in group:
        raise BuildError(
            f"{path}: sample {key} has {len(pictures)} pictures; it needs one and a .json sidecar"
        )
    return Sample(key, group[pictures[0]], json.loads(group["json"]))
