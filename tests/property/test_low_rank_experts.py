"""What must hold for every LowRankExperts layer, whatever its shape."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from moe_core.errors import ConfigError
from moe_core.experts import LowRankExperts

shapes = st.tuples(st.integers(3, 12), st.integers(3, 12), st.integers(1, 5), st.integers(1, 2))
seeds = st.integers(0, 2**20)


def draw_layer(shape: tuple[int, int, int, int], seed: int, *, kind: str = "svd") -> LowRankExperts:
    d_out, d_in, experts, rank = shape
    generator = torch.Generator().manual_seed(seed)
    weight = torch.randn(d_out, d_in, generator=generator, dtype=torch.float64)
    bias = torch.randn(d_out, generator=generator, dtype=torch.float64)
    if kind == "lora":
        layer = LowRankExperts.from_lora(weight, bias, experts, rank, seed=seed)
    else:
        layer = LowRankExperts.from_svd(weight, bias, experts, rank)
    with torch.no_grad():
        for factor in (layer.u, layer.s, layer.v):
            factor += 0.3 * torch.randn(factor.shape, generator=generator, dtype=torch.float64)
    return layer


def draw_input(layer: LowRankExperts, batch: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed + 1)
    x = torch.randn(batch, 4, layer.weight.shape[1], generator=generator, dtype=torch.float64)
    return x, torch.rand(batch, layer.num_experts, generator=generator, dtype=torch.float64)


def naive(layer: LowRankExperts, x: torch.Tensor, gates: torch.Tensor) -> torch.Tensor:
    """One sample and one expert at a time, from the published formula."""
    left, values, right = torch.linalg.svd(layer.weight)
    keep = len(values) - len(layer.residual_s)
    main = left[:, :keep] @ torch.diag(values[:keep]) @ right[:keep]
    rows = []
    for sample, weights in zip(x, gates, strict=True):
        y = sample @ main.T + layer.bias
        for expert, weight in enumerate(weights):
            y = y + weight * (sample @ layer.v[expert].T @ torch.diag(layer.s[expert]) @ layer.u[expert])
        rows.append(y)
    return torch.stack(rows)


@settings(max_examples=40, deadline=None)
@given(shapes, seeds, st.integers(1, 4), st.sampled_from(["svd", "lora"]))
def test_equals_a_naive_loop_over_experts(shape, seed, batch, kind):
    layer = draw_layer(shape, seed, kind=kind)
    x, gates = draw_input(layer, batch, seed)
    assert torch.allclose(layer(x, gates), naive(layer, x, gates), atol=1e-6)


@settings(max_examples=20, deadline=None)
@given(shapes, seeds)
def test_permuting_the_batch_permutes_the_result(shape, seed):
    layer = draw_layer(shape, seed)
    x, gates = draw_input(layer, 5, seed)
    order = torch.randperm(5, generator=torch.Generator().manual_seed(seed))
    assert torch.allclose(layer(x, gates)[order], layer(x[order], gates[order]), atol=1e-10)


@settings(max_examples=20, deadline=None)
@given(shapes, seeds)
def test_a_sample_does_not_depend_on_its_batch(shape, seed):
    layer = draw_layer(shape, seed)
    x, gates = draw_input(layer, 5, seed)
    assert torch.allclose(layer(x, gates)[2:3], layer(x[2:3], gates[2:3]), atol=1e-10)


@settings(max_examples=20, deadline=None)
@given(shapes, seeds)
def test_permuting_experts_with_their_gates_changes_nothing(shape, seed):
    layer = draw_layer(shape, seed)
    x, gates = draw_input(layer, 3, seed)
    expected = layer(x, gates)
    order = torch.randperm(layer.num_experts, generator=torch.Generator().manual_seed(seed))
    with torch.no_grad():
        for factor in (layer.u, layer.s, layer.v):
            factor.copy_(factor[order].clone())
    assert torch.allclose(layer(x, gates[:, order]), expected, atol=1e-10)


@settings(max_examples=20, deadline=None)
@given(shapes, seeds)
def test_zero_gate_means_zero_gradient(shape, seed):
    layer = draw_layer(shape, seed)
    x, gates = draw_input(layer, 3, seed)
    silent = seed % layer.num_experts
    gates[:, silent] = 0
    layer(x, gates).square().sum().backward()
    for factor in (layer.u, layer.s, layer.v):
        assert torch.equal(factor.grad[silent], torch.zeros_like(factor.grad[silent]))
        others = [e for e in range(layer.num_experts) if e != silent]
        assert all(factor.grad[e].abs().sum() > 0 for e in others)


@settings(max_examples=20, deadline=None)
@given(shapes, seeds)
def test_one_expert_at_its_start_equals_the_dense_layer(shape, seed):
    d_out, d_in, experts, rank = shape
    generator = torch.Generator().manual_seed(seed)
    weight = torch.randn(d_out, d_in, generator=generator, dtype=torch.float64)
    layer = LowRankExperts.from_svd(weight, None, experts, rank)
    x, _ = draw_input(layer, 3, seed)
    for expert in range(experts):
        gates = torch.zeros(3, experts, dtype=torch.float64)
        gates[:, expert] = 1
        assert torch.allclose(layer(x, gates), x @ weight.T, atol=1e-8)
    assert torch.equal(layer.dense(x), torch.nn.functional.linear(x, weight))


@settings(max_examples=20, deadline=None)
@given(shapes, seeds, st.sampled_from(["svd", "lora"]))
def test_folding_equals_the_layer_with_fixed_gates(shape, seed, kind):
    layer = draw_layer(shape, seed, kind=kind)
    x, gates = draw_input(layer, 1, seed)
    folded = torch.nn.functional.linear(x, layer.fold(gates[0]), layer.bias)
    assert torch.allclose(folded, layer(x, gates), atol=1e-9)


def test_lora_starts_as_the_dense_layer_and_does_not_train_its_scale():
    weight = torch.randn(6, 5)
    layer = LowRankExperts.from_lora(weight, None, 3, 2, seed=0)
    x = torch.randn(2, 4, 5)
    assert torch.allclose(layer(x, torch.ones(2, 3)), x @ weight.T, atol=1e-6)
    assert not layer.s.requires_grad


def test_copy_expert_takes_one_expert_only():
    source, target = draw_layer((5, 5, 3, 2), 1), draw_layer((5, 5, 3, 2), 2)
    before = target.u.detach().clone()
    target.copy_expert(source, 1)
    assert torch.equal(target.u[1], source.u[1])
    assert torch.equal(target.u[0], before[0])


@pytest.mark.parametrize(("experts", "rank"), [(0, 1), (2, 0), (2, 4)])
def test_impossible_sizes_are_named(experts, rank):
    with pytest.raises(ConfigError, match=rf"is {experts if experts == 0 else rank};"):
        LowRankExperts.from_svd(torch.randn(4, 6), None, experts, rank)


def test_a_weight_that_is_no_matrix_is_refused():
    with pytest.raises(ConfigError, match="3 dimensions"):
        LowRankExperts.from_svd(torch.randn(4, 6, 2), None, 2, 1)
