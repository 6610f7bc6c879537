"""Two-stage training: what moves, what must not, and exact resume."""

import json

import numpy as np
import pytest
import torch

from detector.errors import RecipeError
from detector.features import FeatureCache
from detector.model import DOMAINS, OmniAID
from detector.probe import Probe
from detector.recipe import LossWeights, StageConfig, TrainRecipe
from detector.train import Trainer, TrainingSet, load_trained
from detector.vit import ExpertConfig
from tests.detector.tiny import SIZE, tiny_config, tiny_model

VIEWS = 72
STAGE = StageConfig(batch=4, lr=5e-3)


def recipe(**changes: object) -> TrainRecipe:
    model = tiny_config(experts=ExpertConfig(rank=2, blocks=(2, 3)))
    return TrainRecipe(version="0", model=model, experts=STAGE, router=STAGE, **changes)


def fresh_model() -> OmniAID:
    return tiny_model(experts=ExpertConfig(rank=2, blocks=(2, 3)))


@pytest.fixture(scope="module")
def data() -> TrainingSet:
    rng = np.random.default_rng(0)
    pixels = rng.integers(0, 256, (VIEWS, 3, SIZE, SIZE), dtype=np.uint8)
    labels = np.arange(VIEWS) % 2
    pixels[labels == 1, :, ::4] //= 2
    domains = np.arange(VIEWS) // 2 % (len(DOMAINS) + 1)
    domains[domains == len(DOMAINS)] = -1
    trunk = fresh_model().trunk
    with torch.no_grad():
        shared = trunk.shared(torch.from_numpy(pixels))
        frozen = trunk.finish(shared, None)
    cache = FeatureCache(shared.tokens.numpy().astype(np.float16), frozen.numpy(), shared.tapped.shape[1])
    return TrainingSet(cache, labels, domains)


@pytest.fixture(scope="module")
def probe(data) -> Probe:
    features = data.cache.frozen
    zeros = np.zeros(features.shape[1])
    return Probe(features.mean(0), features.std(0) + 1e-6, zeros, 0.0, 1e-3)


class Interrupted(Exception):
    pass


def interrupt_after(steps: int):
    seen = 0

    def on_progress(*_: object) -> None:
        nonlocal seen
        seen += 1
        if seen == steps:
            raise Interrupted

    return on_progress


def state_of(model: OmniAID) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in model.trainable_state().items()}


def test_stages_train_experts_then_router_and_log_every_step(data, probe, tmp_path):
    model = fresh_model()
    before = state_of(model)
    Trainer(model, data, probe, recipe(), tmp_path).run()
    rows = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    phases = list(dict.fromkeys(row["phase"] for row in rows))
    assert phases == [*(f"expert-{name}" for name in DOMAINS), "expert-artifact", "router"]
    assert all(row["steps"] == 3 for row in rows if row["phase"] != "router")
    assert [row["step"] for row in rows if row["phase"] == "router"] == list(range(18))
    assert all(np.isfinite(row["loss"]) for row in rows)
    after = state_of(model)
    assert all(not torch.equal(before[name], after[name]) for name in after if name.endswith((".u", ".v")))
    assert any(not torch.equal(before[name], after[name]) for name in after if name.startswith("router."))


@pytest.mark.parametrize("steps", [2, 7, 25])
def test_a_killed_and_resumed_run_equals_an_uninterrupted_one_bit_for_bit(
    data, probe, tmp_path, steps, monkeypatch
):
    monkeypatch.setattr("detector.train.CHECKPOINT_EVERY", 2)
    whole = fresh_model()
    Trainer(whole, data, probe, recipe(), tmp_path / "whole").run()
    with pytest.raises(Interrupted):
        Trainer(fresh_model(), data, probe, recipe(), tmp_path / "cut", interrupt_after(steps)).run()
    resumed = fresh_model()
    Trainer(resumed, data, probe, recipe(), tmp_path / "cut").run()
    expected = state_of(whole)
    assert all(torch.equal(value, expected[name]) for name, value in state_of(resumed).items())
    logs = [(tmp_path / name / "metrics.jsonl").read_text() for name in ("whole", "cut")]
    assert logs[0] == logs[1]


def test_training_one_expert_leaves_the_others_bit_identical(data, probe, tmp_path):
    model = fresh_model()
    before = state_of(model)
    with pytest.raises(Interrupted):
        Trainer(model, data, probe, recipe(), tmp_path, interrupt_after(3)).run()
    after = state_of(model)
    for name in after:
        if name.endswith((".u", ".s", ".v")):
            assert not torch.equal(before[name][0], after[name][0])
            assert torch.equal(before[name][1:], after[name][1:])


def test_stage_two_leaves_the_experts_as_stage_one_left_them(data, probe, tmp_path):
    model, stage_one = fresh_model(), {}

    def remember(phase: str, step: int, steps: int, metrics: dict[str, float]) -> None:
        if phase == "expert-artifact" and step == steps:
            stage_one.update(state_of(model))

    Trainer(model, data, probe, recipe(), tmp_path, remember).run()
    after = state_of(model)
    assert all(torch.equal(after[k], v) for k, v in stage_one.items() if k.endswith((".u", ".s", ".v")))


def test_the_head_is_reset_to_the_probe_for_every_phase(data, probe, tmp_path):
    """With a head that may not move, it is still the probe at the end."""
    still = recipe().model_copy(
        update={
            name: StageConfig(batch=4, lr=5e-3, head_lr=1e-12, min_lr=0) for name in ("experts", "router")
        }
    )
    model = fresh_model()
    Trainer(model, data, probe, still, tmp_path).run()
    assert model.head.linear.weight.abs().max() < 1e-8


def test_orthogonality_keeps_an_expert_away_from_the_main_space(data, probe, tmp_path):
    def final_overlap(weight: float, name: str) -> float:
        strong = recipe(losses=LossWeights(orthogonality=weight))
        with pytest.raises(Interrupted):
            Trainer(fresh_model(), data, probe, strong, tmp_path / name, interrupt_after(3)).run()
        return json.loads((tmp_path / name / "metrics.jsonl").read_text().splitlines()[-1])["orthogonality"]

    assert final_overlap(10.0, "with") < final_overlap(0.0, "without")


def test_a_class_missing_from_a_domain_is_named(data, probe, tmp_path):
    labels = data.labels.copy()
    labels[data.domains == 1] = 0
    poor = TrainingSet(data.cache, labels, data.domains)
    with pytest.raises(RecipeError, match="expert 'animal' has no training pictures of one class"):
        Trainer(fresh_model(), poor, probe, recipe(), tmp_path).run()


def test_a_checkpoint_of_another_recipe_is_refused(data, probe, tmp_path):
    Trainer(fresh_model(), data, probe, recipe(), tmp_path).run()
    with pytest.raises(RecipeError, match="belongs to another recipe"):
        Trainer(fresh_model(), data, probe, recipe(seed=1), tmp_path).run()


def test_loading_is_strict():
    model = fresh_model()
    state = state_of(model)
    name, value = state.popitem()
    with pytest.raises(RecipeError, match=name):
        load_trained(model, state)
    with pytest.raises(RecipeError, match="stranger"):
        load_trained(model, {**state, name: value, "stranger": value})
