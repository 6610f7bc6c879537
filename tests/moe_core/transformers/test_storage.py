"""Saved models come back by plain `from_pretrained`, and not by anything that would guess weights."""

import json

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from moe_core.errors import ConfigError, UnknownName
from moe_core.transformers.conversion import convert, dense_weights, prune, random_cut
from moe_core.transformers.find import find_dense, find_moe
from moe_core.transformers.storage import build, load, note, restorers, save
from tests.moe_core.transformers.tiny import DENSE, logits, tiny, tokens

# As the tiny models are; other kernels differ in the last bits.
EAGER = {"attn_implementation": "eager"}


def split(model, active: int = 3):
    convert(model, {at: random_cut(glu, 6, active, seed=0) for at, glu in dense_weights(model).items()})
    return model


@pytest.mark.parametrize("name", DENSE)
def test_routed_blocks_reload_with_no_key_missing(name, tmp_path):
    model, ids = split(tiny(name)), tokens()
    expected = logits(model, ids)
    save(model, tmp_path)
    again, info = AutoModelForCausalLM.from_pretrained(tmp_path, output_loading_info=True, **EAGER)
    assert not any(info.values())
    assert torch.allclose(logits(again, ids), expected, atol=1e-6)
    assert again.config.model_type == f"moe_core_{name}" == AutoConfig.from_pretrained(tmp_path).model_type
    assert [block.active for block in find_moe(again)] == [3, 3]


def test_a_reloaded_model_can_be_saved_again(tmp_path):
    model, ids = split(tiny("llama")), tokens()
    save(model, tmp_path / "a")
    save(load(tmp_path / "a"), tmp_path / "b")
    assert torch.equal(logits(load(tmp_path / "b", **EAGER), ids), logits(model, ids))


def test_a_mixture_that_was_loaded_from_separate_experts_keeps_them_fused(tmp_path):
    """A stock folder holds experts one by one; after a change they are stored as they are held."""
    ids = tokens()
    tiny("qwen3_moe").save_pretrained(tmp_path / "stock")
    model = load(tmp_path / "stock")
    note(model)["threshold"] = 0
    model.config.moe_core.pop("threshold")
    save(model, tmp_path / "own")
    again, weights = load(tmp_path / "own", **EAGER), tiny("qwen3_moe").state_dict()
    assert again.state_dict().keys() == weights.keys()
    assert all(torch.equal(weight, weights[name]) for name, weight in again.state_dict().items())
    assert torch.allclose(logits(again, ids), logits(tiny("qwen3_moe"), ids), atol=1e-5)


def test_narrow_blocks_reload(tmp_path):
    model, ids = tiny("qwen2"), tokens()
    prune(model, {at: torch.arange(10 + at) for at in dense_weights(model)})
    save(model, tmp_path)
    again = load(tmp_path, **EAGER)
    assert [block.width for block in find_dense(again)] == [10, 11]
    assert torch.allclose(logits(again, ids), logits(model, ids), atol=1e-6)


def test_a_methods_own_setting_is_given_to_its_restorer(tmp_path):
    seen = []
    if "test-setting" not in list(restorers):
        restorers.register("test-setting")(lambda model, value: seen.append((type(model).__name__, value)))
    model = split(tiny("llama"))
    note(model)["test-setting"] = {"k0": 3}
    save(model, tmp_path)
    load(tmp_path)
    assert seen == [("MoeCoreLlamaForCausalLM", {"k0": 3})]


def changed(folder, **values):
    config = json.loads((folder / "config.json").read_text())
    config["moe_core"] |= values
    (folder / "config.json").write_text(json.dumps(config))


def test_what_cannot_be_loaded_is_named(tmp_path):
    with pytest.raises(ConfigError, match="none holds no causal language model: there is no such folder"):
        load(tmp_path / "none")
    (tmp_path / "odd").mkdir()
    (tmp_path / "odd" / "config.json").write_text('{"model_type": "no_such_model"}')
    with pytest.raises(ConfigError, match="odd holds no causal language model of a known architecture"):
        load(tmp_path / "odd")
    save(split(tiny("llama")), tmp_path / "a")
    changed(tmp_path / "a", version=2)
    with pytest.raises(ConfigError, match=r"moe_core has version 2; 1 can be read"):
        load(tmp_path / "a")
    changed(tmp_path / "a", version=1, unheard={})
    with pytest.raises(UnknownName, match="saved setting 'unheard' is unknown"):
        load(tmp_path / "a")
    with pytest.raises(ConfigError, match="block 'cube' is unknown; there are: dense_glu, factored_experts"):
        build("cube", {})


def test_missing_weights_are_named(tmp_path):
    from safetensors.torch import load_file, save_file

    save(split(tiny("llama")), tmp_path)
    path = tmp_path / "model.safetensors"
    weights = load_file(path)
    del weights["model.layers.1.mlp.gate.weight"]
    save_file(weights, path, metadata={"format": "pt"})
    with pytest.raises(ConfigError, match=r"lacks 1 weights, the first of them model\.layers\.1\.mlp\.gate"):
        load(tmp_path)


def test_weights_that_are_not_finite_are_not_saved(tmp_path):
    model = tiny("llama")
    with torch.no_grad():
        model.lm_head.weight[0, 0] = float("inf")
    with pytest.raises(ConfigError, match=r"not finite in lm_head\.weight"):
        save(model, tmp_path)


def test_an_unsupported_architecture_is_named():
    with pytest.raises(
        ConfigError, match=r"GPTNeoXForCausalLM \(gpt_neox\) cannot take other blocks; .*Llama"
    ):
        config = AutoConfig.for_model("gpt_neox", hidden_size=8, num_hidden_layers=1, num_attention_heads=1)
        config.vocab_size, config.intermediate_size = 16, 8
        note(AutoModelForCausalLM.from_config(config))
