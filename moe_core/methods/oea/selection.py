"""Which experts each token of a batch goes to, when what others have loaded comes free."""

from typing import NamedTuple

import torch
from torch import Tensor, nn

from moe_core.transformers.find import MoeBlock
from moe_core.transformers.weighting import selection_weights


class Selection(NamedTuple):
    """Sets of experts of unequal size, in slots of equal number.

    Attributes:
        experts: (B, S, K) int64, best first; an empty slot repeats the row's best expert.
        chosen: (B, S, K) bool, False in empty slots.
    """

    experts: Tensor
    chosen: Tensor


def select(
    scores: Tensor, live: Tensor, *, base: int, limit: int, mass: float = 1.0, reach: int | None = None
) -> Selection:
    """Each token's own best experts, then its next best among those that the batch needs anyway.

    Args:
        scores: (B, S, E) preference, larger is better; -inf where an expert must not be chosen. The B
            tokens at one S are one decode batch.
        live: (B, S) bool; tokens that are padding or finished load nothing for others and keep their base.
        base: k0, experts a token brings in itself.
        limit: k_max, experts a token may use in all.
        mass: p; a token brings in fewer than k0 experts when fewer reach this share of its scores.
        reach: maxP; a token takes over experts among its first `reach` preferences only.

    Source: Oncescu et al., "Opportunistic Expert Activation" (arXiv 2511.02237), algorithms 1 and 2.
    Differs: stops at k_max as the text says; algorithm 2 as printed admits one more.
    """
    order = scores.argsort(dim=-1, descending=True, stable=True)
    ranked = scores.gather(-1, order)
    rank = torch.arange(scores.shape[-1], device=scores.device)
    kept = (rank < base) & (_mass_before(ranked) < mass) & ranked.isfinite()
    loaded = _union(order, kept & live.unsqueeze(-1))
    free = loaded.gather(-1, order) & (rank < (reach or scores.shape[-1])) & ranked.isfinite()
    allowed = kept | (free & live.unsqueeze(-1))
    taken = allowed & (allowed.cumsum(dim=-1) <= limit)
    # A stable sort on "not taken" moves the taken ones to the front in order of preference.
    slots = (~taken).byte().argsort(dim=-1, stable=True)[..., :limit]
    experts, chosen = order.gather(-1, slots), taken.gather(-1, slots)
    return Selection(torch.where(chosen, experts, order[..., :1]), chosen)


def _mass_before(ranked: Tensor) -> Tensor:
    """(B, S, E) share of the positive scores that better experts hold."""
    positive = ranked.clamp_min(0).nan_to_num(neginf=0.0)
    total = positive.sum(dim=-1, keepdim=True).clamp_min(torch.finfo(positive.dtype).tiny)
    return (positive.cumsum(dim=-1) - positive) / total


def _union(order: Tensor, kept: Tensor) -> Tensor:
    """(B, S, E) bool by expert: whether any token of the batch keeps it; equal for all B."""
    own = torch.zeros_like(kept).scatter(-1, order, kept)
    return own.any(dim=0, keepdim=True).expand_as(own)


def preferences(block: MoeBlock, logits: Tensor) -> Tensor:
    """Scores (T, E) float32 by which the router ranks experts, -inf outside the groups it admits.

    Args:
        block: whose router it is.
        logits: (T, E) scores before activation.
    """
    router = block.router
    bias = getattr(router, "e_score_correction_bias", None)
    scores = logits.float().softmax(dim=-1) if bias is None else logits.float().sigmoid() + bias
    groups = getattr(router, "num_group", None) or 1
    limited = bias is not None or getattr(router, "topk_method", "greedy") == "group_limited_greedy"
    if groups == 1 or not limited:
        return scores
    grouped = scores.view(len(scores), groups, -1)
    # DeepSeek-V3 ranks groups by their two best experts, V2 by the best one.
    merit = grouped.max(dim=-1).values if bias is None else grouped.topk(2, dim=-1).values.sum(dim=-1)
    admitted = torch.zeros_like(merit, dtype=torch.bool)
    admitted.scatter_(1, merit.topk(router.topk_group, dim=-1).indices, True)
    return grouped.masked_fill(~admitted.unsqueeze(-1), float("-inf")).flatten(1)


def gates(router: nn.Module, logits: Tensor, selection: Selection) -> Tensor:
    """Weights (T, K) of a selection, 0 in empty slots; they sum to what the router's own weights sum to.

    A router that does not normalise keeps the scores as they are: dividing them would change the scale
    that the model was trained with.

    Args:
        router: whose rule it is.
        logits: (T, E) scores before activation.
        selection: of the same tokens.
    """
    experts, chosen = selection.experts.flatten(0, 1), selection.chosen.flatten(0, 1)
    weights = selection_weights(router, logits, experts) * chosen
    if not normalises(router):
        return weights
    # Empty slots took a part of the sum; what is left is proportional to the scores of the chosen.
    return weights * (getattr(router, "routed_scaling_factor", 1.0) / weights.sum(dim=-1, keepdim=True))


def normalises(router: nn.Module) -> bool:
    """Whether the router's weights have a fixed sum."""
    always = type(router).__name__.startswith(("Mixtral", "GptOss"))
    return always or bool(getattr(router, "norm_topk_prob", False))
