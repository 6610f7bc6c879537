"""The tap sees every routing decision of every family, and changes nothing unless told to."""

import pytest
import torch

from moe_core.errors import ConfigError
from moe_core.transformers.tap import Choice, RoutingTap, frame_of
from tests.moe_core.families import MIXTURES, tiny, words


@pytest.mark.parametrize("name", MIXTURES)
@torch.no_grad()
def test_watching_changes_no_bit_and_sees_every_layer(name):
    model, ids, calls = tiny(name), words(2, 5), []
    own = model(input_ids=ids).logits
    with RoutingTap(model, calls.append) as tap:
        watched = model(input_ids=ids).logits
    assert torch.equal(own, watched)
    assert [call.order for call in calls] == list(range(len(tap.blocks)))
    assert all(call.experts.shape == (10, 3) and call.logits.shape == (10, 8) for call in calls)
    layers = [call.block.layer for call in calls]
    assert layers == {"qwen3-moe-raw": [0, 2], "deepseek-v2": [1, 2], "deepseek-v3": [1, 2]}.get(
        name, [0, 1, 2]
    )
    model(input_ids=ids)
    assert len(calls) == len(tap.blocks), "the tap is off"


@pytest.mark.parametrize("implementation", ["eager", "grouped_mm", "batched_mm"])
@torch.no_grad()
def test_an_empty_slot_is_a_repeated_expert_without_weight(implementation):
    model, ids = tiny("mixtral"), words(2, 5)
    model.set_experts_implementation(implementation)

    def padded(call):
        slots = torch.cat([call.experts, call.experts[:, :1]], dim=1)
        return Choice(torch.cat([call.weights, torch.zeros(len(slots), 1)], dim=1), slots)

    own = model(input_ids=ids).logits
    with RoutingTap(model, padded):
        assert torch.allclose(model(input_ids=ids).logits, own, atol=1e-6)


@torch.no_grad()
def test_frames_know_padding_and_cache_while_generating():
    model, frames = tiny("qwen3-moe"), []
    ids, mask = words(2, 4), torch.tensor([[0, 0, 1, 1], [1, 1, 1, 1]])
    with RoutingTap(model, lambda call: frames.append(call.frame)):
        model.generate(ids, attention_mask=mask, max_new_tokens=3, min_new_tokens=3, do_sample=False)
    first, second = frames[0], frames[3]
    assert first.positions.tolist() == [[-1, -1, 0, 1], [0, 1, 2, 3]] and first.cached == 0
    assert first.live.tolist() == mask.bool().tolist()
    assert second.positions.tolist() == [[2], [4]] and second.cached == 4
    assert len(frames) == 9


def test_what_cannot_be_tapped_is_said():
    with pytest.raises(ConfigError, match="LlamaForCausalLM is dense; this method takes a model with routed"):
        RoutingTap(tiny("llama"), lambda call: None)
    with pytest.raises(ConfigError, match=r"the attention mask is \(1, 1, 4, 4\)"):
        frame_of({"input_ids": words(1, 4), "attention_mask": torch.zeros(1, 1, 4, 4)})
    model = tiny("mixtral")
    with RoutingTap(model, lambda call: None), pytest.raises(ConfigError, match="outside a forward pass"):
        model.model.layers[0].mlp(torch.zeros(1, 3, 32))
