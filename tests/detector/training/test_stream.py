"""Streaming: the same micro-batches for any number of readers, nothing lost, nothing replaced."""

import io
import shutil
import tarfile
from itertools import chain

import numpy as np
import pytest
import torch

from detector.errors import RecipeError
from detector.preprocess import Preprocessing
from detector.samples import SampleRow, choose, list_samples
from detector.training.config import Balance
from detector.training.plan import Visit, make_plan
from detector.training.stream import MicroBatch, Source, check_lanes, load_epoch, read_wanted
from tests.detector.tiny import SIZE

LANES = 4


@pytest.fixture(scope="module")
def rows(data) -> list[SampleRow]:
    return choose(list_samples(data), "train", 1000)


def source_of(data, rows, **changes: object) -> Source:
    plan = make_plan(
        [row.shard for row in rows],
        [("real", "ai")[row.label] for row in rows],
        Balance(by="label"),
        batch=8,
        micro_batch=2,
        lanes=LANES,
        seed=3,
    )
    values = {
        "data": data,
        "rows": rows,
        "domains": np.arange(len(rows)),
        "plan": plan,
        "preprocessing": Preprocessing(size_px=SIZE),
        "micro_batch": 2,
        "shuffle": 6,
        "seed": 3,
    }
    return Source(**(values | changes))


def load(source: Source, first: int = 0, rank: int = 0, processes: int = 1, workers: int = 0):
    return list(load_epoch(source, 0, first, rank=rank, processes=processes, workers=workers))


def same(first: list[MicroBatch], second: list[MicroBatch]) -> bool:
    return len(first) == len(second) and all(
        torch.equal(a.pixels, b.pixels) and torch.equal(a.domains, b.domains) and a.bad == b.bad
        for a, b in zip(first, second, strict=True)
    )


def pictures_in(batches: list[MicroBatch]) -> list[int]:
    """`domains` holds each picture's number here."""
    return sorted(chain.from_iterable(batch.domains.tolist() for batch in batches))


def test_processes_and_workers_share_what_one_reader_reads(data, rows):
    source = source_of(data, rows)
    alone = load(source)
    assert len(alone) == source.epoch_batches
    for processes, workers in ((2, 0), (2, 2), (4, 0)):
        parts = [load(source, 0, rank, processes, workers) for rank in range(processes)]
        assert same(alone, [batch for turn in zip(*parts, strict=True) for batch in turn])


def test_reading_goes_on_anywhere(data, rows):
    source = source_of(data, rows)
    whole = load(source, rank=1, processes=2)
    for first in (1, 5, len(whole) - 1):
        assert same(whole[first:], load(source, first, rank=1, processes=2))
    assert same(whole[3:], load(source, 3, rank=1, processes=2, workers=2))


def test_what_is_planned_is_what_comes(data, rows):
    source = source_of(data, rows)
    planned = sorted(
        visit.picture
        for lane in range(LANES)
        for group in source.plan.lane(0, lane).groups
        for _, visits in group
        for visit in visits
    )
    assert pictures_in(load(source)) == planned


def test_fewer_shards_than_readers_neither_hang_nor_lose_pictures(data, rows):
    few = [row for row in rows if row.shard == rows[0].shard]
    plan = make_plan(
        [row.shard for row in few], ["all"] * len(few), Balance(), batch=8, micro_batch=1, lanes=8, seed=0
    )
    source = source_of(data, few, plan=plan, micro_batch=1, domains=np.arange(len(few)))
    shares = [load(source, 0, rank, processes=8) for rank in range(8)]
    assert {len(share) for share in shares} == {source.epoch_batches // 8}
    assert set(pictures_in(list(chain.from_iterable(shares)))) == set(range(len(few)))


def rewrite(path, change) -> None:
    """The shard with every picture's bytes changed by `change(key, data)`; None leaves it out."""
    with tarfile.open(path) as archive:
        files = [(member.name, archive.extractfile(member).read()) for member in archive]
    with tarfile.open(path, "w") as archive:
        for name, content in files:
            kept = content if name.endswith(".json") else change(name.partition(".")[0], content)
            if kept is not None:
                member = tarfile.TarInfo(name)
                member.size = len(kept)
                archive.addfile(member, io.BytesIO(kept))


def test_bad_pictures_are_counted_and_never_replaced(data, rows, tmp_path):
    broken, gone = rows[0], rows[-1]
    copy = shutil.copytree(data, tmp_path / "data")
    rewrite(copy / broken.shard, lambda key, content: b"no picture" if key == broken.key else content)
    rewrite(copy / gone.shard, lambda key, content: None if key == gone.key else content)
    sound, hurt = load(source_of(data, rows)), load(source_of(copy, rows))
    bad = dict(pair for batch in hurt for pair in batch.bad)
    assert bad.keys() == {broken.key, gone.key}
    assert bad[gone.key] == f"{gone.shard} does not hold it"
    lost = {number for number, row in enumerate(rows) if row.key in bad}
    assert pictures_in(hurt) == [number for number in pictures_in(sound) if number not in lost]
    assert all(len(batch.labels) + len(batch.bad) == batch.planned == 2 for batch in hurt)


def test_a_damaged_shard_costs_what_it_held_and_nothing_else(data, rows, tmp_path):
    wanted = {row.key: [Visit(n, 0)] for n, row in enumerate(rows) if row.shard == rows[0].shard}
    whole = list(read_wanted(data / rows[0].shard, wanted))
    cut = tmp_path / "cut.tar"
    content = (data / rows[0].shard).read_bytes()
    cut.write_bytes(content[: len(content) // 2])
    found = list(read_wanted(cut, wanted))
    assert sorted(raw.visit for raw in found) == sorted(raw.visit for raw in whole)
    assert 0 < sum(raw.data is None for raw in found) < len(found)
    assert all("cut.tar" in raw.reason for raw in found if raw.data is None)


def test_a_reconstruction_gets_its_twins_draw(data, rows):
    """At the same visit; of equal bytes both views are then equal."""
    twins = [
        SampleRow(key, "s", "train", label, "artifact", "g", "twins", "pair-1")
        for key, label in (("twins-a", 0), ("twins-b", 1))
    ]
    source = source_of(data, twins, plan=None)
    stored = next(iter(read_wanted(data / rows[0].shard, {rows[0].key: [Visit(0, 0)]}))).data
    for count in range(4):
        views = [source._view(_raw(n, count, stored), row) for n, row in enumerate(twins)]
        assert np.array_equal(*views)


def _raw(picture: int, count: int, stored: bytes):
    from detector.training.stream import Raw

    return Raw(Visit(picture, count), stored)


def test_lanes_must_divide_among_readers():
    check_lanes(8, 2, 4)
    with pytest.raises(RecipeError, match=r"streamed.lanes is 8; 3 processes with 1 workers need"):
        check_lanes(8, 3, 0)
