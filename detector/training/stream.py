"""Pictures streamed from shards through webdataset, lane by lane, to augmented micro-batches."""

import random
import tarfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from detector.errors import RecipeError
from detector.features import augmented_view
from detector.prefetch import map_ahead
from detector.preprocess import Preprocessing
from detector.samples import SampleRow
from detector.training.plan import LanePlan, Plan, Visit
from mirage.errors import UnreadableImage
from mirage.extras import need

AHEAD = 2


class MicroBatch(NamedTuple):
    """What one forward pass learns from; pictures that cannot be read are missing, never replaced.

    Attributes:
        pixels: (B, 3, S, S) uint8.
        labels: (B,) int64, 0 real, 1 AI.
        domains: (B,) int64, index of the semantic domain; negative where there is none.
        planned: how many pictures there should be, at least B.
        bad: key and reason of the others.
    """

    pixels: Tensor
    labels: Tensor
    domains: Tensor
    planned: int
    bad: tuple[tuple[str, str], ...]


class Raw(NamedTuple):
    """One visit with the picture's stored bytes, or why there are none."""

    visit: Visit
    data: bytes | None
    reason: str = ""


@dataclass(frozen=True)
class Source:
    """What a run's micro-batches are made of.

    Attributes:
        data: folder of the shards.
        rows: all samples of the run.
        domains: (N,) gate index of each.
        plan: which are shown when.
        preprocessing: views and size.
        micro_batch: pictures in one.
        shuffle: pictures of one lane that wait to be drawn.
        seed: of augmentation and of the order in the waiting pictures.
    """

    data: Path
    rows: Sequence[SampleRow]
    domains: NDArray[np.int64]
    plan: Plan
    preprocessing: Preprocessing
    micro_batch: int
    shuffle: int
    seed: int

    @property
    def epoch_batches(self) -> int:
        """Micro-batches in one epoch, of all processes together."""
        return self.plan.epoch_pictures // self.micro_batch

    def stream(self, epoch: int, lane: int, skip: int) -> Iterator[list[Raw]]:
        """What each micro-batch of a lane is made of in one epoch, without the first `skip`."""
        pictures = islice(self._mix(self.plan.lane(epoch, lane), epoch, lane), skip * self.micro_batch, None)
        while chunk := list(islice(pictures, self.micro_batch)):
            yield chunk

    def _mix(self, plan: LanePlan, epoch: int, lane: int) -> Iterator[Raw]:
        """The groups' pictures, each group shuffled in a buffer of its own, in the planned order."""
        shuffle, waiting = need("webdataset").shuffle, max(1, self.shuffle // len(plan.groups))
        streams = []
        for group, shards in enumerate(plan.groups):
            # A string seeds Python's generator by its characters, the same on every machine.
            rng = random.Random(f"{self.seed} {self.plan.seed} {epoch} {lane} {group}")
            streams.append(iter(shuffle(waiting, initial=waiting, rng=rng)(self._read(shards))))
        for group in plan.order:
            yield next(streams[group])

    def _read(self, shards: Sequence[tuple[str, tuple[Visit, ...]]]) -> Iterator[Raw]:
        for shard, visits in shards:
            wanted: dict[str, list[Visit]] = {}
            for visit in visits:
                wanted.setdefault(self.rows[visit.picture].key, []).append(visit)
            yield from read_wanted(self.data / shard, wanted)

    def make(self, chunk: Sequence[Raw]) -> MicroBatch:
        """The micro-batch: every picture decoded, augmented and cut to one of the views."""
        views, kept, bad = [], [], []
        for raw in chunk:
            row = self.rows[raw.visit.picture]
            try:
                views.append(self._view(raw, row))
                kept.append(raw.visit.picture)
            except UnreadableImage as error:
                bad.append((row.key, str(error)))
        side = self.preprocessing.size_px
        pixels = np.stack(views) if views else np.zeros((0, 3, side, side), np.uint8)
        labels = torch.tensor([self.rows[picture].label for picture in kept], dtype=torch.int64)
        domains = torch.from_numpy(self.domains[kept].astype(np.int64))
        return MicroBatch(torch.from_numpy(pixels), labels, domains, len(chunk), tuple(bad))

    def _view(self, raw: Raw, row: SampleRow) -> NDArray[np.uint8]:
        """The view of this visit; a real picture and its reconstruction get the same at their n-th."""
        if raw.data is None:
            raise UnreadableImage(raw.reason)
        return augmented_view(raw.data, row, self.preprocessing, self.seed, draw=raw.visit.turn)


def read_wanted(path: Path, wanted: Mapping[str, Sequence[Visit]]) -> Iterator[Raw]:
    """Exactly the wanted visits, in stored order; those that the shard does not give come last, with why.

    Args:
        path: the shard.
        wanted: visits by the key of their picture.
    """
    missing, reason = dict(wanted), f"{path.name} does not hold it"
    try:
        for sample in _open(path, wanted):
            for visit in missing.pop(sample["__key__"], ()):
                yield Raw(visit, _picture(sample))
    except (OSError, EOFError, ValueError, tarfile.TarError) as error:
        reason = f"{path.name} cannot be read: {error.args[0] if error.args else type(error).__name__}"
    for visits in missing.values():
        yield from (Raw(visit, None, reason) for visit in visits)


def _open(path: Path, wanted: Mapping[str, Sequence[Visit]]) -> Iterator[dict[str, Any]]:
    webdataset = need("webdataset")

    def is_wanted(name: str) -> bool:
        key, _, extension = name.partition(".")
        return key in wanted and extension != "json"

    yield from webdataset.DataPipeline(
        webdataset.SimpleShardList([str(path)]), webdataset.tarfile_to_samples(select_files=is_wanted)
    )


def _picture(sample: Mapping[str, Any]) -> bytes:
    return next(value for name, value in sample.items() if not name.startswith("__"))


class Share(IterableDataset):
    """The micro-batches of one process; each of its workers makes every n-th, from lanes of its own."""

    def __init__(self, source: Source, epoch: int, first: int, rank: int, processes: int) -> None:
        """Micro-batches of `epoch` from the process's own number `first` on."""
        self.source, self.epoch, self.first = source, epoch, first
        self.rank, self.processes = rank, processes

    def __iter__(self) -> Iterator[MicroBatch]:
        return map(self.source.make, self.chunks())

    def chunks(self) -> Iterator[list[Raw]]:
        """What this worker's micro-batches are made of, in order."""
        info = get_worker_info()
        worker, workers = (info.id, info.num_workers) if info else (0, 1)
        lanes: dict[int, Iterator[list[Raw]]] = {}
        last = self.source.epoch_batches // self.processes
        for number in range(self.first + worker, last, workers):
            place, lane = divmod(self.rank + number * self.processes, self.source.plan.lanes)
            if lane not in lanes:
                lanes[lane] = self.source.stream(self.epoch, lane, place)
            yield next(lanes[lane])


def _same(batch: Any) -> Any:
    return batch


def load_epoch(
    source: Source, epoch: int, first: int, *, rank: int, processes: int, workers: int
) -> Iterator[MicroBatch]:
    """A process's micro-batches of one epoch, in order, made ahead of time.

    Args:
        source: of the pictures.
        epoch: its number.
        first: how many of the process's micro-batches to leave out.
        rank: of the process.
        processes: how many there are.
        workers: loading processes of each; 0 for a thread.
    """
    share = Share(source, epoch, first, rank, processes)
    if workers:
        yield from DataLoader(share, batch_size=None, num_workers=workers, collate_fn=_same)
    else:
        yield from map_ahead(source.make, share.chunks(), AHEAD)


def check_lanes(lanes: int, processes: int, workers: int) -> None:
    """Make sure that every reader has lanes of its own, and equally many.

    Raises:
        RecipeError: it has not.
    """
    readers = processes * max(workers, 1)
    if lanes % readers:
        raise RecipeError(
            f"streamed.lanes is {lanes}; {processes} processes with {max(workers, 1)} workers need a "
            f"multiple of {readers}"
        )
