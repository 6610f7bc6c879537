"""Shares, scores and cuts of ExpertWeaver, and the folder it saves."""

import math

import pytest
import torch

from moe_core.errors import ConfigError
from moe_core.methods.expertweaver.method import SMOKE, run
from moe_core.methods.expertweaver.weaving import (
    Weave,
    coefficient_of_variation,
    shared_experts,
    shared_share,
    weave,
)
from moe_core.toys.corpus import sequences
from moe_core.toys.models import token_losses
from moe_core.transformers.calibration import GluProfile, glu_profiles
from moe_core.transformers.conversion import convert, dense_weights
from moe_core.transformers.storage import load
from tests.moe_core.transformers.tiny import logits, tiny, tokens

HOW = Weave(experts=6, active=4, act="silu")


@pytest.fixture(scope="module")
def profiles():
    return glu_profiles(tiny("qwen3"), tokens(16), keep=64)


def profile_of(strength: torch.Tensor) -> GluProfile:
    return GluProfile(0, strength, strength, strength.mean(1), torch.zeros(1, 2), 10)


def test_variation_does_not_depend_on_scale_and_silent_neurons_do_not_explode():
    strength = torch.rand(5, 9, generator=torch.Generator().manual_seed(0))
    scaled = strength * torch.tensor([1.0, 10, 0.1, 3, 7])[:, None]
    assert torch.allclose(
        coefficient_of_variation(profile_of(strength)),
        coefficient_of_variation(profile_of(scaled)),
        atol=1e-5,
    )
    assert coefficient_of_variation(profile_of(torch.zeros(2, 3))).tolist() == [0, 0]


def test_shares_lie_between_alphas_and_fall_with_specialisation():
    shares = [shared_share(r / 10, HOW) for r in range(11)]
    assert shares[0] == pytest.approx(0.7) and shares[-1] == pytest.approx(0.2)
    assert shares == sorted(shares, reverse=True)
    assert shared_experts(0.7, 48, 6) == 4 and shared_experts(0.25, 8, 4) == 1
    assert shared_experts(0.5, 3, 3) == 2, "halves go up"


@pytest.mark.parametrize("change", [{}, {"tau_quantile": 0.5}, {"profile": "token", "normalise": True}])
def test_every_cut_has_k_active_experts_and_all_active_is_dense(change, profiles):
    model, ids = tiny("qwen3"), tokens()
    weights, expected = dense_weights(model), logits(model, ids)
    for active in (4, 6):
        woven = weave(weights, profiles, Weave(experts=6, active=active, act="silu", **change))
        for layer, cut in woven.cuts.items():
            assert torch.allclose(cut.router[0], weights[layer].gate[cut.routed[0]].mean(0), atol=1e-6)
            assert len(cut.shared) // 8 + cut.active == active
    convert(model, woven.cuts)
    assert torch.allclose(logits(model, ids), expected, atol=1e-4)


def test_the_shared_are_the_strongest(profiles):
    cut = weave(dense_weights(tiny("qwen3")), profiles, HOW).cuts[0]
    strength = profiles[0].gate_strength.mean(1)
    rest = strength[cut.routed.flatten()]
    assert strength[cut.shared].min() >= rest.max()


def test_where_all_active_would_be_shared_one_is_routed(profiles):
    woven = weave(dense_weights(tiny("qwen3")), profiles, Weave(experts=6, active=3, act="silu", tau=1e9))
    assert all(layer[3:] == (2, True) for layer in woven.layers)
    with pytest.raises(ConfigError, match="1 active expert leaves none to share"):
        weave(dense_weights(tiny("qwen3")), profiles, Weave(experts=6, active=1, act="silu"))
    with pytest.raises(ConfigError, match=r"9 active experts were asked for; 1\.\.6"):
        weave(dense_weights(tiny("qwen3")), profiles, Weave(experts=6, active=9, act="silu"))


def test_the_saved_folder_is_the_measured_model(tmp_path):
    config = SMOKE.model_copy(update={"compared": False, "save": tmp_path / "out"})
    report = run(config)
    held_out = sequences("test", config.sequences, config.length, config.seed + 1)
    again = load(tmp_path / "out", attn_implementation="eager")
    assert float(token_losses(again, held_out).mean()) == pytest.approx(
        report.metrics["expertweaver_nats"], abs=1e-6
    )
    assert math.isfinite(report.metrics["dense_nats"]) and report.artifacts["model"] == str(tmp_path / "out")


def test_downcycling_trains_with_softmax_weights():
    config = SMOKE.model_copy(
        update={"mode": "downcycle", "steps": 6, "rate": 3e-3, "compared": False, "active": 6}
    )
    report = run(config)
    assert report.metrics["mean_shared_experts"] == 2
    assert report.metrics["tuned_nats"] < report.metrics["expertweaver_nats"]
