"""How much the singular directions of all experts overlap, for training them at once."""

from collections.abc import Sequence
from itertools import combinations

import torch
import torch.nn.functional as F
from torch import Tensor

from moe_core.experts import LowRankExperts
from moe_core.losses import NORM_FLOOR, orthogonality_loss


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
        pairs.append(torch.stack([_overlap(layer, first, second) for layer in layers]).mean())
    return torch.stack(pairs).mean()


def _overlap(layer: LowRankExperts, first: int, second: int) -> Tensor:
    ours, theirs = layer.trained_factors(first), layer.trained_factors(second)
    sides = [_unit(ours[side]) @ _unit(theirs[side]).T for side in (0, 2)]
    return torch.stack([(side.square().sum() + NORM_FLOOR**2).sqrt() for side in sides]).sum()


def _unit(rows: Tensor) -> Tensor:
    return F.normalize(rows.float(), dim=-1)
