"""Gates set by hand, and experts folded away, in torch."""

import pytest
import torch

from detector.errors import ModelError
from detector.gates import fold_gates, parse_gates, score_with_gates
from detector.vit import ExpertConfig
from moe_core.experts import LowRankExperts
from tests.detector.exported import PINNED, move
from tests.detector.tiny import SIZE, tiny_model

MODELS = {
    "two-pass": {},
    "early": {"router": {"mode": "early", "tap": 1, "hidden": 8}},
    "main": {"router": {"mode": "main", "tap": 1, "hidden": 8}},
    "lora": {"experts": ExpertConfig(kind="lora", rank=2)},
    "mlp": {"experts": ExpertConfig(rank=2, on="attention+mlp")},
    "lora on mlp": {"experts": ExpertConfig(kind="lora", rank=2, on="mlp")},
    "uneven": {"experts": ExpertConfig(rank=(1, 2, 3, 1, 2, 3))},
    "patch mean": {"patch_mean": True},
}


@pytest.fixture(params=MODELS)
def model(request):
    return move(tiny_model(**MODELS[request.param]))


def pixels(batch: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(3)
    return torch.randint(0, 256, (batch, 3, SIZE, SIZE), dtype=torch.uint8, generator=generator)


@torch.no_grad()
def test_the_models_own_gates_give_its_own_logits(model):
    output = model(pixels(3))
    assert (score_with_gates(model, pixels(3), output.gates) - output.logits).abs().max() <= 1e-5


@torch.no_grad()
def test_a_folded_model_is_the_unfolded_one_with_those_gates(model):
    before = {name: value.clone() for name, value in model.state_dict().items()}
    folded = fold_gates(model, PINNED)
    expected = score_with_gates(model, pixels(3), torch.tensor(PINNED).expand(3, -1))
    assert (folded(pixels(3)) - expected).abs().max() <= 1e-4
    assert (expected - model(pixels(3)).logits).abs().max() > 1e-3
    assert not any(isinstance(part, LowRankExperts) for part in folded.modules())
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


NAMES = ("a", "b", "artifact")


def test_gates_are_read_in_order():
    assert parse_gates("0.2, 0.8,1", NAMES) == (0.2, 0.8, 1.0)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("0.2,0.8", "2 gates are given; 3 are needed: a, b, artifact"),
        ("0.2,x,1", "gate 'x' is no number"),
        ("0.2,,1", "gate '' is no number"),
        ("0.2,nan,1", "gate nan is not finite"),
        ("0.2,inf,1", "gate inf is not finite"),
    ],
)
def test_other_texts_are_refused(text, message):
    with pytest.raises(ModelError, match=message):
        parse_gates(text, NAMES)
