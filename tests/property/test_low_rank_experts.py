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


uneven = st.lists(st.integers(1, 3), min_size=1, max_size=4).map(tuple)
KINDS = st.sampled_from(["svd", "lora"])


def draw_uneven(ranks: tuple[int, ...], seed: int, kind: str) -> LowRankExperts:
    """A 7 x 6 layer at its start."""
    generator = torch.Generator().manual_seed(seed)
    weight = torch.randn(7, 6, generator=generator, dtype=torch.float64)
    bias = torch.randn(7, generator=generator, dtype=torch.float64)
    if kind == "lora":
        return LowRankExperts.from_lora(weight, bias, len(ranks), ranks, seed=seed)
    return LowRankExperts.from_svd(weight, bias, len(ranks), ranks)


@settings(max_examples=20, deadline=None)
@given(uneven, seeds, KINDS)
def test_experts_of_any_ranks_start_as_the_dense_layer(ranks, seed, kind):
    layer = draw_uneven(ranks, seed, kind)
    assert (layer.ranks, layer.rank) == (ranks, max(ranks))
    x, _ = draw_input(layer, 3, seed)
    for expert in range(len(ranks)):
        gates = torch.zeros(3, len(ranks), dtype=torch.float64)
        gates[:, expert] = 1
        assert torch.allclose(layer(x, gates), layer.dense(x), atol=1e-8)


@settings(max_examples=20, deadline=None)
@given(uneven, seeds, KINDS)
def test_training_moves_as_many_triplets_as_an_expert_has_rank(ranks, seed, kind):
    layer = draw_uneven(ranks, seed, kind)
    optimizer = torch.optim.AdamW(layer.parameters(), lr=0.1, weight_decay=0.0)
    before = {name: value.clone() for name, value in layer.state_dict().items()}
    for step in range(3):
        x, gates = draw_input(layer, 4, seed + step)
        optimizer.zero_grad()
        layer(x, gates).square().sum().backward()
        optimizer.step()
    for expert, rank in enumerate(ranks):
        still = layer.rank - rank
        for name in ("u", "v"):
            now, then = getattr(layer, name)[expert], before[name][expert]
            assert torch.equal(now[:still], then[:still])
            assert (now[still:] != then[still:]).any(dim=-1).all()
        assert layer.trained_factors(expert)[0].shape == (rank, 7)


@settings(max_examples=20, deadline=None)
@given(uneven, seeds, KINDS)
def test_an_expert_of_smaller_rank_is_what_it_would_be_alone(ranks, seed, kind):
    """Folding and the forward pass agree for experts of different ranks too."""
    layer = draw_uneven(ranks, seed, kind)
    with torch.no_grad():
        for expert in range(len(ranks)):
            for part in layer.trained_factors(expert):
                part += 0.3
    x, gates = draw_input(layer, 1, seed)
    folded = torch.nn.functional.linear(x, layer.fold(gates[0]), layer.bias)
    assert torch.allclose(folded, layer(x, gates), atol=1e-9)


@pytest.mark.parametrize("kind", ["svd", "lora"])
def test_dropout_touches_the_experts_only_and_only_in_training(kind):
    weight = torch.randn(6, 5, generator=torch.Generator().manual_seed(0))
    make = {"svd": LowRankExperts.from_svd, "lora": LowRankExperts.from_lora}[kind]
    layer = make(weight, None, 2, 2, dropout=0.5, **({"seed": 0} if kind == "lora" else {}))
    with torch.no_grad():
        layer.u += 1
    x, gates, none = torch.randn(3, 4, 5), torch.ones(3, 2), torch.zeros(3, 2)
    torch.manual_seed(0)
    layer.train()
    assert torch.allclose(layer(x, none), x @ layer.main_weight().T, atol=1e-5)
    assert not torch.allclose(layer(x, gates), layer(x, gates))
    layer.eval()
    assert torch.equal(layer(x, gates), layer(x, gates))


def test_the_number_of_ranks_must_be_the_number_of_experts():
    with pytest.raises(ConfigError, match="there are 2 ranks for 3 experts"):
        LowRankExperts.from_svd(torch.randn(4, 6), None, 3, (1, 2))


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
