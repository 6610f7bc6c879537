"""What the small autoencoder learns from: crops of a data set's real photographs."""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from pydantic import Field

from mirage.declarations import Part
from mirage.decode import Limits, decode
from mirage.errors import BuildError
from mirage.manifest import read_manifest
from mirage.read import list_shards, read_shards

SPLIT = "train"
PHOTOGRAPH = "camera"  # how the generator column of photographs begins
TRIES_PER_CROP = 2


class CropSettings(Part):
    """Which crops are cut from which pictures."""

    pictures: int = Field(default=1500, ge=1, description="photographs to learn from, picked by hash")
    held_out: int = Field(default=60, ge=1, description="photographs that only measure, picked before those")
    per_picture: int = Field(default=4, ge=1)
    side_px: int = Field(default=96, ge=16, description="side of a crop")
    measured_px: int = Field(default=224, ge=16, multiple_of=8, description="side of a held-out centre crop")


@dataclass(frozen=True)
class Crops:
    """Pixels in memory.

    Attributes:
        train: (N, S, S, 3) uint8.
        held_out: (M, T, T, 3) uint8, centre crops of other pictures.
        pictures: that `train` was cut from.
        digest: of the choice and of the pictures' bytes.
    """

    train: NDArray[np.uint8]
    held_out: NDArray[np.uint8]
    pictures: int
    digest: str


def read_crops(folder: Path, settings: CropSettings, seed: int) -> Crops:
    """Crops of real photographs from the finished shards of a data set.

    Pictures too small for a held-out crop take no part, so that both kinds come from one population.

    Args:
        folder: a finished data set.
        settings: how many and how large.
        seed: of the pick of pictures and of crops.

    Raises:
        BuildError: the data set has not enough such pictures.
    """
    least_px = max(settings.side_px, settings.measured_px)
    rows = [row for row in read_manifest(folder) if _is_photograph(row, least_px)]
    if len(rows) <= settings.held_out:
        raise BuildError(
            f"{folder} holds {len(rows)} photographs of split {SPLIT} with sides of at least {least_px} px; "
            f"{settings.held_out} are held out, so more are needed"
        )
    ordered = sorted((row["key"] for row in rows), key=lambda key: _hash(seed, key))
    held_out = set(ordered[: settings.held_out])
    chosen = set(ordered[settings.held_out :][: settings.pictures])
    train: dict[str, list[NDArray[np.uint8]]] = {}
    measured: dict[str, NDArray[np.uint8]] = {}
    digest = hashlib.sha256(settings.model_dump_json().encode())
    for sample in read_shards(list_shards(folder, SPLIT)):
        if sample.key not in held_out | chosen:
            continue
        digest.update(hashlib.sha256(sample.data).digest())
        image = decode(sample.data, Limits()).image
        if sample.key in held_out:
            measured[sample.key] = _centre(image, settings.measured_px)
        else:
            train[sample.key] = _crops(image, settings, _hash(seed, sample.key))
    return Crops(
        np.stack([crop for key in sorted(train) for crop in train[key]]),
        np.stack([measured[key] for key in sorted(measured)]),
        len(train),
        digest.hexdigest(),
    )


def _is_photograph(row: dict[str, Any], least_px: int) -> bool:
    return (
        row["status"] == "kept"
        and row["label"] == "real"
        and row["split"] == SPLIT
        and row["domain"] != "artifact"
        and (row["generator"] or "").startswith(PHOTOGRAPH)
        and min(row["width"] or 0, row["height"] or 0) >= least_px
    )


def _hash(seed: int, key: str) -> bytes:
    return hashlib.sha256(f"{seed}\0{key}".encode()).digest()


def _crops(image: Image.Image, settings: CropSettings, digest: bytes) -> list[NDArray[np.uint8]]:
    """Of twice as many random crops those with most contrast: bare walls teach little."""
    pixels, side = np.asarray(image), settings.side_px
    rng = np.random.default_rng(list(digest))
    height, width = pixels.shape[:2]
    tries = [
        _window(pixels, int(rng.integers(height - side + 1)), int(rng.integers(width - side + 1)), side)
        for _ in range(TRIES_PER_CROP * settings.per_picture)
    ]
    return sorted(tries, key=lambda crop: -float(crop.std()))[: settings.per_picture]


def _centre(image: Image.Image, side: int) -> NDArray[np.uint8]:
    return _window(np.asarray(image), (image.height - side) // 2, (image.width - side) // 2, side)


def _window(pixels: NDArray[np.uint8], top: int, left: int, side: int) -> NDArray[np.uint8]:
    # A copy, or the view would keep the whole picture in memory.
    return pixels[top : top + side, left : left + side].copy()


def draw_batch(crops: NDArray[np.uint8], side: int, count: int, seeds: Iterable[int]) -> NDArray[np.float32]:
    """(count, 3, side, side) values in -1..1: windows of random crops, half of them mirrored."""
    rng = np.random.default_rng(list(seeds))
    numbers = rng.integers(len(crops), size=count)
    places = rng.integers(crops.shape[1] - side + 1, size=(count, 2))
    mirrored = rng.random(count) < 0.5
    windows = [
        crops[number, top : top + side, left : left + side][:, :: -1 if mirror else 1]
        for number, (top, left), mirror in zip(numbers, places, mirrored, strict=True)
    ]
    return np.stack(windows).transpose(0, 3, 1, 2).astype(np.float32) / 127.5 - 1
