"""Routing decisions and the gates that make them."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from moe_core.errors import ConfigError
from moe_core.registry import Registry

routers: Registry[Callable[..., "Routing"]] = Registry("router")


@dataclass(frozen=True)
class Routing:
    """Which experts each row goes to, and how much of each.

    Attributes:
        experts: (B, K) int64, expert indices, best first.
        weights: (B, K) float, the gate of each chosen expert.
        num_experts: E, so that `dense` needs no other source.
    """

    experts: Tensor
    weights: Tensor
    num_experts: int

    def dense(self) -> Tensor:
        """Gates (B, E): the weight where an expert was chosen, zero elsewhere.

        Built from a comparison instead of a scatter, so it exports to ONNX with any batch size.
        """
        index = torch.arange(self.num_experts, device=self.experts.device)
        chosen = (self.experts.unsqueeze(-1) == index).to(self.weights.dtype)
        return (chosen * self.weights.unsqueeze(-1)).sum(dim=-2)


@routers.register("top-k")
def top_k(logits: Tensor, k: int, *, normalise: bool = True, temperature: float = 1.0) -> Routing:
    """Routing that sends each row to its k highest-scoring experts.

    Args:
        logits: (B, E) router scores, any float dtype; softmax runs in float32.
        k: experts per row, 1 <= k <= E.
        normalise: whether the k weights sum to one: softmax over the chosen scores only.
            Otherwise the weights are the chosen entries of the softmax over all E.
        temperature: T > 0 in softmax(logits / T): above 1 evens the weights, below 1 sharpens
            them; which experts are chosen does not depend on it.

    Returns:
        Routing with `experts` (B, K) int64 and `weights` (B, K) in logits' dtype.

    Raises:
        ConfigError: k is outside 1..E, the temperature is not positive, or k = 1 with normalise=True
            while a gradient is wanted (the weight would be constant, so the router would receive none).

    Source: Shazeer et al. 2017, eq. 3-5. Differs: no noise.
    """
    num_experts = logits.shape[-1]
    if not 1 <= k <= num_experts:
        raise ConfigError(f"k is {k}; a row can go to 1..{num_experts} experts")
    if k == 1 and normalise and logits.requires_grad and num_experts > 1:
        raise ConfigError("k is 1 with normalised weights; the router would receive no gradient")
    if temperature <= 0:
        raise ConfigError(f"temperature is {temperature}; it must be above 0")
    scores = logits.float() / temperature
    values, experts = scores.topk(k, dim=-1)
    weights = values.softmax(dim=-1) if normalise else scores.softmax(dim=-1).gather(-1, experts)
    return Routing(experts, weights.to(logits.dtype), num_experts)
