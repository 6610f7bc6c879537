"""Cutting neurons into experts of equal size: at random, by k-means, by optimal transport."""

from typing import Literal, NamedTuple

import torch
from torch import Tensor

from moe_core.errors import ConfigError

Rounding = Literal["greedy", "exact"]


class Clusters(NamedTuple):
    """Labels (N,) int64 of the neurons, and the mean (E, M) of each cluster's features."""

    labels: Tensor
    means: Tensor


def check_divides(neurons: int, experts: int) -> int:
    """Neurons of one expert.

    Raises:
        ConfigError: the experts cannot be of equal size; the message names the nearest numbers that can.
    """
    if 1 <= experts <= neurons and neurons % experts == 0:
        return neurons // experts
    near = sorted((n for n in range(1, neurons + 1) if neurons % n == 0), key=lambda n: (abs(n - experts), n))
    raise ConfigError(
        f"{neurons} neurons cannot be cut into {experts} experts of equal size; "
        f"the nearest numbers that can are {', '.join(map(str, sorted(near[:2])))}"
    )


def nearest_divisor(neurons: int, experts: int) -> int:
    """The number of equal experts nearest to what was asked for; the smaller of two as near."""
    return min((n for n in range(1, neurons + 1) if neurons % n == 0), key=lambda n: (abs(n - experts), n))


def members(labels: Tensor, experts: int) -> Tensor:
    """(E, N / E) int64: the neurons of each expert, ascending.

    Raises:
        ConfigError: the labels are no partition into experts of equal size.
    """
    size = check_divides(len(labels), experts)
    counts = labels.bincount(minlength=experts)
    if len(counts) != experts or not bool((counts == size).all()):
        raise ConfigError(
            f"labels give sizes {counts.tolist()}; each of {experts} experts needs {size} neurons"
        )
    return labels.argsort(stable=True).view(experts, size)


def random_split(neurons: int, experts: int, *, seed: int) -> Tensor:
    """(N,) int64 labels of a balanced split that knows nothing of the neurons."""
    check_divides(neurons, experts)
    order = torch.randperm(neurons, generator=torch.Generator().manual_seed(seed))
    return torch.arange(neurons)[order.argsort()] % experts


def balanced_kmeans(features: Tensor, experts: int, *, seed: int, steps: int = 30) -> Clusters:
    """Clusters of equal size.

    Args:
        features: (N, M) of each neuron.
        experts: E, which divides N.
        seed: of the first centroids, which are neurons.
        steps: most iterations; fewer when the labels stand still.

    Source: ExpertWeaver (arXiv 2602.15521), section 3.3: greedy nearest-available-slot assignment.
    """
    check_divides(len(features), experts)
    points = features.float()
    start = torch.randperm(len(points), generator=torch.Generator().manual_seed(seed))[:experts]
    means, labels = points[start], torch.full((len(points),), -1)
    for _ in range(steps):
        before, labels = labels, balanced_round(-torch.cdist(points, means))
        means = torch.zeros_like(means).index_add_(0, labels, points) / (len(points) // experts)
        if torch.equal(before, labels):
            break
    return Clusters(labels, means)


def sinkhorn(affinity: Tensor, temperature: float, *, steps: int = 50) -> Tensor:
    """(N, E) soft assignment with rows summing to 1 and columns to N / E, differentiable.

    The last step normalises rows, so rows are exact; columns are as near as the steps allow, and need
    more of them the lower the temperature.

    Args:
        affinity: (N, E).
        temperature: tau > 0 of the entropy.
        steps: of alternating normalisation.

    Source: DOT-MoE (arXiv 2606.01666), Algorithm 1; Cuturi 2013, in the log domain.
    """
    neurons, experts = affinity.shape
    target = torch.log(torch.tensor(neurons / experts, dtype=affinity.dtype))
    scaled = affinity / temperature
    rows, columns = scaled.new_zeros(neurons, 1), scaled.new_zeros(1, experts)
    for _ in range(steps):
        columns = target - torch.logsumexp(scaled + rows, dim=0, keepdim=True)
        rows = -torch.logsumexp(scaled + columns, dim=1, keepdim=True)
    return (scaled + rows + columns).exp()


def balanced_round(affinity: Tensor, method: Rounding = "greedy") -> Tensor:
    """(N,) int64 labels with N / E neurons each and a high total affinity.

    Args:
        affinity: (N, E).
        method: greedy over sorted entries, always feasible and near the best; or exact, by the
            assignment problem, cubic in N.
    """
    return ROUNDINGS[method](affinity.detach().double())


def _greedy(affinity: Tensor) -> Tensor:
    """Rounds of: each free neuron takes its best open expert; an expert with too many keeps the best.

    Every entry is settled in the order of its value among those that compete for it, which is what a walk
    over all sorted entries does, in at most a few dozen vectorised rounds.
    """
    neurons, experts = affinity.shape
    labels = torch.full((neurons,), -1)
    room = torch.full((experts,), neurons // experts)
    open_affinity = affinity.clone()
    while len(free := (labels < 0).nonzero().squeeze(1)):
        value, choice = open_affinity[free].max(dim=1)
        by_value = value.argsort(descending=True, stable=True)
        order = by_value[choice[by_value].argsort(stable=True)]
        chosen = choice[order]
        counts = chosen.bincount(minlength=experts)
        rank = torch.arange(len(order)) - (counts.cumsum(0) - counts)[chosen]
        taken = rank < room[chosen]
        # A neuron that ranks below one that is turned away may yet have to give way to it elsewhere.
        bar = value[order].masked_fill(taken, -torch.inf).max()
        taken &= value[order] >= bar
        labels[free[order[taken]]] = chosen[taken]
        room -= chosen[taken].bincount(minlength=experts)
        open_affinity[:, room == 0] = -torch.inf
    return labels


def _exact(affinity: Tensor) -> Tensor:
    import numpy as np
    from scipy.optimize import linear_sum_assignment

    neurons, experts = affinity.shape
    size = neurons // experts
    _, column = linear_sum_assignment(np.repeat(affinity.numpy(), size, axis=1), maximize=True)
    return torch.from_numpy(column // size)


ROUNDINGS = {"greedy": _greedy, "exact": _exact}
