"""The toy models and the text they are trained on."""

import dataclasses

import pytest
import torch

from moe_core.errors import ConfigError
from moe_core.toys.corpus import DOMAINS, domain_text, passages, sequences
from moe_core.toys.models import RECIPES, build, load_toy, token_losses, train
from moe_core.toys.pretrained import upcycle
from moe_core.toys.subjects import subject
from moe_core.transformers.find import find_moe
from tests.moe_core.families import tiny, words


@pytest.mark.parametrize("domain", DOMAINS)
def test_every_installation_has_enough_text(domain):
    train_text, test_text = domain_text(domain, "train"), domain_text(domain, "test")
    assert len(train_text) > 150_000 and len(test_text) > 20_000
    lines = [line for line in set(test_text.split(b"\n")) if len(line) > 60]
    shared = sum(line in train_text for line in lines[:200])
    assert shared < 0.4 * len(lines[:200]), "whole documents are kept apart; some lines are boilerplate"


def test_sequences_are_drawn_by_seed_and_take_domains_in_turn():
    ids = sequences("test", 6, 32, seed=3)
    assert ids.shape == (6, 32) and ids.dtype == torch.int64 and int(ids.max()) < 256
    assert torch.equal(ids, sequences("test", 6, 32, seed=3))
    assert not torch.equal(ids, sequences("test", 6, 32, seed=4))
    for index, piece in enumerate(passages("test", 6, 32, seed=3)):
        assert piece in domain_text(DOMAINS[index % len(DOMAINS)], "test")
    with pytest.raises(ConfigError, match="a passage of 90000000 bytes is asked for"):
        sequences("test", 1, 90_000_000, seed=0)
    with pytest.raises(ConfigError, match="text of 'poems', 'test' is unknown; there are prose, code"):
        domain_text("poems", "test")


def test_a_trained_toy_is_kept_in_its_folder(tmp_path):
    ids = sequences("test", 8, 32, seed=0)
    model = load_toy("moe", "smoke", tmp_path)
    (kept,) = tmp_path.iterdir()
    assert kept.name.startswith("moe-smoke-") and kept.suffix == ".safetensors"
    stamp = kept.stat().st_mtime_ns
    again = load_toy("moe", "smoke", tmp_path)
    assert kept.stat().st_mtime_ns == stamp
    assert torch.equal(token_losses(model, ids), token_losses(again, ids))
    untrained = build(RECIPES["moe", "smoke"], seed=0).eval()
    assert token_losses(model, ids).mean() < token_losses(untrained, ids).mean() - 1.0
    with pytest.raises(ConfigError, match="toy 'cube' of size 'smoke' is unknown; there are: moe full"):
        load_toy("cube", "smoke")


def test_training_is_repeatable_and_leaves_the_callers_generator_alone():
    recipe = dataclasses.replace(RECIPES["dense-small", "smoke"], steps=3)
    state = torch.random.get_rng_state()
    one, two = (train(build(recipe, seed=0), recipe, seed=0) for _ in range(2))
    assert torch.equal(torch.random.get_rng_state(), state)
    assert all(torch.equal(*pair) for pair in zip(one.parameters(), two.parameters(), strict=True))


def test_losses_are_the_models_own():
    model, ids = tiny("llama"), words(5, 7)
    with torch.no_grad():
        whole = model(input_ids=ids, labels=ids).loss
    assert token_losses(model, ids, batch=2).mean().item() == pytest.approx(whole.item(), rel=1e-5)


def test_a_dense_model_becomes_a_mixture_whose_whole_experts_are_the_model():
    dense, ids = tiny("llama"), words(6, 12)
    whole = upcycle(dense, ids, experts=4, active=2, width=32)
    with torch.no_grad():
        assert torch.allclose(whole(input_ids=ids).logits, dense(input_ids=ids).logits, atol=1e-4)
    part = upcycle(dense, ids, experts=4, active=2, width=8)
    experts = find_moe(part)[0].experts.down_proj
    assert experts.shape == (4, 32, 8) and not torch.equal(experts[0], experts[1])
    with pytest.raises(
        ConfigError, match="a qwen3 model with 32 neurons a block cannot be cut into experts of 8"
    ):
        upcycle(tiny("qwen3"), ids, width=8)


def test_a_folder_without_a_model_is_said(tmp_path):
    with pytest.raises(ConfigError, match="holds no causal language model"):
        subject("moe", str(tmp_path))
