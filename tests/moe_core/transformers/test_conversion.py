"""Every cut is a partition with the active share asked for; all experts active is the dense model."""

import pytest
import torch
import torch.nn.functional as F

from moe_core.errors import ConfigError
from moe_core.transformers.calibration import glu_profiles
from moe_core.transformers.conversion import (
    Cut,
    cmoe_cut,
    contribution,
    convert,
    dense_weights,
    labelled_cut,
    magnitude_neurons,
    moefication_cut,
    prune,
    random_cut,
)
from moe_core.transformers.find import find_dense, find_moe
from moe_core.transformers.tuning import continue_training
from tests.moe_core.transformers.tiny import logits, tiny, tokens


@pytest.fixture(scope="module")
def profiles():
    return {seen.layer: seen for seen in glu_profiles(tiny("qwen3"), tokens(8), keep=64)}


MAKERS = {
    "random": lambda glu, seen, k: random_cut(glu, 6, k, seed=1),
    "MoEfication": lambda glu, seen, k: moefication_cut(glu, 6, k, seed=1),
    "CMoE": lambda glu, seen, k: cmoe_cut(glu, seen, 6, k, act="silu", seed=1),
}


@pytest.mark.parametrize("name", MAKERS)
@pytest.mark.parametrize("active", [1, 3, 6])
def test_cuts_have_the_active_share_asked_for(name, active, profiles):
    model, ids = tiny("qwen3"), tokens()
    expected = logits(model, ids)
    cuts = {at: MAKERS[name](glu, profiles[at], active) for at, glu in dense_weights(model).items()}
    for cut in cuts.values():
        assert len(cut.shared) / 8 + cut.active == active
    done = convert(model, cuts)
    routers = sum(block.router.weight.numel() * (2 if name == "CMoE" else 1) for block in find_moe(model))
    assert done.after.stored == done.before.stored + routers
    assert done.after.active == done.before.stored * active // 6 + routers
    assert torch.allclose(logits(model, ids), expected, atol=1e-4) == (active == 6)


@pytest.mark.parametrize("name", ["llama", "qwen2"])
def test_biases_go_along(name):
    model, ids = tiny(name, mlp_bias=True), tokens()
    with torch.no_grad():
        for block in find_dense(model):
            for bias in (glu for glu in block.weights()[3:] if glu is not None):
                bias.normal_(generator=torch.Generator().manual_seed(1))
    assert (find_dense(model)[0].weights().gate_bias is not None) == (name == "llama")
    expected = logits(model, ids)
    convert(model, {at: random_cut(glu, 4, 4, seed=0) for at, glu in dense_weights(model).items()})
    assert torch.allclose(logits(model, ids), expected, atol=1e-4)


def test_the_router_is_the_mean_gate_row():
    glu = dense_weights(tiny("qwen3"))[0]
    cut = random_cut(glu, 6, 2, seed=0)
    assert torch.allclose(cut.router[2], glu.gate[cut.routed[2]].mean(0))


def test_static_pruning_keeps_what_contributes(profiles):
    model = tiny("qwen3")
    glu = dense_weights(model)[0]
    kept = magnitude_neurons(glu, profiles[0], 0.5)
    score = contribution(glu, profiles[0])
    assert len(kept) == 24 and score[kept].min() >= score.sort().values[23]
    done = prune(model, {0: kept, 1: magnitude_neurons(glu, profiles[1], 0.5)})
    assert done.after.stored * 2 == done.before.stored == done.after.active * 2


def test_all_neurons_kept_is_the_dense_model():
    model, ids = tiny("qwen3"), tokens()
    expected = logits(model, ids)
    prune(model, {at: torch.arange(48) for at in dense_weights(model)})
    assert torch.allclose(logits(model, ids), expected, atol=1e-6)


def test_cuts_that_are_no_partition_are_refused():
    model = tiny("qwen3")
    glu = dense_weights(model)[0]
    twice = Cut(torch.empty(0, dtype=torch.int64), torch.zeros(6, 8, dtype=torch.int64), glu.gate[:6], 2)
    with pytest.raises(ConfigError, match=r"model\.layers\.0\.mlp holds 1 of 48 neurons in 48 places"):
        convert(model, {0: twice})
    with pytest.raises(ConfigError, match=r"7 active experts were asked for; 1\.\.6 are allowed"):
        random_cut(glu, 6, 7, seed=0)
    with pytest.raises(ConfigError, match="48 neurons cannot be cut into 5 experts"):
        random_cut(glu, 5, 2, seed=0)
    with pytest.raises(ConfigError, match="has mixture-of-experts blocks only"):
        dense_weights(tiny("mixtral"))


def test_neurons_in_another_order_are_the_same_function():
    glu = dense_weights(tiny("qwen3"))[0]
    labels = torch.arange(48) % 6
    order = torch.randperm(48, generator=torch.Generator().manual_seed(0))
    turned = glu._replace(gate=glu.gate[order], up=glu.up[order], down=glu.down[:, order])
    one, other = labelled_cut(glu, labels, 6, 2), labelled_cut(turned, labels[order], 6, 2)
    assert torch.allclose(one.router, other.router, atol=1e-6)
    x = torch.randn(3, 32, generator=torch.Generator().manual_seed(1))
    for cut, weights in ((one, glu), (other, turned)):
        hidden = F.silu(x @ weights.gate.T) * (x @ weights.up.T)
        parts = [hidden[:, n] @ weights.down[:, n].T for n in cut.routed]
        assert torch.allclose(sum(parts), F.silu(x @ glu.gate.T) * (x @ glu.up.T) @ glu.down.T, atol=1e-4)


def test_training_after_a_conversion_lowers_the_loss():
    model = tiny("qwen3")
    convert(model, {at: random_cut(glu, 6, 2, seed=0) for at, glu in dense_weights(model).items()})
    ids = tokens(4, 12)
    losses = continue_training(model, lambda step: ids, steps=12, rate=5e-3, balance=0.01)
    assert losses[-1] < losses[0] and not model.training
