"""What each family of routers does with the scores of a choice that was made elsewhere."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from moe_core.errors import ConfigError


def selection_weights(router: Any, logits: Tensor, experts: Tensor) -> Tensor:
    """Weights (T, K) that the router gives to a prescribed choice of experts, differentiable in `logits`.

    Args:
        router: of an MoE block.
        logits: (T, E) router scores before activation.
        experts: (T, K) int64 choice.

    Raises:
        ConfigError: the router is of a kind whose rule is not known.
    """
    kind = type(router).__name__
    rule = RULES.get(kind.removesuffix("TopKRouter").removesuffix("TopkRouter"))
    if rule is None:
        raise ConfigError(f"the router {kind} is unknown; known are those of {', '.join(sorted(RULES))}")
    return rule(router, logits, experts)


def _softmax_weights(router: Any, logits: Tensor, experts: Tensor) -> Tensor:
    weights = logits.softmax(dim=-1, dtype=torch.float32).gather(-1, experts)
    if getattr(router, "norm_topk_prob", False):
        weights = weights / weights.sum(dim=-1, keepdim=True)
    return weights.to(logits.dtype)


def _mixtral_weights(router: Any, logits: Tensor, experts: Tensor) -> Tensor:
    weights = logits.float().softmax(dim=-1).gather(-1, experts)
    return weights / weights.sum(dim=-1, keepdim=True)


def _scaled_weights(router: Any, logits: Tensor, experts: Tensor) -> Tensor:
    return logits.softmax(dim=-1, dtype=torch.float32).gather(-1, experts) * router.routed_scaling_factor


def _sigmoid_weights(router: Any, logits: Tensor, experts: Tensor) -> Tensor:
    weights = logits.sigmoid().gather(-1, experts)
    if router.norm_topk_prob:
        weights = weights / (weights.sum(dim=-1, keepdim=True) + 1e-20)
    return weights * router.routed_scaling_factor


def _chosen_softmax(router: Any, logits: Tensor, experts: Tensor) -> Tensor:
    return F.softmax(logits.gather(-1, experts), dim=-1, dtype=logits.dtype)


def _own_rule(router: Any, logits: Tensor, experts: Tensor) -> Tensor:
    return router.weigh(logits, experts)


RULES = {
    "Qwen3Moe": _softmax_weights,
    "Qwen2Moe": _softmax_weights,
    "Olmoe": _softmax_weights,
    "Mixtral": _mixtral_weights,
    "DeepseekV2": _scaled_weights,
    "DeepseekV3": _sigmoid_weights,
    "GptOss": _chosen_softmax,
    "Glu": _own_rule,
}
