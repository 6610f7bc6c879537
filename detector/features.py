"""Frozen features of training and evaluation views, computed once and kept on disk.

Everything before the first block with experts is frozen, so its output for one augmented view is
computed once; both training stages start from there. The file is written in order and can be
continued after an interruption at any point.
"""

import json
import zlib
from collections.abc import Callable, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from detector.errors import RecipeError
from detector.model import OmniAID
from detector.prefetch import map_ahead
from detector.preprocess import VIEWS, Preprocessing, make_views, resize_first
from detector.samples import PictureStore, SampleRow
from detector.vit import SharedTokens
from mirage.decode import decode
from mirage.errors import UnreadableImage
from mirage.transforms import TIERS, random_chain

CHUNK = 16
PREFETCH = 4

Job = TypeVar("Job")
Progress = Callable[[int], None]
# Views (V, 3, S, S) of one picture, and why they could not be made.
Views = tuple[NDArray[np.uint8], str | None]


class FeatureCache(NamedTuple):
    """Features of N views.

    Draw after draw of one picture, picture after picture.

    Attributes:
        tokens: (N, T, D) float16 memory map, input of the first block with experts.
        frozen: (N, F) float32 memory map, features of the frozen backbone.
        tapped_width: how many of the F columns come from taps before the first block with experts.
        errors: why a picture could not be read, by its number; its features are zeros.
    """

    tokens: NDArray[np.float16]
    frozen: NDArray[np.float32]
    tapped_width: int
    errors: dict[int, str] = {}  # noqa: RUF012 (a field's default, never changed)

    def shared(self, index: NDArray[np.int64]) -> SharedTokens:
        """The shared tokens of the views at `index`, ready for `Trunk.finish`."""
        tokens = torch.from_numpy(self.tokens[index].astype(np.float32))
        return SharedTokens(tokens, torch.from_numpy(self.frozen[index][:, : self.tapped_width]))

    def features(self, index: NDArray[np.int64]) -> Tensor:
        """The frozen backbone's features (B, F) at `index`."""
        return torch.from_numpy(self.frozen[index])


def augmented_view(
    data: bytes, row: SampleRow, preprocessing: Preprocessing, seed: int, draw: int = 0
) -> NDArray[np.uint8]:
    """One view (3, S, S) of a picture after one draw of the shared degradation chain.

    Both classes pass through the same chain. What is drawn depends on the sample, the seed and the
    number of the draw alone; a real picture and its reconstruction get the same. The draws of one
    picture take turns at the views, from a drawn first one on.
    """
    names = preprocessing.views
    identity = [seed, zlib.crc32((row.pair or row.key).encode())]
    rng = np.random.default_rng(identity)
    name = names[(int(rng.integers(len(names))) + draw) % len(names)]
    image = random_chain(decode(data).image, np.random.default_rng([*identity, draw]) if draw else rng)
    image = resize_first(image, name, preprocessing)
    return np.asarray(VIEWS[name](image, preprocessing.size_px)).transpose(2, 0, 1)


def tier_views(
    row: SampleRow, tier: str, store: PictureStore, preprocessing: Preprocessing
) -> NDArray[np.uint8]:
    """All views (V, 3, S, S) of a picture under a named tier.

    Raises:
        mirage.errors.UnreadableImage: the picture cannot be decoded.
    """
    return make_views(TIERS[tier](decode(store.read(row)).image), preprocessing)


def build_cache(
    model: OmniAID,
    rows: Sequence[SampleRow],
    store: PictureStore,
    folder: Path,
    preprocessing: Preprocessing,
    *,
    seed: int,
    draws: int = 1,
    on_progress: Progress = lambda done: None,
) -> FeatureCache:
    """The features of augmented views of every row, continued from what `folder` already holds.

    Args:
        model: only its frozen part is used.
        rows: the samples, in the order of the result.
        store: their bytes.
        folder: where the arrays live.
        preprocessing: view names and size.
        seed: of the augmentation.
        draws: augmented views per row.
        on_progress: called with the number of rows done.

    Raises:
        RecipeError: the folder holds features of other samples or settings.
        mirage.errors.UnreadableImage: a picture cannot be decoded; the message names its key.
    """

    def make(row: SampleRow) -> Views:
        data = store.read(row)
        try:
            views = [augmented_view(data, row, preprocessing, seed, draw) for draw in range(draws)]
        except UnreadableImage as error:
            raise UnreadableImage(f"sample {row.key}: {error}") from error
        return np.stack(views), None

    identity = _identity(model, [row.key for row in rows], preprocessing, draws, seed)
    return _fill(model, rows, make, folder, identity, preprocessing.size_px, on_progress)


def build_evaluation_cache(
    model: OmniAID,
    jobs: Sequence[tuple[SampleRow, str]],
    store: PictureStore,
    folder: Path,
    preprocessing: Preprocessing,
    *,
    on_progress: Progress = lambda done: None,
) -> FeatureCache:
    """The features of all views of every picture under a named tier, continued as `build_cache` is.

    A picture that cannot be read has an entry in `errors`, and zeros for features; it is never replaced.

    Args:
        model: only its frozen part is used.
        jobs: pictures with the name of a tier of `mirage.transforms`.
        store: their bytes.
        folder: where the arrays live.
        preprocessing: view names and size.
        on_progress: called with the number of jobs done.

    Raises:
        RecipeError: the folder holds features of other samples or settings.
    """
    size, count = preprocessing.size_px, len(preprocessing.views)

    def make(job: tuple[SampleRow, str]) -> Views:
        row, tier = job
        try:
            return tier_views(row, tier, store, preprocessing), None
        except UnreadableImage as error:
            return np.zeros((count, 3, size, size), np.uint8), str(error)

    keys = [f"{row.key} {tier}" for row, tier in jobs]
    return _fill(
        model, jobs, make, folder, _identity(model, keys, preprocessing, count, None), size, on_progress
    )


def _fill(
    model: OmniAID,
    jobs: Sequence[Job],
    make: Callable[[Job], Views],
    folder: Path,
    identity: dict[str, Any],
    size_px: int,
    on_progress: Progress,
) -> FeatureCache:
    """The cache of all jobs; each gives as many views as `identity` says draws."""
    folder.mkdir(parents=True, exist_ok=True)
    draws, (done, errors) = identity["draws"], _start(folder, identity)
    cache = _open(model, folder, len(jobs) * draws, size_px, new=done == 0)._replace(errors=errors)
    views = map_ahead(make, jobs[done:], CHUNK * PREFETCH)
    at_once = max(CHUNK // draws, 1)
    while chunk := list(islice(views, at_once)):
        with torch.no_grad():
            shared = model.trunk.shared(torch.from_numpy(np.concatenate([made for made, _ in chunk])))
            frozen = model.trunk.finish(shared, None)
        place = slice(done * draws, (done + len(chunk)) * draws)
        cache.tokens[place] = shared.tokens.numpy().astype(np.float16)
        cache.frozen[place] = frozen.numpy()
        errors |= {done + number: why for number, (_, why) in enumerate(chunk) if why is not None}
        done += len(chunk)
        if done % (at_once * 8) == 0 or done == len(jobs):
            _commit(cache, folder, identity, done)
        on_progress(done)
    return cache


def _identity(
    model: OmniAID, keys: Sequence[str], preprocessing: Preprocessing, draws: int, seed: int | None
) -> dict[str, Any]:
    readout = model.config.readout
    return {
        "rows": len(keys),
        "draws": draws,
        "keys": zlib.crc32("\n".join(keys).encode()),
        "backbone": model.config.backbone,
        "depth": model.config.depth,
        "readout": readout._asdict() | {"taps": list(readout.taps), "mean_taps": list(readout.mean_taps)},
        "first_expert_block": model.trunk.first_expert_block,
        "preprocessing": preprocessing.model_dump(mode="json"),
        "seed": seed,
    }


def _start(folder: Path, identity: dict[str, Any]) -> tuple[int, dict[int, str]]:
    path = folder / "features.json"
    if not path.exists():
        return 0, {}
    stored = json.loads(path.read_text())
    done, errors = stored.pop("done"), stored.pop("errors", {})
    if stored != identity:
        raise RecipeError(
            f"{folder} holds features of other samples or settings; use another folder or delete it"
        )
    return int(done), {int(number): why for number, why in errors.items()}


def _open(model: OmniAID, folder: Path, rows: int, size_px: int, *, new: bool) -> FeatureCache:
    trunk = model.trunk
    shape = (rows, trunk.token_count(size_px), trunk.config.width)
    mode = "w+" if new else "r+"
    tokens = np.lib.format.open_memmap(folder / "tokens.npy", mode, np.float16, shape)
    frozen = np.lib.format.open_memmap(folder / "frozen.npy", mode, np.float32, (rows, trunk.feature_width))
    return FeatureCache(tokens, frozen, trunk.shared_width)


def _commit(cache: FeatureCache, folder: Path, identity: dict[str, Any], done: int) -> None:
    """Flush the arrays first, the count last: a count on disk is never ahead of its data."""
    cache.tokens.flush()  # type: ignore[attr-defined]
    cache.frozen.flush()  # type: ignore[attr-defined]
    partial = folder / "features.json.partial"
    partial.write_text(json.dumps(identity | {"done": done, "errors": cache.errors}))
    partial.replace(folder / "features.json")
