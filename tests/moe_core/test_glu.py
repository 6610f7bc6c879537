"""Grouped products, GLU experts and the block of shared and routed ones, against plain loops."""

import pytest
import torch
import torch.nn.functional as F

from moe_core.errors import ConfigError
from moe_core.glu import DenseGlu, Dispatch, GluWeights, RoutedGlu, activation, grouped_linear


def drawn(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize(("inputs", "outputs"), [(8, 16), (5, 7), (1, 3)])
def test_grouped_products_equal_a_loop_and_pass_gradients_on(inputs, outputs):
    x = drawn(9, inputs).requires_grad_()
    weight = drawn(4, outputs, inputs, seed=1).requires_grad_()
    groups = torch.tensor([0, 0, 1, 1, 1, 3, 3, 3, 3])
    expected = torch.stack([weight[g] @ row for row, g in zip(x, groups.tolist(), strict=True)])
    found = grouped_linear(x, weight, groups)
    assert torch.allclose(found, expected, atol=1e-5)
    upstream = drawn(9, outputs, seed=2)
    for one, other in zip(
        torch.autograd.grad(found, (x, weight), upstream),
        torch.autograd.grad(expected, (x, weight), upstream),
        strict=True,
    ):
        assert torch.allclose(one, other, atol=1e-5)


def test_pairs_are_put_back_where_they_came_from():
    experts = torch.tensor([[2, 0], [1, 2], [0, 1]])
    pairs = Dispatch.of(experts)
    assert pairs.experts.tolist() == [0, 0, 1, 1, 2, 2]
    outputs = (10 * pairs.tokens + pairs.experts).float()[:, None]
    weights = torch.tensor([[1.0, 0.5], [1.0, 1.0], [0.0, 2.0]])
    assert pairs.combine(outputs, weights).squeeze(1).tolist() == [2 + 0.0, 11 + 12.0, 42.0]


def dense(bias: bool = False) -> tuple[DenseGlu, GluWeights]:
    torch.manual_seed(0)
    block = DenseGlu(6, 24, "silu", bias=bias)
    layers = (block.gate_proj, block.up_proj, block.down_proj)
    biases = [layer.bias if bias else None for layer in layers]
    return block, GluWeights(*(layer.weight for layer in layers), *biases)


@pytest.mark.parametrize("bias", [False, True])
def test_all_experts_active_with_ones_is_the_dense_block(bias):
    block, weights = dense(bias)
    order = torch.randperm(24, generator=torch.Generator().manual_seed(1))
    routed = RoutedGlu(6, shared=2, routed=4, width=4, active=4, act="silu", bias=bias)
    routed.fill(weights, order[:8], order[8:].view(4, 4))
    x = drawn(2, 5, 6)
    assert torch.allclose(routed(x), block(x), atol=1e-5)


def test_routed_output_is_the_sum_of_the_chosen_slices():
    block, weights = dense()
    routed = RoutedGlu(6, shared=0, routed=6, width=4, active=2, act="silu", combine="softmax")
    routed.fill(weights, torch.empty(0, dtype=torch.int64), torch.arange(24).view(6, 4))
    with torch.no_grad():
        routed.gate.weight.copy_(drawn(6, 6, seed=3))
    x = drawn(7, 6)
    _, gates, experts = routed.gate(x)
    hidden = F.silu(x @ block.gate_proj.weight.T) * (x @ block.up_proj.weight.T)
    for row in range(7):
        expected = sum(
            gate * (block.down_proj.weight[:, 4 * e : 4 * e + 4] @ hidden[row, 4 * e : 4 * e + 4])
            for gate, e in zip(gates[row], experts[row].tolist(), strict=True)
        )
        assert torch.allclose(routed(x)[row], expected, atol=1e-5)
    assert (gates.sum(1) < 1).all()


def test_representative_neurons_score_by_what_they_do():
    routed = RoutedGlu(6, shared=0, routed=3, width=2, active=1, act="silu", representative=True)
    with torch.no_grad():
        routed.gate.weight.copy_(drawn(3, 6, seed=4))
        routed.gate.up_weight.copy_(drawn(3, 6, seed=5))
    x = drawn(4, 6)
    scores, weights, experts = routed.gate(x)
    expected = (F.silu(x @ routed.gate.weight.T) * (x @ routed.gate.up_weight.T)).abs()
    assert torch.allclose(scores, expected)
    assert torch.equal(experts.squeeze(1), expected.argmax(1)) and torch.equal(weights, torch.ones(4, 1))


def test_what_cannot_be_built_is_named():
    with pytest.raises(ConfigError, match=r"5 routed experts per token were asked for; 1\.\.4 are allowed"):
        RoutedGlu(6, shared=0, routed=4, width=4, active=5, act="silu")
    with pytest.raises(ConfigError, match="activation 'sine' is unknown; there are: gelu"):
        activation("sine")
