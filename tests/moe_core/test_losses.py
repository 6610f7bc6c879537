"""Balance, gate and orthogonality losses against their definitions."""

import pytest
import torch

from moe_core.experts import LowRankExperts
from moe_core.losses import balance_loss, gate_loss, orthogonality_loss
from moe_core.routing import top_k


@pytest.mark.parametrize(("experts", "k"), [(4, 1), (4, 2), (6, 3)])
def test_balanced_load_gives_k(experts, k):
    """Row i prefers experts i..i+k-1 with tiny preferences, so both shares and softmax are even."""
    logits = torch.stack([torch.roll((torch.arange(experts) < k).float() * 1e-4, i) for i in range(experts)])
    routing = top_k(logits, k, normalise=False)
    assert balance_loss(logits, routing).item() == pytest.approx(k, abs=1e-6)


def test_collapsed_load_costs_more_than_balanced_load():
    logits = torch.zeros(8, 4)
    logits[:, 0] = 10
    assert balance_loss(logits, top_k(logits, 1, normalise=False)).item() == pytest.approx(4, abs=0.01)


@pytest.mark.parametrize("scale", [1e4, -1e4])
def test_gradients_are_finite_at_extreme_logits(scale):
    logits = (torch.tensor([[1.0, -1.0, 0.5], [0.0, 0.2, -0.3]]) * scale).requires_grad_()
    total = balance_loss(logits, top_k(logits, 2)) + gate_loss(logits, torch.tensor([1, 2]))
    total.backward()
    assert torch.isfinite(total)
    assert torch.isfinite(logits.grad).all()


def test_unknown_domains_do_not_count():
    logits = torch.randn(4, 3, generator=torch.Generator().manual_seed(0), requires_grad=True)
    labels = torch.tensor([0, -1, 2, -1])
    expected = torch.nn.functional.cross_entropy(logits[[0, 2]], labels[[0, 2]])
    loss = gate_loss(logits, labels)
    assert torch.allclose(loss, expected)
    loss.backward()
    assert torch.equal(logits.grad[[1, 3]], torch.zeros(2, 3))


def test_no_known_domain_costs_nothing():
    logits = torch.randn(2, 3, requires_grad=True)
    loss = gate_loss(logits, torch.tensor([-1, -1]))
    loss.backward()
    assert loss.item() == 0
    assert torch.equal(logits.grad, torch.zeros(2, 3))


def shaken(seed: int) -> LowRankExperts:
    generator = torch.Generator().manual_seed(seed)
    layer = LowRankExperts.from_svd(torch.randn(8, 8, generator=generator), None, 3, 2)
    with torch.no_grad():
        for factor in (layer.u, layer.v):
            factor += 0.4 * torch.randn(factor.shape, generator=generator)
    return layer


def by_definition(layer: LowRankExperts, expert: int, earlier: tuple[int, ...]) -> torch.Tensor:
    """mean over pairs of ||U_r^T U_e||_F + ||V_r V_e^T||_F, from a full SVD."""
    left, _, right = torch.linalg.svd(layer.weight)
    unit = torch.nn.functional.normalize
    u, v = unit(layer.u[expert], dim=-1).T, unit(layer.v[expert], dim=-1)
    keep = layer.weight.shape[0] - layer.rank
    pairs = [torch.linalg.norm(left[:, :keep].T @ u) + torch.linalg.norm(right[:keep] @ v.T)]
    for other in earlier:
        u_other, v_other = unit(layer.u[other], dim=-1), unit(layer.v[other], dim=-1)
        pairs.append(torch.linalg.norm(u_other @ u) + torch.linalg.norm(v_other @ v.T))
    return torch.stack(pairs).mean()


@pytest.mark.parametrize(("expert", "earlier"), [(0, ()), (1, (0,)), (2, (0, 1))])
def test_orthogonality_equals_its_definition(expert, earlier):
    layers = [shaken(1), shaken(2)]
    expected = torch.stack([by_definition(layer, expert, earlier) for layer in layers]).mean()
    assert torch.allclose(orthogonality_loss(layers, expert, earlier), expected, atol=1e-5)


def test_an_expert_at_its_start_is_orthogonal_to_the_main_space():
    layer = LowRankExperts.from_svd(torch.randn(8, 8), None, 2, 2)
    loss = orthogonality_loss([layer], 0)
    loss.backward()
    assert loss.item() < 1e-4
    assert torch.isfinite(layer.u.grad).all()


def test_earlier_experts_receive_no_gradient():
    layer = shaken(3)
    orthogonality_loss([layer], 1, (0,)).backward()
    assert torch.equal(layer.u.grad[0], torch.zeros_like(layer.u.grad[0]))
    assert layer.u.grad[1].abs().sum() > 0
