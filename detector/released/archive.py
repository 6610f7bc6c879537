"""The tensors of one released `.pth` file, read without running anything that stands in it."""

import argparse
import hashlib
import re
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from detector.errors import ModelError

# Where a training run wraps its weights; the first that is there is read.
WRAPPERS = ("model", "model_ema")
PARALLEL_PREFIX = "module."


@dataclass(frozen=True)
class Archive:
    """What one file holds.

    Attributes:
        source: name of the file, for messages.
        sha256: of the file.
        wrapper: the key that held the tensors, or empty where they stood alone.
        tensors: by name, without `module.`.
    """

    source: str
    sha256: str
    wrapper: str
    tensors: dict[str, Tensor]


def read_archive(path: Path) -> Archive:
    """The tensors of a file written by `torch.save`.

    Raises:
        ModelError: the file is missing, damaged, would run code, or holds something else than tensors.
    """
    try:
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        # A run's arguments often stand beside the weights; this class only holds attributes.
        with torch.serialization.safe_globals([argparse.Namespace]):
            # Mapped, not read: several gigabytes of a large backbone's file are looked at once each.
            mapped = zipfile.is_zipfile(path)
            stored = torch.load(path, map_location="cpu", weights_only=True, mmap=mapped)
    except OSError as error:
        raise ModelError(f"{path} cannot be read: {error.strerror or error}") from error
    except Exception as error:
        raise ModelError(f"{path} cannot be used: {_reason(error)}") from error
    wrapper, tensors = _unwrap(stored, path.name)
    return Archive(path.name, digest, wrapper, _without_prefix(tensors))


def _reason(error: Exception) -> str:
    named = re.search(r"GLOBAL ([\w.]+)", str(error))
    if named:
        return f"it would run {named[1]} when unpickled; only tensors and plain values are read"
    return "it is no file of tensors written by torch.save, or it is damaged"


def _unwrap(stored: Any, source: str) -> tuple[str, Mapping[str, Tensor]]:
    if not isinstance(stored, Mapping):
        raise ModelError(f"{source} holds a {type(stored).__name__}; a dictionary of tensors is needed")
    wrapper = next((key for key in WRAPPERS if isinstance(stored.get(key), Mapping)), "")
    found = stored[wrapper] if wrapper else stored
    if not found:
        raise ModelError(f"{source} holds no tensors")
    strange = [
        name for name, value in found.items() if not (isinstance(name, str) and isinstance(value, Tensor))
    ]
    if strange:
        raise ModelError(
            f"{source} holds {strange[0]!r}, which is no tensor; a dictionary of tensors, alone or under "
            f"{' or '.join(WRAPPERS)}, is needed"
        )
    return wrapper, found


def _without_prefix(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Names without the prefix that a data-parallel wrapper puts before every one."""
    if not all(name.startswith(PARALLEL_PREFIX) for name in tensors):
        return dict(tensors)
    return {name.removeprefix(PARALLEL_PREFIX): value for name, value in tensors.items()}
