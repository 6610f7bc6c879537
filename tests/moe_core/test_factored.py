"""Factored experts against their matrices multiplied out."""

import pytest
import torch
from pydantic import ValidationError

from moe_core.factored import FactoredExperts, FactoredLinear, Factors, Residual
from moe_core.ledger import count

GROUPS = ((3, 0), (1,), (2, 4))


def filled(module: torch.nn.Module, seed: int = 0) -> torch.nn.Module:
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for weight in module.parameters():
            weight.copy_(torch.randn(weight.shape, generator=generator))
    return module


CASES = {
    "ragged": Factors(groups=GROUPS, ranks=(2, 3, 1)),
    "some dense": Factors(groups=GROUPS, ranks=(2, 0, 1)),
    "all dense": Factors(groups=GROUPS, ranks=(0, 0, 0)),
    "output side": Factors(groups=GROUPS, ranks=(2, 0, 3), side="out"),
    "common": Factors(groups=GROUPS, ranks=(1, 2, 1), common=True),
    "residual": Factors(
        groups=GROUPS, ranks=(1, 2, 0), residual=Residual(buckets=6, assignment="random", seed=3)
    ),
    "table": Factors(groups=GROUPS, ranks=(1, 2, 1), residual=Residual(buckets=6, assignment="sorted")),
}


@pytest.mark.parametrize("name", CASES)
def test_products_equal_the_whole_matrices(name):
    linear = filled(FactoredLinear(7, 9, CASES[name]))
    x = torch.randn(11, 9, generator=torch.Generator().manual_seed(1))
    experts = torch.tensor([0, 0, 1, 1, 2, 2, 2, 3, 4, 4, 4])
    whole = linear.whole()
    assert whole.shape == (5, 7, 9)
    assert torch.allclose(linear(x, experts), torch.einsum("noi,ni->no", whole[experts], x), atol=1e-4)
    only = torch.full((4,), 4)
    assert torch.allclose(linear(x[:4], only), x[:4] @ whole[4].T, atol=1e-4)


@pytest.mark.parametrize("name", CASES)
def test_the_ledger_counts_what_the_shape_says(name):
    linear = FactoredLinear(7, 9, CASES[name])
    assert count(linear).stored == CASES[name].stored(7, 9)
    assert count(linear).index_bits == (3 * 63 * 8 if name == "table" else 0)


def test_the_residuals_spreading_is_an_isometry():
    linear = filled(FactoredLinear(7, 9, CASES["residual"]))
    with torch.no_grad():
        for weight in (linear.basis, linear.dense):
            weight.zero_()
    assert torch.allclose(linear.whole().flatten(1).norm(dim=1), linear.eta.norm(dim=1), atol=1e-5)


def test_factored_experts_are_gated_linear_units_of_their_matrices():
    down = Factors(groups=GROUPS, ranks=(2, 1, 2), side="out")
    experts = filled(FactoredExperts(6, 8, "silu", CASES["ragged"], CASES["some dense"], down))
    x = torch.randn(5, 6, generator=torch.Generator().manual_seed(2))
    chosen = torch.tensor([[0, 1], [4, 2], [3, 0], [2, 1], [1, 4]])
    weights = torch.rand(5, 2, generator=torch.Generator().manual_seed(3))
    gate, up, out = experts.gate.whole(), experts.up.whole(), experts.down.whole()
    for row in range(5):
        expected = sum(
            w * out[e] @ (torch.nn.functional.silu(gate[e] @ x[row]) * (up[e] @ x[row]))
            for w, e in zip(weights[row], chosen[row].tolist(), strict=True)
        )
        assert torch.allclose(experts(x, chosen, weights)[row], expected, atol=1e-3)
    experts(x, chosen, weights).sum().backward()
    held = [weight for weight in experts.parameters() if weight.numel()]
    assert all(torch.isfinite(weight.grad).all() for weight in held)


def test_groups_must_hold_every_expert_once():
    with pytest.raises(ValidationError, match="every expert once"):
        Factors(groups=((0, 1), (1, 2)), ranks=(1, 1))
    with pytest.raises(ValidationError, match="1 ranks for 2 groups"):
        Factors(groups=((0,), (1,)), ranks=(1,))
