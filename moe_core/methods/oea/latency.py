"""How long a decode step of one expert layer takes, by the number of experts it reads."""

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from moe_core.timing import core_seconds, one_core


class Latency(NamedTuple):
    """A straight line through measured times: seconds = fixed + slope * T.

    Attributes:
        active: numbers of distinct experts T.
        seconds: median at each, of one core.
        slope, fixed: of the line.
        r2: share of the times' variance that the line explains.
    """

    active: tuple[int, ...]
    seconds: tuple[float, ...]
    slope: float
    fixed: float
    r2: float


def fit(active: tuple[int, ...], seconds: tuple[float, ...]) -> Latency:
    """The least-squares line through (T, seconds)."""
    slope, fixed = np.polyfit(active, seconds, 1)
    left = np.asarray(seconds) - (slope * np.asarray(active) + fixed)
    r2 = 1 - float(np.square(left).sum() / np.square(np.asarray(seconds) - np.mean(seconds)).sum())
    return Latency(active, seconds, float(slope), float(fixed), r2)


@torch.no_grad()
def measure(
    *, experts: int, width: int, hidden: int, batch: int, active: int, repeats: int, seed: int
) -> Latency:
    """Latency of transformers' own `Qwen3MoeExperts` on one core, float32, one token per row.

    Rounds go through all numbers of experts in turn, so that a slow spell of the machine hits each alike.

    Args:
        experts: E; T runs from K to E in steps of K.
        width, hidden: D and H of one expert.
        batch: B, at least E / K, so that all experts can be in use.
        active: K.
        repeats: rounds.
        seed: of weights and inputs.
    """
    from transformers import Qwen3MoeConfig
    from transformers.models.qwen3_moe.modeling_qwen3_moe import Qwen3MoeExperts

    config = Qwen3MoeConfig(hidden_size=width, moe_intermediate_size=hidden, num_experts=experts)
    config._experts_implementation = "eager"
    layer, generator = Qwen3MoeExperts(config), torch.Generator().manual_seed(seed)
    for weight in layer.parameters():
        weight.normal_(0, width**-0.5, generator=generator)
    inputs = torch.randn(batch, width, generator=generator)
    weights = torch.full((batch, active), 1 / active)
    counts = tuple(range(active, experts + 1, active))
    # One round in advance: the first touch of each weight is not what a decode step pays.
    with one_core():
        times = [
            [_seconds(layer, inputs, weights, assign(batch, active, count)) for count in counts]
            for _ in range(repeats + 1)
        ][1:]
    return fit(counts, tuple(float(value) for value in np.median(times, axis=0)))


def _seconds(layer: torch.nn.Module, inputs: Tensor, weights: Tensor, experts: Tensor) -> float:
    start = core_seconds()
    layer(inputs, experts, weights)
    return core_seconds() - start


def assign(batch: int, active: int, count: int) -> Tensor:
    """Experts (batch, active) int64 that use exactly the first `count`, each row `active` different ones."""
    return torch.arange(batch * active).view(batch, active) % count
