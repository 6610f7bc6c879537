"""Agreement of two routings."""

import pytest
import torch

from moe_core.errors import ConfigError
from moe_core.routing import Routing, top_k
from moe_core.statistics import routing_agreement


def test_agreement_counts_first_choice_set_and_weight_apart():
    one = Routing(torch.tensor([[0, 1], [0, 1], [0, 1]]), torch.tensor([[0.7, 0.3]] * 3), 4)
    other = Routing(
        torch.tensor([[0, 1], [1, 0], [0, 2]]), torch.tensor([[0.7, 0.3], [0.7, 0.3], [0.6, 0.4]]), 4
    )
    found = routing_agreement(one, other)
    assert found.first == pytest.approx(2 / 3)
    assert found.chosen == pytest.approx(2 / 3)
    assert found.moved == pytest.approx((0 + 0.4 + 0.4) / 3)


def test_a_chosen_expert_without_weight_still_counts_as_chosen():
    weights = torch.tensor([[1.0, 0.0]])
    one, other = Routing(torch.tensor([[0, 1]]), weights, 3), Routing(torch.tensor([[0, 2]]), weights, 3)
    assert routing_agreement(one, other) == (1.0, 0.0, 0.0)


def test_other_rows_or_experts_cannot_be_compared():
    with pytest.raises(ConfigError, match=r"\(2, 3\) and \(2, 4\) \(rows, experts\)"):
        routing_agreement(top_k(torch.zeros(2, 3), 1), top_k(torch.zeros(2, 4), 1))
