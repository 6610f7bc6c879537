"""What an epoch shows: everything, balanced, in lanes of equal length that share no picture."""

from collections import Counter

import numpy as np
import pytest

from detector.training.config import Balance
from detector.training.plan import Plan, count_visits, make_plan

SIZES = {"anime/ai": 4, "anime/real": 40, "scene/ai": 17, "scene/real": 19}
GROUPS = [name for name, size in SIZES.items() for _ in range(size)]
ALL = sum(SIZES.values())


def plan_of(
    groups: list[str | None] = GROUPS, shard: int = 10, lanes: int = 4, seed: int = 0, **balance: object
) -> Plan:
    shards = [f"train-{number // shard:06d}.tar" for number in range(len(groups))]
    return make_plan(shards, groups, Balance(**balance), batch=8, micro_batch=4, lanes=lanes, seed=seed)


@pytest.mark.parametrize(("shard", "lanes"), [(10, 4), (1000, 8), (3, 2), (40, 16)])
def test_without_balance_every_picture_is_shown_however_shards_and_lanes_divide(shard, lanes):
    plan = plan_of(["all"] * ALL, shard=shard, lanes=lanes)
    shown = count_visits(plan, 0)
    assert shown.keys() == set(range(ALL))
    assert shown.total() == plan.epoch_pictures
    assert max(shown.values()) <= 2
    lengths = {len(plan.lane(0, lane).order) for lane in range(lanes)}
    assert lengths == {plan.epoch_pictures // lanes}


def test_an_epoch_is_whole_steps_of_all_lanes():
    for lanes in (1, 2, 3, 5, 8):
        plan = plan_of(lanes=lanes)
        assert plan.epoch_pictures % 8 == 0
        assert plan.epoch_pictures % (4 * lanes) == 0


def test_groups_are_shown_alike_but_small_ones_not_too_often():
    plan = plan_of(max_repeat=4.0)
    rates = plan.rates()
    assert rates["anime/ai"]["rate"] <= 5
    assert rates["anime/ai"]["shown"] == pytest.approx(rates["scene/ai"]["shown"], abs=8)
    assert rates["anime/real"]["rate"] < 1
    assert sum(row["shown"] for row in rates.values()) == plan.epoch_pictures
    rare = plan_of(max_repeat=1.0).rates()["anime/ai"]
    assert rare["shown"] < rates["anime/ai"]["shown"]


def test_weights_of_groups_count():
    heavy = plan_of(weights={"scene/ai": 3.0}).rates()
    assert heavy["scene/ai"]["shown"] > 2 * heavy["scene/real"]["shown"]


def test_what_one_epoch_leaves_out_the_next_shows():
    plan = plan_of()
    members = set(plan.members[plan.names.index("anime/real")].tolist())
    first = {picture for picture in count_visits(plan, 0) if picture in members}
    seen: Counter[int] = Counter()
    for epoch in range(6):
        seen += Counter({p: n for p, n in count_visits(plan, epoch).items() if p in members})
    assert first < members
    assert seen.keys() == members
    assert max(seen.values()) - min(seen.values()) <= 1


def test_each_showing_of_a_picture_has_its_own_number():
    plan = plan_of()
    visits = [
        visit
        for epoch in range(3)
        for lane in range(plan.lanes)
        for group in plan.lane(epoch, lane).groups
        for _, found in group
        for visit in found
    ]
    assert len(visits) == len(set(visits)) == 3 * plan.epoch_pictures


def test_lanes_open_few_shards():
    """With as many shards as lanes and one group, each lane reads one."""
    plan = plan_of(["all"] * 192, shard=12, lanes=16)
    assert all(len(plan.lane(0, lane).groups[0]) == 1 for lane in range(16))


def test_the_seed_decides_the_order_and_epochs_differ():
    orders = [plan_of(seed=seed).lane(epoch, 0) for seed, epoch in ((0, 0), (0, 0), (0, 1), (1, 0))]
    assert orders[0].groups == orders[1].groups
    assert np.array_equal(orders[0].order, orders[1].order)
    assert orders[0].groups != orders[2].groups
    assert orders[0].groups != orders[3].groups


def test_pictures_of_no_group_are_never_shown():
    groups: list[str | None] = [*GROUPS[:50], *[None] * (ALL - 50)]
    assert max(count_visits(plan_of(groups), 0)) < 50
