"""Streaming statistics against the same numbers from all activations at once."""

import pytest
import torch
import torch.nn.functional as F

from moe_core.errors import ConfigError
from moe_core.transformers.calibration import expert_fisher, glu_profiles, routing_statistics
from moe_core.transformers.find import find_dense, find_moe
from moe_core.transformers.texts import calibration_text, spread
from tests.moe_core.transformers.tiny import tiny, tokens


def inputs_of(model: torch.nn.Module, module: torch.nn.Module, ids: torch.Tensor) -> torch.Tensor:
    seen = []
    handle = module.register_forward_pre_hook(lambda _, given: seen.append(given[0].detach()) or None)
    with torch.no_grad():
        model(input_ids=ids)
    handle.remove()
    return seen[0].reshape(-1, seen[0].shape[-1])


def test_routing_statistics_do_not_depend_on_the_batch():
    model, ids = tiny("qwen3_moe", norm_topk_prob=True), tokens(5)
    whole, parts = (routing_statistics(model, ids, batch=batch) for batch in (5, 2))
    for one, other, block in zip(whole, parts, find_moe(model), strict=True):
        assert torch.equal(one.counts, other.counts) and one.counts.sum() == 5 * 12 * 2
        assert one.frequency.sum() == pytest.approx(1)
        x = inputs_of(model, block.router, ids)
        assert torch.allclose(one.moment.float(), x.T @ x, atol=1e-3)
        assert torch.allclose(one.moment, other.moment, atol=1e-3)
        assert one.weights.sum() == pytest.approx(60, rel=1e-4)


def test_profiles_are_means_over_the_tokens_of_a_sample():
    model, ids = tiny("qwen3"), tokens(3)
    profile, block = glu_profiles(model, ids, batch=2, keep=10, seed=1)[1], find_dense(model)[1]
    x = inputs_of(model, block.module, ids)
    gate = F.silu(F.linear(x, block.weights().gate))
    hidden = gate * F.linear(x, block.weights().up)
    assert torch.allclose(profile.gate.T, gate.view(3, 12, -1).mean(1), atol=1e-5)
    assert torch.allclose(profile.gate_strength.T, gate.abs().view(3, 12, -1).mean(1), atol=1e-5)
    assert torch.allclose(profile.hidden_strength.float(), hidden.abs().mean(0), atol=1e-5)
    assert profile.inputs.shape == (10, 32)
    assert all(any(torch.allclose(row, other, atol=1e-5) for other in x) for row in profile.inputs)


def test_fisher_is_the_squared_gradient_and_leaves_no_gradient_behind():
    model, ids = tiny("mixtral"), tokens(2)
    found = expert_fisher(model, ids, batch=2)
    assert all(weight.grad is None and weight.requires_grad for weight in model.parameters())
    model(input_ids=ids, labels=ids).loss.backward()
    for values, block in zip(found, find_moe(model), strict=True):
        expected = block.experts.gate_up_proj.grad.square().mean(dim=(1, 2)).double()
        assert torch.allclose(values, expected, rtol=1e-3)


def test_padding_does_not_count():
    ids, mask = tokens(4, 12), torch.ones(4, 12, dtype=torch.int64)
    mask[1:, 7:] = 0
    for seen in routing_statistics(tiny("mixtral"), ids, mask=mask, batch=3):
        assert seen.tokens == mask.sum() and seen.counts.sum() == 2 * mask.sum()
    profile = glu_profiles(tiny("llama"), ids, mask=mask, batch=3, keep=1000)[0]
    assert profile.tokens == mask.sum() and profile.inputs.shape == (int(mask.sum()), 32)
    assert profile.gate.shape == (48, 4)


def test_text_that_is_too_short_is_named(tmp_path):
    with pytest.raises(ConfigError, match="note has 11 tokens; 3 sequences of 4 need 12"):
        spread(torch.arange(11), 3, 4, "note")
    assert spread(torch.arange(13), 3, 4, "note").tolist()[1] == [4, 5, 6, 7]
    with pytest.raises(ConfigError, match="cannot be given to the toy"):
        calibration_text(None, tmp_path / "a.txt", lambda *_: torch.zeros(1), 1, 2, 0)

    def letters(text: str, verbose: bool) -> dict[str, list[int]]:
        return {"input_ids": list(text.encode())}

    with pytest.raises(ConfigError, match=r"a.txt cannot be read as UTF-8 text"):
        calibration_text(letters, tmp_path / "a.txt", lambda *_: torch.zeros(1), 1, 2, 0)
    (tmp_path / "a.txt").write_text("abc")
    with pytest.raises(ConfigError, match=r"a.txt has 3 tokens; 2 sequences of 2 need 4"):
        calibration_text(letters, tmp_path / "a.txt", lambda *_: torch.zeros(1), 2, 2, 0)
    with pytest.raises(ConfigError, match=r"shape \(0, 4\)"):
        routing_statistics(tiny("mixtral"), torch.empty(0, 4, dtype=torch.int64))
    with pytest.raises(ConfigError, match="all 48 calibration tokens are padding"):
        glu_profiles(tiny("llama"), tokens(), mask=torch.zeros(4, 12))
