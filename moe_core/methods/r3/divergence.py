"""How far the policy that is trained is from the one that rolled out."""

from typing import NamedTuple

import torch
from torch import Tensor

from moe_core.errors import ConfigError


class Divergence(NamedTuple):
    """Distances over sampled tokens.

    Attributes:
        kl: estimate of KL(rollout || training), nats per token: mean of r - 1 - ln r with
            r = training / rollout probability, which is unbiased and never negative.
        extreme: threshold -> share of tokens whose ratio, or its inverse, is beyond it.
        largest: the largest such ratio.
    """

    kl: float
    extreme: dict[float, float]
    largest: float


def divergence(
    rollout_logp: Tensor, train_logp: Tensor, thresholds: tuple[float, ...] = (1.1, 1.5, 2.0)
) -> Divergence:
    """Divergence from the log-probabilities that both give to the sampled tokens.

    Args:
        rollout_logp, train_logp: same shape, nats.
        thresholds: tau > 1 of F(tau) = P[max(p_t / p_r, p_r / p_t) > tau].

    Raises:
        ConfigError: the shapes differ or a value is not finite.

    Source: arXiv 2510.11370, extreme token distribution.
    """
    if rollout_logp.shape != train_logp.shape:
        raise ConfigError(
            f"log-probabilities of {tuple(rollout_logp.shape)} and {tuple(train_logp.shape)} "
            "cannot be compared"
        )
    gap = (train_logp.double() - rollout_logp.double()).flatten()
    if not gap.isfinite().all():
        raise ConfigError("a log-probability is not finite; sampled tokens have a probability above 0")
    size = gap.abs().exp()
    extreme = {tau: float((size > tau).double().mean()) for tau in thresholds}
    return Divergence(float((gap.expm1() - gap).mean()), extreme, float(size.max()))


def full_divergence(rollout_logits: Tensor, train_logits: Tensor) -> Tensor:
    """KL(rollout || training) over the whole vocabulary (..., ) float64, in nats.

    Args:
        rollout_logits, train_logits: (..., V).
    """
    rollout, train = (logits.double().log_softmax(dim=-1) for logits in (rollout_logits, train_logits))
    return (rollout.exp() * (rollout - train)).sum(dim=-1)


def disagreement(one: Tensor, other: Tensor) -> Tensor:
    """(..., ) bool: whether two decisions are different sets of experts.

    Args:
        one, other: (..., K) int64 experts, in any order.
    """
    return (one.sort(dim=-1).values != other.sort(dim=-1).values).any(dim=-1)


def sampled_logp(logits: Tensor, tokens: Tensor) -> Tensor:
    """Log-probabilities (N, L) float64 of tokens (N, L) under logits (N, L, V)."""
    return torch.gather(logits.double().log_softmax(dim=-1), -1, tokens.unsqueeze(-1)).squeeze(-1)
