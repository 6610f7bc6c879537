"""Blocks are found in every architecture, and what is not there is named."""

import pytest
import torch
import torch.nn.functional as F

from moe_core.errors import ConfigError
from moe_core.transformers.find import check_finite, find_dense, find_moe
from moe_core.transformers.weighting import selection_weights
from tests.moe_core.transformers.tiny import DENSE, SPARSE, tiny


@pytest.mark.parametrize("name", SPARSE)
def test_experts_weights_reproduce_the_block(name):
    """Each found expert's weights, run one by one with the router's own decision, are the block's output."""
    model = tiny(name)
    block = find_moe(model)[-1]
    assert (block.num_experts, block.active, block.hidden) == (8, 2, 32)
    x = torch.randn(5, 32, generator=torch.Generator().manual_seed(1))
    _, weights, experts = block.router(x)
    expected = block.experts(x, experts, weights)
    act = block.experts._apply_gate if name == "gpt_oss" else None
    for row in range(5):
        total = torch.zeros(32)
        for weight, expert in zip(weights[row], experts[row].tolist(), strict=True):
            glu = block.weights(expert)
            gate, up = F.linear(x[row], glu.gate, glu.gate_bias), F.linear(x[row], glu.up, glu.up_bias)
            hidden = F.silu(gate) * up if act is None else act(torch.stack([gate, up], dim=-1).flatten())
            total += weight * F.linear(hidden, glu.down, glu.down_bias)
        assert torch.allclose(expected[row], total, atol=1e-4)


@pytest.mark.parametrize("name", SPARSE)
def test_weights_of_a_prescribed_choice_are_the_routers_own(name):
    block = find_moe(tiny(name))[-1]
    logits, weights, experts = block.router(torch.randn(6, 32, generator=torch.Generator().manual_seed(2)))
    assert torch.allclose(selection_weights(block.router, logits, experts), weights, atol=1e-6)


def test_dense_layers_of_a_mixture_are_passed_over():
    model = tiny("deepseek_v3")
    assert [block.layer for block in find_moe(model)] == [1]
    assert [block.layer for block in find_dense(model)] == [0]
    assert find_moe(model)[0].shared is not None


@pytest.mark.parametrize("name", DENSE)
def test_dense_blocks_have_their_sizes(name):
    found = find_dense(tiny(name))
    assert [(block.layer, block.hidden, block.width) for block in found] == [(0, 32, 48), (1, 32, 48)]
    assert found[0].weights().down.shape == (32, 48)


def test_the_wrong_kind_of_model_is_named():
    with pytest.raises(ConfigError, match="LlamaForCausalLM is dense; this method takes a model with routed"):
        find_moe(tiny("llama"))
    with pytest.raises(ConfigError, match=r"MixtralForCausalLM has mixture-of-experts blocks only; .* dense"):
        find_dense(tiny("mixtral"))
    with pytest.raises(ConfigError, match="Linear has no GLU block"):
        find_dense(torch.nn.Linear(2, 2))
    with pytest.raises(ConfigError, match="Linear has no mixture-of-experts block"):
        find_moe(torch.nn.Linear(2, 2))
    with pytest.raises(ConfigError, match="the router Linear is unknown"):
        selection_weights(torch.nn.Linear(2, 2), torch.zeros(1, 2), torch.zeros(1, 1, dtype=torch.int64))


def test_a_weight_that_is_not_finite_is_named():
    model = tiny("llama")
    check_finite(model)
    with torch.no_grad():
        model.model.layers[1].mlp.up_proj.weight[3, 4] = float("nan")
    with pytest.raises(ConfigError, match=r"not finite in model\.layers\.1\.mlp\.up_proj\.weight"):
        check_finite(model)
