"""Routing recorded from a rollout and replayed in training."""

import math
import re

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from moe_core.errors import ConfigError
from moe_core.methods.r3 import Trace, divergence, from_vllm, full_divergence, load_trace, record, replay
from moe_core.methods.r3.trace import check
from moe_core.transformers.tap import RoutingTap
from tests.moe_core.families import MIXTURES, tiny, words


def generated(model, prompt, mask=None, new=4):
    mask = torch.ones_like(prompt) if mask is None else mask
    options = {"do_sample": False, "max_new_tokens": new, "min_new_tokens": new, "pad_token_id": 0}
    return model.generate(prompt, attention_mask=mask, **options)


@pytest.mark.parametrize("name", MIXTURES)
def test_a_replayed_rollout_has_its_experts_its_logits_and_a_gradient(name):
    model = tiny(name)
    with torch.no_grad(), record(model) as recorder:
        texts = generated(model, words(3, 5))
    trace = recorder.trace
    assert trace.experts.shape == (3, 8, len(RoutingTap(model, lambda c: None).blocks), 3)
    with replay(model, trace) as replaying, record(model) as again:
        logits = model(input_ids=texts).logits
        logits.log_softmax(-1).square().mean().backward()
    assert torch.equal(again.trace.experts[:, :8], trace.experts), "in the recorded order too"
    assert (replaying.replayed, replaying.natural) == (24, 3)
    with torch.no_grad():
        assert torch.allclose(logits, model(input_ids=texts).logits, atol=1e-5)
    for block in RoutingTap(model, lambda c: None).blocks:
        assert block.router.weight.grad.abs().max() > 0


@pytest.mark.parametrize("name", MIXTURES)
@torch.no_grad()
def test_replaying_a_pass_on_itself_changes_no_bit(name):
    model, ids = tiny(name), words(2, 6)
    with record(model) as recorder:
        own = model(input_ids=ids).logits
    with replay(model, recorder.trace):
        assert torch.equal(model(input_ids=ids).logits, own)


@torch.no_grad()
def test_old_experts_are_replayed_with_new_weights():
    model, ids = tiny("qwen3-moe"), words(2, 6)
    with record(model) as recorder:
        model(input_ids=ids)
    other = tiny("qwen3-moe", seed=1)
    with record(other) as natural:
        other(input_ids=ids)
    with replay(other, recorder.trace), record(other) as replayed:
        other(input_ids=ids)
    assert torch.equal(replayed.trace.experts, recorder.trace.experts)
    assert not torch.equal(natural.trace.experts, recorder.trace.experts)


@torch.no_grad()
def test_texts_are_found_whatever_their_order_and_padding():
    model = tiny("mixtral")
    prompt, mask = words(2, 5, low=2), torch.tensor([[0, 0, 1, 1, 1], [1, 1, 1, 1, 1]])
    with record(model) as recorder:
        texts = generated(model, prompt, mask)
    trace = recorder.trace
    assert (trace.tokens != -1).sum(1).tolist() == [6, 8]
    assert torch.equal(trace.tokens[0, :6], texts[0, 2:8])
    turned = torch.cat([texts[1:], texts[:1]])
    turned_mask = torch.ones_like(turned)
    turned_mask[1, :2] = 0
    with replay(model, trace), record(model) as again:
        model(input_ids=turned, attention_mask=turned_mask)
    assert torch.equal(again.trace.experts[0, :8], trace.experts[1])
    assert torch.equal(again.trace.experts[1, :6], trace.experts[0, :6])


@torch.no_grad()
def test_replay_follows_a_cached_prefix():
    model = tiny("olmoe")
    with record(model) as recorder:
        texts = generated(model, words(2, 4))
    with replay(model, recorder.trace) as replaying:
        assert torch.equal(generated(model, words(2, 4)), texts)
    assert replaying.natural == 0 and replaying.replayed == 2 * 7


@pytest.mark.parametrize(
    ("name", "free"), [("qwen3-moe", True), ("deepseek-v3", True), ("qwen3-moe-raw", False)]
)
def test_experts_left_out_get_no_gradient_unless_the_softmax_is_over_all(name, free):
    model, scores, choices = tiny(name), [], []

    def keep(_module, _given, output):
        output[0].retain_grad()
        scores.append(output[0])

    with torch.no_grad(), record(model) as recorder:
        model(input_ids=words(2, 6))
    last = RoutingTap(model, lambda c: None).blocks[-1]
    with replay(model, recorder.trace), RoutingTap(model, lambda call: choices.append(call.experts)):
        handle = last.router.register_forward_hook(keep)
        model(input_ids=words(2, 6)).logits.square().mean().backward()
        handle.remove()
    left_out = torch.ones_like(scores[0], dtype=torch.bool).scatter(1, choices[-1], False)
    chosen, others = (scores[0].grad[where].abs().max() for where in (~left_out, left_out))
    assert chosen > 0 and (others < 1e-4 * chosen) == free


def test_checkpointed_layers_see_the_same_experts_when_they_run_again():
    plain, ids = tiny("qwen3-moe"), words(2, 6)
    other = tiny("qwen3-moe", seed=1)
    with torch.no_grad(), record(other) as recorder:
        other(input_ids=ids)
    seen, gradients = [], []
    for checkpointed in (False, True):
        plain.zero_grad()
        plain.train()
        if checkpointed:
            plain.gradient_checkpointing_enable()
        with replay(plain, recorder.trace), RoutingTap(plain, lambda call: seen.append(call.experts)):
            plain(input_ids=ids, use_cache=False).logits.square().mean().backward()
        gradients.append([weight.grad.clone() for weight in plain.parameters()])
    assert len(seen) == 3 + 6, "three layers, then three that are run twice"
    # Backward reaches the last layer first.
    assert all(torch.equal(*pair) for pair in zip(seen[3:6], seen[:5:-1], strict=True))
    assert all(torch.allclose(*pair, atol=1e-6) for pair in zip(*gradients, strict=True))


@pytest.fixture
def traced():
    model = tiny("qwen3-moe")
    with torch.no_grad(), record(model) as recorder:
        model(input_ids=words(2, 6), attention_mask=torch.tensor([[0, 1, 1, 1, 1, 1], [1] * 6]))
    return model, recorder.trace


def test_traces_survive_their_file(traced, tmp_path):
    _, trace = traced
    trace.save(tmp_path / "t.safetensors")
    again = load_trace(tmp_path / "t.safetensors")
    assert torch.equal(again.experts, trace.experts) and torch.equal(again.tokens, trace.tokens)
    assert (again.num_experts, again.model) == (trace.num_experts, trace.model)
    many = Trace(trace.experts, trace.tokens, 300, trace.model)
    many.save(tmp_path / "m.safetensors")
    assert torch.equal(load_trace(tmp_path / "m.safetensors").experts, trace.experts)
    (tmp_path / "n.safetensors").write_bytes(b"nothing")
    with pytest.raises(ConfigError, match=r"n.safetensors cannot be read as a routing trace"):
        load_trace(tmp_path / "n.safetensors")


def test_arrays_of_vllm_become_a_trace(traced):
    model, trace = traced
    texts = [[*trace.tokens[1].tolist(), 9], [*trace.tokens[0, :5].tolist(), 9]]
    arrays = [trace.experts[1].short().numpy(), trace.experts[0, :5].short().numpy()]
    made = from_vllm(arrays, texts, model)
    assert torch.equal(made.experts[0, :6], trace.experts[1])
    with replay(model, made) as replaying, torch.no_grad():
        model(input_ids=torch.tensor(texts[:1]))
    assert (replaying.replayed, replaying.natural) == (6, 1)
    with pytest.raises(ConfigError, match=r"the routing of text 0 is \(3, 3, 3\); a text of 7 tokens"):
        from_vllm([arrays[0][:3]], texts[:1], model)
    arrays[0][2, 1] = [4, 4, 1]
    with pytest.raises(
        ConfigError, match=re.escape("names experts [4, 4, 1] for token 2 of text 0 in MoE layer 1")
    ):
        from_vllm(arrays, texts, model)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 5), st.integers(0, 2), st.sampled_from([-2, 8, 100]))
def test_experts_out_of_range_are_named(token, layer, expert):
    experts = torch.arange(3).repeat(1, 6, 3, 1)
    experts[0, token, layer, 1] = expert
    with pytest.raises(
        ConfigError, match=f"for token {token} of text 0 in MoE layer {layer}; different ones of 0..7"
    ):
        check(Trace(experts, torch.zeros(1, 6), 8, "x"))


def test_traces_of_other_models_and_texts_are_refused(traced):
    model, trace = traced
    with (
        pytest.raises(ConfigError, match="the trace was recorded on another model"),
        replay(tiny("mixtral"), trace),
    ):
        pass
    with pytest.raises(ConfigError, match="LlamaForCausalLM is dense"), replay(tiny("llama"), trace):
        pass
    other = words(2, 6, seed=7)
    with torch.no_grad():
        with (
            replay(model, trace),
            pytest.raises(ConfigError, match=r"row 0 of the batch .* is none of the 2 texts"),
        ):
            model(input_ids=other)
        own = model(input_ids=other).logits
        with replay(model, trace, strict=False):
            assert torch.equal(model(input_ids=other).logits, own)
    with record(model) as recorder, pytest.raises(ConfigError, match="nothing was recorded"):
        _ = recorder.trace


def test_divergences_of_known_distributions():
    rollout, train = (torch.tensor(values).log() for values in ([0.5, 0.25, 0.25], [0.3, 0.45, 0.25]))
    known = 0.5 * math.log(0.5 / 0.3) + 0.25 * math.log(0.25 / 0.45)
    assert full_divergence(rollout, train).item() == pytest.approx(known, rel=1e-5)
    assert full_divergence(rollout, rollout).item() == 0
    found = divergence(rollout, train)
    assert found.extreme == {1.1: pytest.approx(2 / 3), 1.5: pytest.approx(2 / 3), 2.0: 0.0}
    assert found.largest == pytest.approx(1.8) and found.kl > 0
    with pytest.raises(ConfigError, match=r"\(3,\) and \(2,\) cannot be compared"):
        divergence(rollout, train[:2])
    with pytest.raises(ConfigError, match="not finite"):
        divergence(rollout, torch.tensor([0.0, float("-inf"), 0.0]))
