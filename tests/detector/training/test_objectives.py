"""What each phase trains and minimises."""

import pytest
import torch
import torch.nn.functional as F

from detector.model import OmniAID
from detector.recipe import LossWeights
from detector.training.objectives import ExpertObjective, JointObjective, RouterObjective
from detector.vit import ExpertConfig
from moe_core.losses import joint_orthogonality_loss
from tests.detector.tiny import SIZE, tiny_model

LOSSES = LossWeights(orthogonality=0.1)
ARTIFACT, HUMAN, SCENE = 5, 0, 3
ROUTERS = {
    "two-pass": {"hidden": 8},
    "early": {"hidden": 8, "mode": "early"},
    "main": {"hidden": 8, "mode": "main", "tap": 1},
}


@pytest.fixture(scope="module")
def batch() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    pixels = torch.randint(
        0, 256, (6, 3, SIZE, SIZE), dtype=torch.uint8, generator=torch.Generator().manual_seed(0)
    )
    return pixels, torch.tensor([0, 1, 0, 1, 0, 1]), torch.tensor([0, 0, 3, 4, -1, -2])


def moved_model(**changes: object) -> OmniAID:
    """A model whose experts differ, so that no loss is at a stationary point."""
    model = tiny_model(**({"experts": ExpertConfig(rank=2, blocks=(2, 3))} | changes))
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for layer in model.expert_layers():
            for factor in (layer.u, layer.v):
                factor += 0.1 * torch.randn(factor.shape, generator=generator)
    return model


def moving(model: OmniAID) -> dict[str, torch.Tensor]:
    return {name: p.grad for name, p in model.named_parameters() if p.grad is not None and p.grad.any()}


@pytest.mark.parametrize("expert", [HUMAN, SCENE, ARTIFACT])
def test_stage_one_moves_one_expert_and_the_head(batch, expert):
    model = moved_model()
    ExpertObjective(model, LOSSES, expert)(*batch)["loss"].backward()
    factors = {name: grad for name, grad in moving(model).items() if name.startswith("trunk")}
    assert {name.split(".")[-1] for name in factors} == {"u", "s", "v"}
    for grad in factors.values():
        assert grad[expert].any()
        assert not grad[[other for other in range(6) if other != expert]].any()
    assert {name for name in moving(model) if not name.startswith("trunk")} == {
        "head.linear.weight",
        "head.linear.bias",
    }


def test_stage_one_begins_as_the_frozen_backbone(batch):
    model = tiny_model()
    with torch.no_grad():
        margin = ExpertObjective(model, LOSSES, SCENE)(batch[0])["margin"]
        logits = model.head(model.trunk(batch[0]))
    assert torch.allclose(margin, logits[:, 1] - logits[:, 0], atol=1e-5)


def test_experts_keep_away_from_earlier_ones_and_the_artifact_expert_from_none(batch):
    model = moved_model()
    value = {e: ExpertObjective(model, LOSSES, e)(*batch)["orthogonality"] for e in (HUMAN, SCENE, ARTIFACT)}
    apart = {e: _published_orthogonality(model, e, range(e)) for e in (HUMAN, SCENE)}
    apart[ARTIFACT] = _published_orthogonality(model, ARTIFACT, ())
    for expert, expected in apart.items():
        assert value[expert] == pytest.approx(expected, abs=1e-5)


def _published_orthogonality(model: OmniAID, expert: int, earlier) -> float:
    """The published formula, with the main space's own basis from a decomposition."""
    layers = []
    for layer in model.expert_layers():
        left, _, right = torch.linalg.svd(layer.weight.double())
        rank = layer.rank
        main = (left[:, :-rank].T, right[:-rank])
        own = [F.normalize(factor[expert].double(), dim=-1) for factor in (layer.u, layer.v)]
        pairs = [sum((basis @ rows.T).norm() for basis, rows in zip(main, own, strict=True))]
        for other in earlier:
            theirs = [F.normalize(factor[other].double(), dim=-1) for factor in (layer.u, layer.v)]
            pairs.append(sum((a @ b.T).norm() for a, b in zip(theirs, own, strict=True)))
        layers.append(torch.stack(pairs).mean())
    return float(torch.stack(layers).mean().detach())


def test_at_once_all_pairs_are_kept_apart_and_both_sides_feel_it():
    model = moved_model()
    layers = model.expert_layers()
    loss = joint_orthogonality_loss(layers)
    # With earlier = all before, expert e's mean over 1 + e pairs sums to every pair once.
    total = sum((1 + e) * _published_orthogonality(model, e, range(e)) for e in range(6))
    assert float(loss.detach()) == pytest.approx(total / 21, abs=1e-5)
    loss.backward()
    assert all(layer.u.grad[expert].any() for layer in layers for expert in range(6))


@pytest.mark.parametrize("router", ROUTERS, ids=str)
def test_stage_two_moves_router_and_head_alone(batch, router):
    experts = ExpertConfig(rank=2, blocks=(2, 3)) if router != "main" else ExpertConfig(rank=2)
    model = moved_model(router=ROUTERS[router], experts=experts)
    parts = RouterObjective(model, LOSSES)(*batch)
    parts["loss"].backward()
    moved = moving(model)
    assert not any(name.startswith("trunk") for name in moved)
    assert {name.split(".")[0] for name in moved} == {"router", "head"}
    expected = parts["decision"] + LOSSES.balance * parts["balance"] + LOSSES.gate * parts["gate"]
    assert torch.allclose(parts["loss"], expected)


@pytest.mark.parametrize("router", ROUTERS, ids=str)
def test_end_to_end_moves_everything_and_nothing_frozen(batch, router):
    experts = ExpertConfig(rank=2, blocks=(2, 3)) if router != "main" else ExpertConfig(rank=2)
    model = moved_model(router=ROUTERS[router], experts=experts)
    frozen = {name: p.clone() for name, p in model.named_parameters() if not p.requires_grad}
    JointObjective(model, LOSSES)(*batch)["loss"].backward()
    assert {name.split(".")[-1] for name in moving(model) if name.startswith("trunk")} == {"u", "s", "v"}
    assert any(name.startswith("router") for name in moving(model))
    assert all(torch.equal(value, model.get_parameter(name)) for name, value in frozen.items())


def test_artifact_pairs_and_unknown_domains_teach_the_router_nothing(batch):
    pixels, labels, domains = batch
    objective = RouterObjective(moved_model(), LOSSES)
    whole = objective(pixels, labels, domains)["gate"]
    known = objective(pixels[:4], labels[:4], domains[:4])["gate"]
    assert torch.allclose(whole, known, atol=1e-5)
    none = objective(pixels, labels, torch.full_like(domains, -1))
    assert none["gate"] == 0


def test_lora_has_nothing_to_keep_apart(batch):
    model = moved_model(experts=ExpertConfig(kind="lora", rank=2))
    parts = ExpertObjective(model, LOSSES, HUMAN)(*batch)
    assert set(parts) == {"loss", "decision", "margin"}
    parts["loss"].backward()
    assert all(not layer.s.requires_grad for layer in model.expert_layers())


@pytest.mark.parametrize(
    "make", [lambda m: ExpertObjective(m, LOSSES, 2), lambda m: JointObjective(m, LOSSES)]
)
def test_no_picture_gives_no_gradient_and_the_same_parts(batch, make):
    model = moved_model()
    objective = make(model)
    parts = objective(batch[0][:0], batch[1][:0], batch[2][:0])
    assert set(parts) | {"margin"} == set(objective(*batch))
    parts["loss"].backward()
    assert parts["loss"] == 0
    assert all(p.grad is not None and not p.grad.any() for p in model.parameters() if p.requires_grad)


def test_gradient_checkpointing_changes_memory_and_no_gradient(batch):
    gradients = []
    for checkpointing in (False, True):
        model = moved_model(experts=ExpertConfig(rank=2, blocks=(2, 3), dropout=0.2)).train()
        model.trunk.checkpointing = checkpointing
        torch.manual_seed(5)
        JointObjective(model, LOSSES)(*batch)["loss"].backward()
        gradients.append(moving(model))
    assert gradients[0].keys() == gradients[1].keys()
    assert all(torch.equal(value, gradients[1][name]) for name, value in gradients[0].items())


def test_the_distance_of_directions_is_not_computed_in_half_precision(batch):
    model = moved_model()
    objective = ExpertObjective(model, LOSSES, SCENE)
    exact = objective(*batch)["orthogonality"]
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(objective(*batch)["orthogonality"], exact)
