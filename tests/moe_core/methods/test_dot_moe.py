"""Learned splits: gradients, balance, export, and that learning helps."""

import pytest
import torch

from moe_core.errors import ConfigError
from moe_core.glu import GluWeights
from moe_core.methods.dot_moe.method import SMOKE, run
from moe_core.methods.dot_moe.splitting import MaskedGlu
from moe_core.methods.dot_moe.training import Schedule, distillation, fit_layer, fit_model, relative_error
from moe_core.partition import random_split
from moe_core.toys.corpus import sequences
from moe_core.toys.models import token_losses
from moe_core.transformers.conversion import centroid_router, convert, dense_weights
from moe_core.transformers.find import find_moe
from moe_core.transformers.storage import load
from tests.moe_core.transformers.tiny import logits, tiny, tokens


def block(seed: int = 0) -> GluWeights:
    generator = torch.Generator().manual_seed(seed)
    return GluWeights(*(torch.randn(*shape, generator=generator) for shape in ((32, 8), (32, 8), (8, 32))))


def masked(glu: GluWeights, active: int = 2, experts: int = 4, seed: int = 0) -> MaskedGlu:
    labels = random_split(len(glu.gate), experts, seed=seed)
    routed = torch.stack([(labels == expert).nonzero().squeeze(1) for expert in range(experts)])
    return MaskedGlu(glu, labels, centroid_router(glu, routed), active, "silu", seed=seed)


def inputs(count: int, seed: int = 1) -> torch.Tensor:
    return torch.randn(count, 8, generator=torch.Generator().manual_seed(seed))


def test_gradients_reach_the_affinities_and_the_router():
    split = masked(block())
    split(inputs(50)).square().mean().backward()
    for weight in (split.affinity, split.router):
        assert torch.isfinite(weight.grad).all() and weight.grad.abs().max() > 0


def test_all_experts_active_is_the_dense_block():
    split, x = masked(block(), active=4), inputs(9)
    expected = split.hidden(x) @ split.glu.down.T
    assert torch.allclose(split(x), expected, atol=1e-5)
    assert relative_error(split, x) < 1e-10


def test_labels_stay_balanced_while_learning():
    split, x = masked(block()), inputs(400)
    log = fit_layer(split, x, inputs(100, 2), Schedule(steps=30, affinity_rate=0.2, rows=64, settle_every=5))
    assert split.labels.bincount().tolist() == [8] * 4
    assert log[-1].moved > 0


def test_learning_the_split_too_beats_the_router_alone():
    """Mean over three blocks, from random splits: the split is where most of the error is."""
    errors = {}
    for rate in (1e-1, 0.0):
        ends = []
        for seed in range(3):
            split = masked(block(seed), seed=seed)
            how = Schedule(steps=40, affinity_rate=rate, rows=64, settle_every=5, seed=seed)
            ends.append(fit_layer(split, inputs(600), inputs(200, 2), how)[-1].error)
        errors[rate] = sum(ends) / 3
    assert errors[1e-1] < errors[0.0]


def test_the_router_alone_moves_no_neuron():
    split = masked(block())
    log = fit_layer(split, inputs(200), inputs(50, 2), Schedule(steps=10, affinity_rate=0.0, rows=64))
    assert log[-1].moved == 0 and torch.equal(split.assignment().argmax(1), split.labels)


def test_exported_experts_give_the_masked_outputs():
    model, ids = tiny("qwen3"), tokens()
    splits = {at: masked_like(glu) for at, glu in dense_weights(model).items()}
    x = torch.randn(7, 32, generator=torch.Generator().manual_seed(3))
    with torch.no_grad():
        expected = [split(x) for split in splits.values()]
    convert(model, {at: split.cut() for at, split in splits.items()})
    for got, found in zip(expected, find_moe(model), strict=True):
        assert torch.allclose(found.module(x), got, atol=2e-5)
    assert torch.isfinite(logits(model, ids)).all()


def masked_like(glu: GluWeights) -> MaskedGlu:
    labels = random_split(48, 6, seed=0)
    router = torch.randn(6, 32, generator=torch.Generator().manual_seed(4))
    return MaskedGlu(glu, labels, router, 2, "silu", seed=0)


def test_the_whole_model_learns_from_itself():
    model, ids = tiny("qwen3", initializer_range=0.1), tokens(4, 12)
    before = {name: weight.clone() for name, weight in model.state_dict().items()}
    splits = {at: masked_like(glu) for at, glu in dense_weights(model).items()}
    losses = fit_model(model, splits, lambda step: ids, Schedule(steps=15, settle_every=5))
    assert sum(losses[-3:]) < sum(losses[:3])
    assert all(torch.equal(before[name], weight) for name, weight in model.state_dict().items())


def test_a_student_like_its_teacher_pays_the_cross_entropy_alone():
    logits, ids = torch.randn(2, 5, 7, generator=torch.Generator().manual_seed(0)), torch.ones(2, 5).long()
    entropy = torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())
    assert torch.allclose(distillation(logits, logits, ids), entropy)
    assert distillation(logits, 0 * logits, ids) > torch.tensor(7.0).log()


@pytest.mark.parametrize("objective", ["layer", "kl"])
def test_the_saved_folder_is_the_measured_model(objective, tmp_path):
    config = SMOKE.model_copy(
        update={"compared": False, "save": tmp_path / "out", "objective": objective, "steps": 6}
    )
    report = run(config)
    held_out = sequences("test", config.sequences, config.length, config.seed + 1)
    again = load(tmp_path / "out", attn_implementation="eager")
    assert float(token_losses(again, held_out).mean()) == pytest.approx(report.metrics["dot_nats"], abs=1e-6)


def test_experts_that_do_not_divide_the_block_are_named():
    with pytest.raises(ConfigError, match="128 neurons cannot be cut into 7 experts"):
        run(SMOKE.model_copy(update={"experts": 7}))
