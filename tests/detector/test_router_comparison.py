"""Routing agreement and speed of two models on the same pictures."""

import pytest
import torch

from detector.errors import ModelError
from detector.model import ModelConfig, build_model
from detector.router_comparison import compare_routers
from tests.detector.tiny import SIZE, tiny_backbone, tiny_config, tiny_model


@pytest.fixture
def batches():
    generator = torch.Generator().manual_seed(0)
    return [
        torch.randint(0, 256, (n, 3, SIZE, SIZE), dtype=torch.uint8, generator=generator) for n in (4, 4, 2)
    ]


def single_pass_model():
    values = tiny_config().model_dump() | {"router": {"mode": "main", "tap": 1, "hidden": 8}}
    return build_model(ModelConfig.model_validate(values), backbone=tiny_backbone())


def test_a_model_agrees_with_itself(batches):
    found = compare_routers(tiny_model(), tiny_model(), batches)
    assert (found.pictures, found.same_first, found.same_chosen) == (10, 1.0, 1.0)
    assert (found.moved_weight, found.probability_difference) == (0.0, 0.0)
    assert found.speed == pytest.approx(found.reference_s / found.candidate_s)


def test_disagreement_is_counted_by_picture_over_all_batches(batches):
    reference, candidate = tiny_model(), single_pass_model()
    for model, best in ((reference, 0), (candidate, 1)):
        with torch.no_grad():
            model.router.network[2].weight.zero_()
            model.router.network[2].bias.copy_(torch.tensor([2.0, 2.0, -9, -9, -9]))
            model.router.network[2].bias[best] += 1
    found = compare_routers(reference, candidate, iter(batches))
    assert (found.same_first, found.same_chosen) == (0.0, 1.0)
    assert found.moved_weight == pytest.approx(
        torch.tensor([1.0, -1.0]).sigmoid().diff().abs().item(), abs=1e-5
    )


def test_other_domains_or_no_pictures_are_named(batches):
    with pytest.raises(ModelError, match=r"routers over human, .* and a, b cannot be compared"):
        compare_routers(tiny_model(), tiny_model(domains=("a", "b")), batches)
    with pytest.raises(ModelError, match="no batch"):
        compare_routers(tiny_model(), tiny_model(), [])
