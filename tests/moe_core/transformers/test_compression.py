"""Compression keeps to its budget, is nothing when all is kept, and reloads."""

import itertools
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from moe_core.errors import ConfigError
from moe_core.lowrank import right_spectrum
from moe_core.transformers.calibration import RoutingStatistics, expert_fisher, routing_statistics
from moe_core.transformers.compression import Plan, compress, group_experts, group_scores
from moe_core.transformers.find import find_moe
from moe_core.transformers.storage import load, materialise, save, trial
from tests.moe_core.transformers.tiny import FACTORABLE, logits, tiny, tokens

PLANS = {
    "rfid": Plan(0.5),
    "uniform SVD": Plan(0.5, group=1, allocation="uniform"),
    "whitened": Plan(0.5, group=1, whiten=True),
    "D2-MoE": Plan(0.5, group=1, whiten=True, common=True),
    "random groups": Plan(0.5, grouping="random"),
    "uneven groups": Plan(0.5, group=3),
    "down too": Plan(0.5, down=True),
    "random residual": Plan(0.5, residual=0.05),
    "sorted residual": Plan(0.5, residual=0.05, assignment="sorted"),
    "silu": Plan(0.5, basis="silu", fit_steps=5),
}


@pytest.mark.parametrize("name", FACTORABLE)
def test_everything_kept_is_the_same_bits(name):
    model, ids = tiny(name), tokens()
    before = [[weight.clone() for weight in block.stacked()] for block in find_moe(model)]
    expected = logits(model, ids)
    done = compress(model, routing_statistics(model, ids), Plan(1.0))
    for old, block in zip(before, find_moe(model), strict=True):
        kinds = (block.experts.gate, block.experts.up, block.experts.down)
        assert all(torch.equal(a, b.whole()) for a, b in zip(old, kinds, strict=True))
    assert torch.allclose(logits(model, ids), expected, atol=1e-5)
    assert done.after.stored == done.before.stored and done.after.active == done.before.active


@pytest.mark.parametrize("name", PLANS)
def test_every_plan_keeps_to_its_budget_and_reloads(name, tmp_path):
    model, ids = tiny("qwen3_moe"), tokens()
    plan = PLANS[name]
    done = compress(model, routing_statistics(model, ids), plan)
    for got in done.allocated:
        rows, width = (16, 32)
        stored = got.factors.stored(rows, width) if got.kind != "down" else got.factors.stored(width, rows)
        assert stored <= got.budget
        if got.factors.low() and not plan.residual:
            assert got.budget - stored < max(len(group) for group in got.factors.groups) * rows + width
    share = done.after.charged / done.before.charged
    assert share <= (0.5 if plan.down else 2 / 3) + 1e-6
    expected = logits(model, ids)
    save(model, tmp_path)
    again, info = AutoModelForCausalLM.from_pretrained(tmp_path, output_loading_info=True)
    assert not info["missing_keys"] and not info["unexpected_keys"] and not info["mismatched_keys"]
    assert torch.allclose(logits(again, ids), expected, atol=1e-5)
    assert torch.allclose(logits(materialise(again), ids), expected, atol=1e-4)


def test_materialised_models_are_stock_models(tmp_path):
    model, ids = tiny("mixtral"), tokens()
    compress(model, routing_statistics(model, ids), Plan(0.5))
    save(materialise(model), tmp_path)
    again = load(tmp_path)
    assert type(again).__name__ == "MixtralForCausalLM"
    assert torch.allclose(logits(again, ids), logits(model, ids), atol=1e-4)


def test_more_kept_is_never_a_larger_error():
    errors = []
    for keep in (0.3, 0.5, 0.7, 0.9, 1.0):
        model, ids = tiny("olmoe"), tokens()
        original = [weight.clone() for weight in find_moe(model)[0].stacked()]
        compress(model, routing_statistics(model, ids), Plan(keep))
        experts = find_moe(model)[0].experts
        errors.append(float((experts.gate.whole() - original[0]).norm()))
    assert all(a >= b for a, b in itertools.pairwise(errors)) and errors[-1] == 0


def test_groups_go_by_frequency_and_ties_by_number():
    used = torch.tensor([0.1, 0.3, 0.1, 0.3, 0.2])
    assert group_experts(used, Plan(0.5, group=2)) == ((1, 3), (4, 0), (2,))


def test_scores_fuse_effective_rank_and_frequency():
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(4, 6, 8, generator=generator)
    weight[2:] = torch.randn(2, 6, 1, generator=generator) * torch.randn(1, 1, 8, generator=generator)
    groups, used = ((0, 1), (2, 3)), torch.tensor([0.1, 0.1, 0.4, 0.4])
    rank, frequency, fused = (
        group_scores(weight, groups, used, Plan(0.5, allocation=kind))
        for kind in ("rank", "frequency", "fused")
    )
    assert frequency == pytest.approx((0.2, 0.8)) and rank[0] > 4 * rank[1]
    assert fused == pytest.approx(tuple(0.8 * r + 0.2 * f for r, f in zip(rank, frequency, strict=True)))
    assert sum(fused) == pytest.approx(1)


def permuted(model: torch.nn.Module, order: torch.Tensor) -> None:
    for block in find_moe(model):
        for weight in (block.router.weight, block.experts.gate_up_proj, block.experts.down_proj):
            weight.data = weight.data[order].clone()


def test_numbering_of_experts_does_not_matter():
    ids, order = tokens(8), torch.tensor([3, 0, 7, 1, 6, 2, 5, 4])
    one, other = tiny("qwen3_moe"), tiny("qwen3_moe")
    permuted(other, order)
    for model in (one, other):
        statistics = routing_statistics(model, ids)
        frequency = torch.arange(8.0) if model is one else torch.arange(8.0)[order]
        fixed = tuple(replace(seen, counts=frequency + 1) for seen in statistics)
        compress(model, fixed, Plan(0.5))
    assert torch.allclose(logits(one, ids), logits(other, ids), atol=1e-4)


def test_residual_is_the_least_squares_optimum():
    model, ids = tiny("qwen3_moe"), tokens()
    original = find_moe(model)[0].stacked()[0].detach().clone()
    compress(model, routing_statistics(model, ids), Plan(0.5, residual=0.1))
    linear = find_moe(model)[0].experts.gate
    best = (original - linear.whole()).norm()
    with torch.no_grad():
        linear.eta += 0.01 * torch.randn(linear.eta.shape, generator=torch.Generator().manual_seed(0))
    assert (original - linear.whole()).norm() > best


def test_the_closed_form_beats_a_fitted_silu_basis_on_the_weights():
    """A silu basis is still a basis of that rank, so nothing can beat the SVD's squared error."""
    errors = {}
    for basis in ("linear", "silu"):
        model, ids = tiny("qwen3_moe"), tokens()
        original = find_moe(model)[0].stacked()[0].detach().clone()
        compress(model, routing_statistics(model, ids), Plan(0.5, basis=basis, fit_steps=20))
        errors[basis] = float((find_moe(model)[0].experts.gate.whole() - original).norm() / original.norm())
    assert errors["linear"] < errors["silu"] < 1


def test_fisher_weighs_the_common_mean():
    model, ids = tiny("qwen3_moe"), tokens()
    fisher = expert_fisher(model, ids)
    original = find_moe(model)[0].stacked()[0].detach().clone()
    compress(model, routing_statistics(model, ids), PLANS["D2-MoE"], fisher)
    shares = (fisher[0] / fisher[0].sum()).float()
    expected = (shares[:, None, None] * original).sum(0)
    assert torch.allclose(find_moe(model)[0].experts.gate.common, expected, atol=1e-5)


def test_a_trial_leaves_no_trace():
    model, ids = tiny("qwen3_moe"), tokens()
    expected, names, kind = logits(model, ids), list(model.state_dict()), type(model)
    with trial(model):
        compress(model, routing_statistics(model, ids), Plan(0.3))
        assert type(model) is not kind and not torch.allclose(logits(model, ids), expected)
    assert type(model) is kind and list(model.state_dict()) == names
    assert torch.equal(logits(model, ids), expected)
    assert model.config.model_type == "qwen3_moe" and not hasattr(model.config, "moe_core")


def test_what_cannot_be_compressed_is_named(tmp_path):
    ids = tokens()
    model = tiny("qwen3_moe")
    statistics = routing_statistics(model, ids)
    with pytest.raises(
        ConfigError, match="a budget of 40 numbers cannot be met; one rank for each costs 192"
    ):
        compress(model, statistics, Plan(0.01))
    model = tiny("gpt_oss")
    with pytest.raises(ConfigError, match=r"model\.layers\.0\.mlp \(GptOssExperts\) have biases"):
        compress(model, routing_statistics(model, ids), Plan(0.5))
    model = tiny("qwen3_moe")
    compress(model, statistics, Plan(0.5))
    with pytest.raises(ConfigError, match="compressed before cannot be compressed again"):
        compress(model, statistics, Plan(0.5))


def peak_bytes() -> int:
    status = Path("/proc/self/status").read_text("utf-8")
    return int(status.split("VmHWM:")[1].split()[0]) * 1024


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="the kernel cannot reset the peak")
def test_layers_are_compressed_one_by_one():
    """Sixteen experts a layer: the peak while compressing stays below 1.3 times the model."""
    layers, experts, width, hidden = 8, 16, 512, 256
    model = tiny(
        "qwen3_moe",
        hidden_size=hidden,
        num_hidden_layers=layers,
        num_experts=experts,
        moe_intermediate_size=width,
    )
    size = sum(weight.numel() * 4 for weight in model.parameters())
    even = torch.arange(1, experts + 1)
    statistics = tuple(
        RoutingStatistics(layer, even, even.double(), torch.eye(hidden).double(), 100)
        for layer in range(layers)
    )
    right_spectrum(torch.randn(64, hidden))
    Path("/proc/self/clear_refs").write_text("5")
    before = peak_bytes()
    compress(model, statistics, Plan(0.6))
    assert size > 150e6
    assert (peak_bytes() - before) / size < 0.3
