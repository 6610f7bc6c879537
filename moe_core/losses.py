"""Training losses; each returns a scalar and keeps nothing."""

from collections.abc import Sequence
from itertools import combinations

import torch
import torch.nn.functional as F
from torch import Tensor

from moe_core.experts import LowRankExperts
from moe_core.routing import Routing

# Below this distance the unsquared norm has no useful direction; it also keeps its gradient finite.
NORM_FLOOR = 1e-6
# Where U and V stand among an expert's factors.
SIDES = (0, 2)


def balance_loss(logits: Tensor, routing: Routing) -> Tensor:
    """E * sum_i f_i P_i: f = share of rows with expert i among their k, P = mean softmax.

    Perfect balance gives k, not 1, because every row counts for k experts.

    Args:
        logits: (B, E) router scores.
        routing: the decision made from them.

    Source: OmniAID released implementation; Switch Transformer, eq. 4, for k = 1.
    """
    share = (routing.experts.unsqueeze(-1) == torch.arange(routing.num_experts, device=logits.device)).any(1)
    probability = logits.float().softmax(dim=-1).mean(dim=0)
    return routing.num_experts * (share.float().mean(dim=0) * probability).sum()


def gate_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """Cross-entropy of router scores against known domains; rows labelled -1 do not count.

    Args:
        logits: (B, E) router scores.
        labels: (B,) int64 domain, or -1 where unknown (reconstructions, mixed sources).

    Returns:
        Scalar; zero (with zero gradient) when no row has a known domain.
    """
    known = labels >= 0
    total = F.cross_entropy(logits.float(), labels.clamp_min(0), reduction="none")
    return (total * known).sum() / known.sum().clamp_min(1)


def orthogonality_loss(layers: Sequence[LowRankExperts], expert: int, earlier: Sequence[int] = ()) -> Tensor:
    """Overlap of one expert's singular directions with the frozen main space and earlier experts.

    Per layer: mean over pairs of ||U_r^T U_e||_F + ||V_r V_e^T||_F (not squared), with unit singular
    vectors; earlier experts are detached. Averaged over layers.

    Args:
        layers: SVD-initialised layers with square weights.
        expert: the active expert e.
        earlier: experts already trained that e should keep away from.

    Source: OmniAID released implementation. Differs: the norm against the main space is computed
    as the length of what is left after projecting on the residual triplets, which is equal because
    both together are a complete orthonormal basis of a square weight, and needs no stored main basis.
    """
    return torch.stack([_layer_overlap(layer, expert, earlier) for layer in layers]).mean()


def joint_orthogonality_loss(layers: Sequence[LowRankExperts]) -> Tensor:
    """Mean over layers and all pairs of ||U_i^T U_j||_F + ||V_i V_j^T||_F, not squared, as a scalar.

    The pairs are the main space with every expert, and every two experts, the artifact expert among
    them. Both of a pair receive a gradient. Only triplets that are trained count, and of those the
    directions: rows are brought to unit length.

    Args:
        layers: SVD layers, all with the same number of experts.

    Source: OmniAID (arXiv 2511.08423), released implementation, end-to-end mode.
    """
    experts = range(layers[0].num_experts)
    pairs = [orthogonality_loss(layers, expert) for expert in experts]
    for first, second in combinations(experts, 2):
        pairs.append(torch.stack([_pair_overlap(layer, first, second) for layer in layers]).mean())
    return torch.stack(pairs).mean()


def _layer_overlap(layer: LowRankExperts, expert: int, earlier: Sequence[int]) -> Tensor:
    sides = tuple(zip(SIDES, (layer.residual_u, layer.residual_v), strict=True))
    own = layer.trained_factors(expert)
    pairs = [_norm(_outside(_unit(own[side]), basis)) for side, basis in sides]
    for other in earlier:
        theirs = layer.trained_factors(other)
        pairs += [_norm(_unit(theirs[side]).detach() @ _unit(own[side]).T) for side, _ in sides]
    return torch.stack(pairs).sum() / (1 + len(earlier))


def _pair_overlap(layer: LowRankExperts, first: int, second: int) -> Tensor:
    ours, theirs = layer.trained_factors(first), layer.trained_factors(second)
    return torch.stack([_norm(_unit(ours[side]) @ _unit(theirs[side]).T) for side in SIDES]).sum()


def _unit(rows: Tensor) -> Tensor:
    return F.normalize(rows.float(), dim=-1)


def _outside(rows: Tensor, basis: Tensor) -> Tensor:
    return rows - (rows @ basis.float().T) @ basis.float()


def _norm(matrix: Tensor) -> Tensor:
    return (matrix.square().sum() + NORM_FLOOR**2).sqrt()
