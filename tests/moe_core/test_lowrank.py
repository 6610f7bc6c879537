"""Optimal factors, effective rank, and ranks that spend a budget exactly."""

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from moe_core.errors import ConfigError
from moe_core.lowrank import allocate, effective_rank, factor, plan_ranks, right_spectrum

groups = st.lists(st.tuples(st.floats(0, 1), st.integers(2, 12), st.integers(1, 10)), min_size=1, max_size=6)


def matrix(rows: int, columns: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(rows, columns, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("shape", [(12, 6), (5, 9)])
def test_factors_are_the_truncated_svd(shape):
    weight = matrix(*shape)
    left, values, right = torch.linalg.svd(weight, full_matrices=False)
    coefficients, basis = factor(weight, 3)
    assert torch.allclose(coefficients @ basis, (left[:, :3] * values[:3]) @ right[:3], atol=1e-5)
    assert torch.allclose(right_spectrum(weight).energy.sqrt().float(), values, atol=1e-4)


def test_error_falls_with_rank():
    weight = matrix(12, 8)
    errors = [(weight - torch.mm(*factor(weight, rank))).norm().item() for rank in range(1, 9)]
    assert all(a >= b for a, b in itertools.pairwise(errors))
    assert errors[-1] < 1e-5


def test_whitened_factors_are_better_on_the_inputs_and_worse_on_the_weight():
    inputs = matrix(200, 8, 1) * torch.logspace(0, -2, 8)
    weight = matrix(10, 8, 2)
    plain, whitened = (torch.mm(*factor(weight, 3, moment)) for moment in (None, inputs.T @ inputs))
    assert (inputs @ (weight - whitened).T).norm() < (inputs @ (weight - plain).T).norm()
    assert (weight - whitened).norm() > (weight - plain).norm()


def test_effective_rank_has_its_bounds_and_invariances():
    weight = matrix(16, 6)
    energy = right_spectrum(weight).energy
    rotation = torch.linalg.qr(matrix(6, 6, 3)).Q
    assert 1 <= effective_rank(energy) <= 6
    assert effective_rank(right_spectrum(weight * 7).energy) == pytest.approx(effective_rank(energy))
    assert effective_rank(right_spectrum(weight @ rotation).energy) == pytest.approx(
        effective_rank(energy), rel=1e-5
    )
    assert effective_rank(torch.ones(5).double()) == pytest.approx(5)
    assert effective_rank(torch.tensor([3.0, 0, 0])) == 1
    assert effective_rank(torch.zeros(3)) == 1


@settings(max_examples=150, deadline=None)
@given(groups, st.floats(0, 1))
def test_ranks_spend_the_budget_down_to_less_than_one_rank(parts, share):
    scores, costs, caps = zip(*parts, strict=True)
    most = sum(cost * cap for cost, cap in zip(costs, caps, strict=True))
    budget = sum(costs) + share * (most - sum(costs))
    ranks = allocate(budget, scores, costs, caps)
    spent = sum(rank * cost for rank, cost in zip(ranks, costs, strict=True))
    assert all(1 <= rank <= cap for rank, cap in zip(ranks, caps, strict=True))
    assert spent <= budget
    open_costs = [cost for rank, cap, cost in zip(ranks, caps, costs, strict=True) if rank < cap]
    assert not open_costs or budget - spent < min(open_costs)


@settings(max_examples=80, deadline=None)
@given(st.lists(st.floats(0.01, 1), min_size=2, max_size=6, unique=True), st.integers(12, 200))
def test_a_higher_score_never_gets_a_lower_rank(scores, budget):
    ranks = allocate(budget, scores, [2] * len(scores), [30] * len(scores))
    ordered = [rank for _, rank in sorted(zip(scores, ranks, strict=True))]
    assert ordered == sorted(ordered)


def test_a_group_without_score_still_has_a_rank():
    assert allocate(20, [0.0, 1.0], [2, 2], [9, 9])[0] == 1


def test_what_capped_groups_leave_goes_to_the_others():
    assert allocate(40, [10.0, 1.0, 1.0], [2, 2, 2], [4, 20, 20]) == (4, 8, 8)
    # The second reaches its cap only after the first has left what it cannot use.
    assert allocate(135, [1.0, 0.125, 0.03125], [2, 2, 2], [30, 30, 30]) == (30, 30, 7)


def test_a_budget_below_one_rank_each_is_named():
    with pytest.raises(ConfigError, match="a budget of 9 numbers cannot be met; one rank for each costs 10"):
        allocate(9, [1, 1], [5, 5], [3, 3])


def test_everything_kept_is_everything_dense():
    assert plan_ranks(2 * 8 * 10, [0.5, 0.5], [8, 8], 10) == (0, 0)
    assert plan_ranks(2 * 8 * 10, [0.9, 0.1], [8, 8], 10) == (0, 0)


@settings(max_examples=80, deadline=None)
@given(st.lists(st.floats(0.05, 1), min_size=1, max_size=5), st.floats(0.3, 1))
def test_planned_ranks_keep_to_the_budget_and_below_break_even(scores, keep):
    rows, width = [16] * len(scores), 12
    budget = keep * 16 * 12 * len(scores)
    ranks = plan_ranks(budget, scores, rows, width)
    stored = sum(rank * 28 if rank else 16 * 12 for rank in ranks)
    assert stored <= budget + 1e-6
    assert all(rank * 28 < 16 * 12 for rank in ranks)
