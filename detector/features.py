"""Frozen features of augmented training views, computed once and kept on disk.

Everything before the first block with experts is frozen, so its output for one augmented view is
computed once; both training stages start from there. The file is written in order and can be
continued after an interruption at any point.
"""

import json
import zlib
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from detector.errors import RecipeError
from detector.model import OmniAID
from detector.prefetch import map_ahead
from detector.preprocess import VIEWS, Preprocessing
from detector.samples import PictureStore, SampleRow
from detector.vit import SharedTokens
from mirage.decode import decode
from mirage.transforms import random_chain

CHUNK = 16
PREFETCH = 4


class FeatureCache(NamedTuple):
    """Features of N views.

    Attributes:
        tokens: (N, T, D) float16 memory map, input of the first block with experts.
        frozen: (N, F) float32 memory map, features of the frozen backbone.
        tapped_width: how many of the F columns come from taps before the first block with experts.
    """

    tokens: NDArray[np.float16]
    frozen: NDArray[np.float32]
    tapped_width: int

    def shared(self, index: NDArray[np.int64]) -> SharedTokens:
        """The shared tokens of the views at `index`, ready for `Trunk.finish`."""
        tokens = torch.from_numpy(self.tokens[index].astype(np.float32))
        return SharedTokens(tokens, torch.from_numpy(self.frozen[index][:, : self.tapped_width]))

    def features(self, index: NDArray[np.int64]) -> Tensor:
        """The frozen backbone's features (B, F) at `index`."""
        return torch.from_numpy(self.frozen[index])


def augmented_view(data: bytes, row: SampleRow, preprocessing: Preprocessing, seed: int) -> NDArray[np.uint8]:
    """One view (3, S, S) of a picture after one draw of the shared degradation chain.

    Both classes pass through the same chain. The draw depends on the sample and the seed alone;
    a real picture and its reconstruction get the same draw.
    """
    rng = np.random.default_rng([seed, zlib.crc32((row.pair or row.key).encode())])
    name = preprocessing.views[int(rng.integers(len(preprocessing.views)))]
    image = random_chain(decode(data).image, rng)
    return np.asarray(VIEWS[name](image, preprocessing.size_px)).transpose(2, 0, 1)


def build_cache(
    model: OmniAID,
    rows: Sequence[SampleRow],
    store: PictureStore,
    folder: Path,
    preprocessing: Preprocessing,
    *,
    seed: int,
    on_progress: Callable[[int], None] = lambda done: None,
) -> FeatureCache:
    """The features of one augmented view per row, continued from what `folder` already holds.

    Args:
        model: only its frozen part is used.
        rows: the samples, in the order of the result.
        store: their bytes.
        folder: where the arrays live.
        preprocessing: view names and size.
        seed: of the augmentation.
        on_progress: called with the number of rows done.

    Raises:
        RecipeError: the folder holds features of other samples or settings.
    """
    folder.mkdir(parents=True, exist_ok=True)
    identity = _identity(model, rows, preprocessing, seed)
    done = _start(folder, identity)
    cache = _open(model, folder, len(rows), preprocessing.size_px, new=done == 0)
    views = _views(rows[done:], store, preprocessing, seed)
    while chunk := list(islice(views, CHUNK)):
        with torch.no_grad():
            shared = model.trunk.shared(torch.from_numpy(np.stack(chunk)))
            frozen = model.trunk.finish(shared, None)
        cache.tokens[done : done + len(chunk)] = shared.tokens.numpy().astype(np.float16)
        cache.frozen[done : done + len(chunk)] = frozen.numpy()
        done += len(chunk)
        if done % (CHUNK * 8) == 0 or done == len(rows):
            _commit(cache, folder, identity, done)
        on_progress(done)
    return cache


def _views(
    rows: Sequence[SampleRow], store: PictureStore, preprocessing: Preprocessing, seed: int
) -> Iterator[NDArray[np.uint8]]:
    """Augmented views in order, a few pictures ahead of the model."""

    def make(row: SampleRow) -> NDArray[np.uint8]:
        return augmented_view(store.read(row), row, preprocessing, seed)

    return map_ahead(make, rows, CHUNK * PREFETCH)


def _identity(
    model: OmniAID, rows: Sequence[SampleRow], preprocessing: Preprocessing, seed: int
) -> dict[str, object]:
    return {
        "rows": len(rows),
        "keys": zlib.crc32("\n".join(row.key for row in rows).encode()),
        "backbone": model.config.backbone,
        "depth": model.config.depth,
        "taps": list(model.config.taps),
        "first_expert_block": model.trunk.first_expert_block,
        "preprocessing": preprocessing.model_dump(mode="json"),
        "seed": seed,
    }


def _start(folder: Path, identity: dict[str, object]) -> int:
    path = folder / "features.json"
    if not path.exists():
        return 0
    stored = json.loads(path.read_text())
    done = stored.pop("done")
    if stored != identity:
        raise RecipeError(
            f"{folder} holds features of other samples or settings; use another folder or delete it"
        )
    return int(done)


def _open(model: OmniAID, folder: Path, rows: int, size_px: int, *, new: bool) -> FeatureCache:
    config = model.trunk.config
    shape = (rows, (size_px // config.patch_px) ** 2 + 1, config.width)
    mode = "w+" if new else "r+"
    tokens = np.lib.format.open_memmap(folder / "tokens.npy", mode, np.float16, shape)
    frozen = np.lib.format.open_memmap(
        folder / "frozen.npy", mode, np.float32, (rows, len(model.trunk.taps) * config.width)
    )
    early = sum(tap < model.trunk.first_expert_block for tap in model.trunk.taps)
    return FeatureCache(tokens, frozen, early * config.width)


def _commit(cache: FeatureCache, folder: Path, identity: dict[str, object], done: int) -> None:
    """Flush the arrays first, the count last: a count on disk is never ahead of its data."""
    cache.tokens.flush()  # type: ignore[attr-defined]
    cache.frozen.flush()  # type: ignore[attr-defined]
    partial = folder / "features.json.partial"
    partial.write_text(json.dumps(identity | {"done": done}))
    partial.replace(folder / "features.json")
