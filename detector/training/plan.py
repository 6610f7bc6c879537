"""Which pictures an epoch shows, how often, in which lane and order: decided beforehand, by seed alone.

Every process computes the same plan from the manifest. The data is cut into lanes, each an endless
sequence of micro-batches; micro-batch number g of an epoch is number `g // lanes` of lane `g % lanes`.
So neither the number of processes nor of workers changes what is learnt from when, and going on at any
step is a matter of counting.
"""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from detector.training.config import Balance

Shard = str


class Visit(NamedTuple):
    """One showing of a picture.

    Attributes:
        picture: its place in the run's list of samples.
        turn: how often it was shown before; augmentation is drawn anew for each.
    """

    picture: int
    turn: int


class LanePlan(NamedTuple):
    """One lane in one epoch.

    Attributes:
        groups: for every group what to read: shards in order, each with its visits in stored order.
        order: the group that each next picture of the lane is taken from.
    """

    groups: tuple[tuple[tuple[Shard, tuple[Visit, ...]], ...], ...]
    order: NDArray[np.int64]


@dataclass(frozen=True)
class Plan:
    """Everything a phase sees.

    Attributes:
        shards: names of the shards.
        shard_of: (N,) the shard of every sample of the run.
        names: of the groups.
        members: for every group the places of its pictures, in stored order.
        quotas: for every group how many of its pictures each lane shows in an epoch.
        lanes: how many there are.
        seed: of all orders.
    """

    shards: tuple[Shard, ...]
    shard_of: NDArray[np.int64]
    names: tuple[str, ...]
    members: tuple[NDArray[np.int64], ...]
    quotas: tuple[int, ...]
    lanes: int
    seed: int

    @property
    def epoch_pictures(self) -> int:
        """Showings in one epoch."""
        return self.lanes * sum(self.quotas)

    def rates(self) -> dict[str, dict[str, float]]:
        """For every group its pictures, showings an epoch, and the one through the other."""
        table = {}
        for name, members, quota in zip(self.names, self.members, self.quotas, strict=True):
            shown = quota * self.lanes
            table[name] = {"pictures": len(members), "shown": shown, "rate": round(shown / len(members), 4)}
        return table

    def lane(self, epoch: int, lane: int) -> LanePlan:
        """What one lane shows in one epoch."""
        groups = tuple(self._part(group, epoch, lane) for group in range(len(self.names)))
        order = np.repeat(np.arange(len(self.quotas)), self.quotas)
        return LanePlan(groups, np.random.default_rng([self.seed, 1, epoch, lane]).permutation(order))

    def _part(self, group: int, epoch: int, lane: int) -> tuple[tuple[Shard, tuple[Visit, ...]], ...]:
        """A lane's share of a group: neighbours in reading order, so that it opens few shards."""
        pictures, counts = self._visits(group, epoch)
        found = np.unique(self.shard_of[pictures])
        place = np.zeros(len(self.shards), np.int64)
        place[found] = np.random.default_rng([self.seed, 2, group, epoch]).permutation(len(found))
        order = np.lexsort((counts, pictures, place[self.shard_of[pictures]]))
        quota = self.quotas[group]
        mine: dict[Shard, list[Visit]] = {}
        for number in order[lane * quota : (lane + 1) * quota].tolist():
            visit = Visit(int(pictures[number]), int(counts[number]))
            mine.setdefault(self.shards[self.shard_of[visit.picture]], []).append(visit)
        return tuple((shard, tuple(found)) for shard, found in mine.items())

    def _visits(self, group: int, epoch: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Pictures and counts of a group's next showings in an endless walk.

        Each round of it shows all pictures once, in an order of its own.
        """
        members, shown = self.members[group], self.quotas[group] * self.lanes
        first = epoch * shown
        rounds = range(first // len(members), (first + shown - 1) // len(members) + 1)
        walk = [np.random.default_rng([self.seed, 3, group, count]).permutation(members) for count in rounds]
        part = slice(first - rounds[0] * len(members), first - rounds[0] * len(members) + shown)
        return np.concatenate(walk)[part], np.repeat(np.array(rounds), len(members))[part]


def make_plan(
    shards: Sequence[Shard],
    groups: Sequence[str | None],
    balance: Balance,
    *,
    batch: int,
    micro_batch: int,
    lanes: int,
    seed: int,
) -> Plan:
    """The plan over the samples whose group is a name.

    An epoch shows about as many pictures as there are, rounded up to whole steps of all lanes. Groups
    share it by weight; where one epoch does not reach all pictures of a group, the next goes on with the
    others.

    Args:
        shards: of every sample of the run, in stored order.
        groups: of every sample; None where the phase does not learn from it.
        balance: weights of the groups.
        batch: pictures in one optimiser step.
        micro_batch: pictures in one forward pass.
        lanes: streams to cut the data into.
        seed: of all orders.
    """
    names = tuple(sorted({group for group in groups if group is not None}))
    members = tuple(np.flatnonzero([group == name for group in groups]) for name in names)
    unit = math.lcm(batch, micro_batch * lanes)
    wanted = max(sum(map(len, members)), lanes * len(names))
    quotas = _quotas([len(member) for member in members], names, balance, -(-wanted // unit) * unit // lanes)
    found, shard_of = np.unique(np.array(shards), return_inverse=True)
    return Plan(tuple(found.tolist()), shard_of, names, members, quotas, lanes, seed)


def _quotas(sizes: Sequence[int], names: Sequence[str], balance: Balance, total: int) -> tuple[int, ...]:
    """How many pictures of each group a lane shows, `total` together, at least one of each."""
    even = sum(sizes) / len(sizes)
    weights = np.array([balance.weights.get(name, 1.0) for name in names])
    shares = np.array([size * min(even / size, balance.max_repeat) for size in sizes]) * weights
    exact = shares / shares.sum() * total
    quotas = np.maximum(np.floor(exact), 1).astype(int)
    while quotas.sum() != total:
        step = 1 if quotas.sum() < total else -1
        gap = np.where((quotas > 1) | (step > 0), (exact - quotas) * step, -np.inf)
        quotas[int(gap.argmax())] += step
    return tuple(int(quota) for quota in quotas)


def count_visits(plan: Plan, epoch: int) -> Counter[int]:
    """How often each picture is shown in one epoch."""
    shown: Counter[int] = Counter()
    for lane in range(plan.lanes):
        for group in plan.lane(epoch, lane).groups:
            shown.update(visit.picture for _, visits in group for visit in visits)
    return shown
