"""Splits are partitions into equal parts, transport is doubly stochastic, rounding is balanced."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linear_sum_assignment

from moe_core.errors import ConfigError
from moe_core.partition import (
    balanced_kmeans,
    balanced_round,
    check_divides,
    members,
    nearest_divisor,
    random_split,
    sinkhorn,
)

shapes = st.tuples(st.integers(1, 6), st.integers(1, 5), st.integers(0, 99))


def drawn(experts: int, size: int, seed: int) -> torch.Tensor:
    return torch.randn(experts * size, experts, generator=torch.Generator().manual_seed(seed))


def assert_partition(labels: torch.Tensor, experts: int) -> None:
    groups = members(labels, experts)
    assert groups.shape == (experts, len(labels) // experts)
    assert torch.equal(groups.flatten().sort().values, torch.arange(len(labels)))


@settings(max_examples=40, deadline=None)
@given(shapes)
def test_every_split_puts_each_neuron_into_one_expert_of_equal_size(shape):
    experts, size, seed = shape
    affinity = drawn(*shape)
    assert_partition(random_split(experts * size, experts, seed=seed), experts)
    assert_partition(balanced_round(affinity), experts)
    assert_partition(balanced_round(affinity, "exact"), experts)
    assert_partition(balanced_kmeans(affinity, experts, seed=seed).labels, experts)


def one_by_one(affinity: torch.Tensor) -> torch.Tensor:
    """Greedy rounding by a walk over all entries, best first."""
    neurons, experts = affinity.shape
    labels, room = torch.full((neurons,), -1), [neurons // experts] * experts
    for entry in affinity.flatten().argsort(descending=True).tolist():
        neuron, expert = divmod(entry, experts)
        if labels[neuron] < 0 and room[expert]:
            labels[neuron] = expert
            room[expert] -= 1
    return labels


@settings(max_examples=60, deadline=None)
@given(shapes)
def test_greedy_rounding_is_the_walk_over_sorted_entries(shape):
    affinity = drawn(*shape).double()
    assert torch.equal(balanced_round(affinity), one_by_one(affinity))


@settings(max_examples=20, deadline=None)
@given(shapes)
def test_exact_rounding_is_at_least_as_good_as_greedy(shape):
    affinity = drawn(*shape).double()
    exact, greedy = (
        affinity.gather(1, balanced_round(affinity, method)[:, None]).sum() for method in ("exact", "greedy")
    )
    assert exact >= greedy - 1e-9


@pytest.mark.parametrize(("temperature", "steps"), [(1.0, 50), (0.1, 200)])
def test_transport_is_doubly_stochastic(temperature, steps):
    plan = sinkhorn(drawn(4, 8, 0), temperature, steps=steps)
    assert (plan.sum(1) - 1).abs().max() < 1e-5
    assert (plan.sum(0) - 8).abs().max() < 1e-3


def test_cold_transport_needs_more_steps():
    affinity = drawn(4, 8, 1)
    errors = [(sinkhorn(affinity, 0.1, steps=n).sum(0) - 8).abs().max().item() for n in (20, 50, 200)]
    assert errors[0] > errors[1] > errors[2]


def test_transport_at_the_limits_of_temperature():
    affinity = drawn(4, 8, 2).double()
    assert torch.allclose(sinkhorn(affinity, 1e6), torch.full_like(affinity, 0.25), atol=1e-4)
    rows, columns = linear_sum_assignment(affinity.repeat_interleave(8, dim=1).numpy(), maximize=True)
    best = affinity[rows, columns // 8].sum()
    reached = [float((affinity * sinkhorn(affinity, t, steps=3000)).sum()) for t in (1.0, 0.1, 0.01)]
    assert reached == sorted(reached)
    assert reached[-1] == pytest.approx(float(best), rel=0.01)


def test_constants_on_rows_or_columns_do_not_change_the_transport():
    affinity = drawn(4, 8, 3).double()
    moved = affinity + torch.arange(32.0)[:, None] + torch.tensor([1.0, -2.0, 0.5, 3.0])
    assert torch.allclose(sinkhorn(affinity, 0.5, steps=200), sinkhorn(moved, 0.5, steps=200), atol=1e-6)


def test_transport_passes_gradients_on():
    affinity = drawn(3, 4, 4).requires_grad_()
    (sinkhorn(affinity, 0.1) * drawn(3, 4, 5)).sum().backward()
    assert torch.isfinite(affinity.grad).all() and affinity.grad.abs().max() > 0


def test_separate_clouds_become_clusters():
    centres = torch.eye(4) * 10
    points = centres.repeat_interleave(6, dim=0) + 0.1 * drawn(4, 6, 6)
    found = balanced_kmeans(points[torch.randperm(24, generator=torch.Generator().manual_seed(1))], 4, seed=3)
    assert found.means.shape == (4, 4)
    assert_partition(found.labels, 4)


def test_sizes_that_do_not_fit_name_those_that_do():
    with pytest.raises(ConfigError, match=r"12 neurons cannot be cut into 5 .* nearest .* are 4, 6"):
        check_divides(12, 5)
    with pytest.raises(ConfigError, match="12 neurons cannot be cut into 0"):
        random_split(12, 0, seed=0)
    assert nearest_divisor(384, 63) == 64
    with pytest.raises(ConfigError, match=r"sizes \[3, 1\]; each of 2 experts needs 2"):
        members(torch.tensor([0, 0, 0, 1]), 2)
