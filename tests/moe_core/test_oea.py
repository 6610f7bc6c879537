"""Rerouting decode tokens to experts that their batch has loaded."""

import json

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM, DynamicCache

from moe_core.errors import ConfigError
from moe_core.methods.oea import Rerouting, enable, remember, simulate
from moe_core.methods.oea.latency import assign, fit, measure
from moe_core.methods.oea.rerouting import distinct
from moe_core.methods.oea.selection import Selection, gates, normalises, preferences, select
from moe_core.transformers.storage import save
from moe_core.transformers.tap import RoutingTap, cache_argument
from tests.moe_core.families import MIXTURES, tiny, words

EXPERTS = 9
batches = st.integers(0, 10**6).map(lambda seed: np.random.default_rng(seed).dirichlet(np.ones(EXPERTS), 5))
rules = st.fixed_dictionaries(
    {
        "base": st.integers(1, 4),
        "limit": st.integers(4, 6),
        "mass": st.sampled_from([0.3, 0.6, 1.0]),
        "reach": st.sampled_from([None, 4, 6]),
    }
)


def chosen(scores, live, **rule):
    """Sets of experts per row."""
    picked = select(torch.tensor(scores)[:, None], torch.tensor(live)[:, None], **rule)
    pairs = zip(picked.experts[:, 0].tolist(), picked.chosen[:, 0].tolist(), strict=True)
    return [[e for e, taken in zip(*row, strict=True) if taken] for row in pairs]


def by_the_book(scores, live, base, limit, mass, reach):
    """The paper's two phases, one token and one expert at a time."""
    own = []
    for row in scores:
        kept, total = [], 0.0
        for expert in np.argsort(-row, kind="stable")[:base]:
            if kept and total >= mass:
                break
            kept.append(int(expert))
            total += row[expert]
        own.append(kept)
    loaded = {expert for kept, alive in zip(own, live, strict=True) if alive for expert in kept}
    for row, kept, alive in zip(scores, own, live, strict=True):
        for expert in np.argsort(-row, kind="stable")[: reach or EXPERTS] if alive else ():
            if len(kept) >= limit:
                break
            if expert in loaded and int(expert) not in kept:
                kept.append(int(expert))
    return own


@settings(max_examples=80, deadline=None)
@given(batches, st.lists(st.booleans(), min_size=5, max_size=5), rules)
def test_the_tensor_version_is_the_papers_loop(scores, live, rule):
    assert [sorted(row) for row in chosen(scores, live, **rule)] == [
        sorted(row) for row in by_the_book(scores, live, **rule)
    ]


@settings(max_examples=60, deadline=None)
@given(batches, st.integers(1, 4))
def test_what_is_added_was_loaded_anyway(scores, base):
    everyone = [True] * 5
    own = [set(row) for row in chosen(scores, everyone, base=base, limit=base)]
    more = [set(row) for row in chosen(scores, everyone, base=base, limit=4)]
    loaded = set().union(*own)
    assert all(few <= many <= loaded and len(many) <= 4 for few, many in zip(own, more, strict=True))
    assert set().union(*more) == loaded


@settings(max_examples=40, deadline=None)
@given(batches, st.permutations(range(5)))
def test_the_order_of_the_batch_does_not_matter(scores, order):
    straight = chosen(scores, [True] * 5, base=2, limit=4)
    turned = chosen(scores[list(order)], [True] * 5, base=2, limit=4)
    assert turned == [straight[row] for row in order]


@pytest.mark.parametrize("name", MIXTURES)
@torch.no_grad()
def test_each_familys_own_decision_is_reproduced_and_weights_keep_their_sum(name):
    calls = []
    with RoutingTap(tiny(name), calls.append) as tap:
        model_ids = words(2, 6)
        tap._body(input_ids=model_ids)
    for call in calls:
        scores = preferences(call.block, call.logits)
        best = scores.topk(3, dim=-1).indices
        assert torch.equal(best.sort(-1).values, call.experts.sort(-1).values)
        slots = Selection(call.experts[:, None], torch.ones_like(call.experts[:, None], dtype=torch.bool))
        assert torch.allclose(gates(call.block.router, call.logits, slots), call.weights, atol=1e-6)
        slots.chosen[:, :, 2] = False
        slots.experts[:, :, 2] = slots.experts[:, :, 0]
        weights = gates(call.block.router, call.logits, slots)
        assert (weights[:, 2] == 0).all()
        if normalises(call.block.router):
            assert torch.allclose(weights.sum(-1), call.weights.sum(-1), atol=1e-5)
        else:
            assert torch.allclose(weights[:, :2], call.weights[:, :2], atol=1e-6)


@pytest.mark.parametrize("name", MIXTURES)
@torch.no_grad()
def test_all_of_its_own_experts_changes_no_bit(name):
    model, ids = tiny(name), words(4, 6)
    whole, natural = (simulate(model, ids, 3, 4, mode) for mode in ("oea", "vanilla"))
    assert torch.equal(whole[0], natural[0]) and whole[1] == natural[1]


@pytest.mark.parametrize("name", MIXTURES)
@torch.no_grad()
def test_rerouting_reads_what_cutting_reads(name):
    """Given the same inputs, which only the first MoE layer has in both."""
    model, ids = tiny(name, num_hidden_layers=2 if name.startswith("deepseek") else 1), words(4, 6)
    for k0 in (1, 2):
        own, cut = (simulate(model, ids, k0, 4, mode)[1] for mode in ("oea", "pruned"))
        assert own == pytest.approx(cut)
    assert simulate(model, ids, 1, 4)[1] <= simulate(model, ids, 2, 4)[1] <= simulate(model, ids, 3, 4)[1]


@pytest.mark.parametrize("implementation", ["eager", "grouped_mm", "batched_mm"])
@torch.no_grad()
def test_only_decode_steps_of_real_batches_are_rerouted(implementation):
    model, ids = tiny("qwen3-moe"), words(4, 5)
    model.set_experts_implementation(implementation)
    options = {"attention_mask": torch.ones_like(ids), "do_sample": False, "max_new_tokens": 4}
    plain = model.generate(ids, **options)
    with enable(model, k0=1) as activity:
        rerouted = model.generate(ids, **options)
        alone = model.generate(ids[:1], **{**options, "attention_mask": torch.ones_like(ids[:1])})
    assert torch.equal(rerouted[:, :6], plain[:, :6]), "the prompt's pass is left alone"
    assert torch.equal(alone, plain[:1]), "one row has nobody to share with"
    assert activity.decisions == 2 * 3 * 3 and activity.mean_rows == pytest.approx(2.5)
    with enable(model, k0=3):
        assert torch.equal(model.generate(ids, **options), plain)


@torch.no_grad()
def test_finished_rows_load_nothing_for_others():
    model, ids = tiny("qwen3-moe"), words(3, 5, low=2)
    model.generation_config.pad_token_id = 1
    seen = []
    cache = DynamicCache()
    model(input_ids=ids, use_cache=True, **{cache_argument(model): cache})
    step = torch.tensor([[5], [1], [9]])
    with enable(model, k0=1) as activity, RoutingTap(model, seen.append):
        model(input_ids=step, attention_mask=torch.ones(3, 6), **{cache_argument(model): cache})
    assert activity.mean_rows == 2
    for call in seen:
        used = [set(row[weight > 0].tolist()) for row, weight in zip(call.experts, call.weights, strict=True)]
        assert used[0] == used[2] and len(used[0]) <= 2 and len(used[1]) == 1


def test_experts_are_counted_per_position_of_live_rows():
    experts = torch.tensor([[0, 1], [2, 2], [1, 2], [7, 7]])
    weights = torch.tensor([[0.5, 0.5], [1.0, 0.0], [0.5, 0.5], [1.0, 0.0]])
    live = torch.tensor([[True, True], [True, False]])
    assert distinct(experts, weights, live, 8) == (3 + 1) / 2


@torch.no_grad()
def test_the_setting_is_saved_with_the_model_and_its_weights_are_not_touched(tmp_path):
    model, ids = tiny("qwen3-moe"), words(4, 5)
    before = {name: weight.clone() for name, weight in model.state_dict().items()}
    plain = model.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=6)
    activity = remember(model, Rerouting(k0=1))
    own = model.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=6)
    assert activity.decisions == 15 and not torch.equal(own, plain)
    save(model, tmp_path)
    assert json.loads((tmp_path / "config.json").read_text())["moe_core"]["oea"]["k0"] == 1
    again = AutoModelForCausalLM.from_pretrained(tmp_path, attn_implementation="eager").eval()
    assert all(torch.equal(weight, before[name]) for name, weight in again.state_dict().items())
    assert torch.equal(
        again.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=6), own
    )


def test_numbers_that_do_not_fit_are_said():
    model = tiny("mixtral")
    with pytest.raises(
        ConfigError, match=r"k0 = 4 and k_max = 3 do not fit model.layers.0.mlp with 8 experts, 3"
    ):
        simulate(model, words(4, 5), 4, 4)
    with pytest.raises(ConfigError, match="4 sequences cannot be cut into batches of 3"):
        simulate(model, words(4, 5), 1, 3)
    with pytest.raises(ConfigError, match="LlamaForCausalLM is dense"), enable(tiny("llama"), k0=1):
        pass


def test_assignments_use_as_many_experts_as_asked_and_lines_are_fitted():
    for count in (4, 8, 32):
        experts = assign(16, 4, count)
        assert len(experts.unique()) == count
        assert all(len(row.unique()) == 4 for row in experts)
    line = fit((1, 2, 3), (3.0, 5.0, 7.0))
    assert (line.slope, line.fixed, line.r2) == (pytest.approx(2), pytest.approx(1), pytest.approx(1))


@pytest.mark.slow
def test_a_decode_steps_time_is_linear_in_the_experts_read():
    """The best of three measurements: a busy machine bends the line, nothing straightens it."""
    layer = {"experts": 32, "width": 512, "hidden": 1024, "batch": 16, "active": 4}
    assert max(measure(**layer, repeats=9, seed=seed).r2 for seed in range(3)) >= 0.9
