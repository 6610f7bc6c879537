"""The top-k gate and the Routing it gives."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from moe_core.errors import ConfigError, UnknownName
from moe_core.registry import Registry
from moe_core.routing import routers, top_k

logit_rows = st.lists(
    st.lists(st.floats(-50, 50, width=32), min_size=5, max_size=5, unique=True), min_size=1, max_size=6
)


@settings(max_examples=60, deadline=None)
@given(logit_rows, st.integers(1, 5))
def test_normalised_weights_sum_to_one_over_the_best_k(rows, k):
    logits = torch.tensor(rows)
    routing = top_k(logits, k)
    gates = routing.dense()
    assert torch.allclose(gates.sum(-1), torch.ones(len(rows)), atol=1e-6)
    for row, gate in zip(logits, gates, strict=True):
        chosen = row.argsort(descending=True)[:k]
        expected = torch.zeros(5)
        expected[chosen] = row[chosen].softmax(-1)
        assert torch.allclose(gate, expected, atol=1e-6)


def test_unnormalised_weights_are_the_entries_of_the_full_softmax():
    logits = torch.tensor([[1.0, 3.0, 2.0]])
    gates = top_k(logits, 2, normalise=False).dense()
    full = logits.softmax(-1)
    assert torch.allclose(gates, full * torch.tensor([[0.0, 1.0, 1.0]]))


def test_permuting_experts_permutes_gates():
    logits = torch.randn(7, 6, generator=torch.Generator().manual_seed(0))
    order = torch.tensor([3, 1, 5, 0, 2, 4])
    assert torch.allclose(top_k(logits[:, order], 2).dense(), top_k(logits, 2).dense()[:, order])


@pytest.mark.parametrize("scale", [1e4, -1e4])
def test_gradients_are_finite_at_extreme_logits(scale):
    logits = (torch.tensor([[1.0, -1.0, 0.5], [0.0, 0.2, -0.3]]) * scale).requires_grad_()
    top_k(logits, 2).dense().square().sum().backward()
    assert torch.isfinite(logits.grad).all()


@pytest.mark.parametrize("k", [0, 4])
def test_k_out_of_range_is_named(k):
    with pytest.raises(ConfigError, match=f"k is {k}; a row can go to 1..3 experts"):
        top_k(torch.zeros(1, 3), k)


def test_temperature_divides_the_scores_and_keeps_the_choice():
    logits = torch.tensor([[1.0, 4.0, 2.0]])
    routing = top_k(logits, 2, temperature=2.0)
    assert torch.equal(routing.experts, top_k(logits, 2).experts)
    assert torch.allclose(routing.weights, torch.tensor([[4.0, 2.0]]).div(2).softmax(-1))
    with pytest.raises(ConfigError, match=r"temperature is 0; it must be above 0"):
        top_k(logits, 2, temperature=0)


def test_one_normalised_expert_cannot_train_its_router():
    with pytest.raises(ConfigError, match="no gradient"):
        top_k(torch.zeros(1, 3, requires_grad=True), 1)
    assert top_k(torch.zeros(1, 3), 1).dense().sum() == 1


def test_registry_lists_its_alternatives():
    assert routers["top-k"] is top_k
    with pytest.raises(UnknownName, match=r"router 'top-q' is unknown; there are: .*top-k"):
        routers["top-q"]


def test_registry_refuses_a_second_use_of_a_name():
    table: Registry[int] = Registry("number")
    table.register("one")(1)
    with pytest.raises(ValueError, match="registered twice"):
        table.register("one")(2)
    assert list(table) == ["one"]
    assert len(table) == 1
