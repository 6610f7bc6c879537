"""Low-rank algebra: optimal bases, whitening, effective rank, and exact integer budgets."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from moe_core.errors import ConfigError

# Shares that add up to a whole matrix in exact arithmetic may fall short of it by rounding.
NEARLY = 1 - 1e-9


class Spectrum(NamedTuple):
    """Right singular directions of a matrix, strongest first.

    Attributes:
        energy: (M,) squared singular values, float64.
        directions: (M, D) orthonormal rows, float64.
    """

    energy: Tensor
    directions: Tensor


def right_spectrum(weight: Tensor, second_moment: Tensor | None = None) -> Spectrum:
    """Right singular directions of a tall stack, from its Gram matrix.

    Args:
        weight: (N, D), any N.
        second_moment: (D, D) X^T X of the inputs, for directions that matter for the outputs:
            the spectrum is then that of weight @ L with X^T X + eps I = L L^T.

    A Gram matrix of D^2 numbers stands in for an SVD of N * D, so memory does not grow with the stack;
    directions whose singular value is below 1e-8 of the largest are noise in float64 and stay so.
    """
    tall = weight.double()
    gram = tall.T @ tall
    if second_moment is not None:
        factor = cholesky(second_moment)
        gram = factor.T @ gram @ factor
    energy, vectors = torch.linalg.eigh(gram)
    most = min(weight.shape)
    return Spectrum(energy.flip(0)[:most].clamp_min(0), vectors.flip(1).T[:most].contiguous())


def cholesky(second_moment: Tensor, damping: float = 1e-6) -> Tensor:
    """Lower factor L (D, D) float64 of X^T X + eps I, eps a share of the mean diagonal."""
    moment = second_moment.double()
    eps = damping * moment.diagonal().mean().clamp_min(torch.finfo(torch.float64).tiny)
    return torch.linalg.cholesky(moment + eps * torch.eye(len(moment), dtype=torch.float64))


def factor(weight: Tensor, rank: int, second_moment: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Coefficients (N, R) and basis (R, D) whose product is the best approximation of rank R.

    Without a second moment best means least squared error of the weight (Eckart-Young); with one, least
    squared error of the outputs on inputs of that second moment.
    """
    directions = right_spectrum(weight, second_moment).directions[:rank]
    if second_moment is None:
        return (weight.double() @ directions.T).to(weight.dtype), directions.to(weight.dtype)
    lower = cholesky(second_moment)
    basis = torch.linalg.solve_triangular(lower, directions, upper=False, left=False)
    return (weight.double() @ lower @ directions.T).to(weight.dtype), basis.to(weight.dtype)


def effective_rank(energy: Tensor) -> float:
    """exp of the entropy of the energy shares: between 1 and the number of directions.

    Source: Roy and Vetterli 2007; RFID-MoE (arXiv 2602.09316), section 3.2, with squared singular values.
    """
    total = energy.sum()
    if total <= 0:
        return 1.0
    shares = energy / total
    return float(torch.special.entr(shares).sum().exp())


def allocate(
    budget: float, scores: Sequence[float], costs: Sequence[int], caps: Sequence[int]
) -> tuple[int, ...]:
    """Ranks, each at least 1 and at most its cap, that spend the budget down to less than one rank.

    Every group asks for the share of the budget that its score is of all scores; floors are given first,
    then one rank at a time to the group furthest below its share that can still be paid for. What a capped
    group leaves is asked for again by the others.

    Args:
        budget: numbers that may be stored.
        scores: not negative; zero is allowed and gets one rank.
        costs: numbers stored per rank.
        caps: largest ranks.

    Raises:
        ConfigError: one rank for each costs more than the budget.

    Source: RFID-MoE, section 3.3. Differs: the paper's floor alone leaves budget unspent.
    """
    floor = sum(costs)
    if floor > budget:
        raise ConfigError(f"a budget of {int(budget)} numbers cannot be met; one rank for each costs {floor}")
    wanted = _shares(budget, scores, costs, caps)
    ranks = [max(1, min(cap, int(want))) for want, cap in zip(wanted, caps, strict=True)]
    spent = sum(rank * cost for rank, cost in zip(ranks, costs, strict=True))
    while spent > budget:
        index = _furthest(ranks, wanted, scores, [rank > 1 for rank in ranks], sign=-1)
        ranks[index] -= 1
        spent -= costs[index]
    while True:
        rooms = zip(ranks, caps, costs, strict=True)
        affordable = [rank < cap and spent + cost <= budget for rank, cap, cost in rooms]
        if not any(affordable):
            return tuple(ranks)
        index = _furthest(ranks, wanted, scores, affordable, sign=1)
        ranks[index] += 1
        spent += costs[index]


def plan_ranks(budget: float, scores: Sequence[float], rows: Sequence[int], width: int) -> tuple[int, ...]:
    """Ranks of groups' factors; 0 where a group is better stored dense.

    A group of n rows costs n + width numbers per rank, so factors beat the dense n * width only below a
    break-even rank. A group that asks for more is stored dense if the rest can still have a rank each.

    Args:
        budget: numbers that may be stored.
        scores: of the groups.
        rows: of each group's stack.
        width: of its rows.

    Raises:
        ConfigError: one rank for each costs more than the budget.
    """
    costs = [count + width for count in rows]
    whole = [count * width for count in rows]
    caps = [
        min(count, width, (all_ - 1) // cost) for count, all_, cost in zip(rows, whole, costs, strict=True)
    ]
    dense = {index for index, cap in enumerate(caps) if cap < 1}
    while True:
        left = [index for index in range(len(rows)) if index not in dense]
        free = budget - sum(whole[index] for index in dense)
        wanted = _shares(free, [scores[index] for index in left], [costs[index] for index in left])
        asking = [
            index
            for index, want in zip(left, wanted, strict=True)
            if want * costs[index] >= whole[index] * NEARLY
        ]
        floor = sum(costs[index] for index in left)
        able = [index for index in asking if floor - costs[index] + whole[index] <= free]
        if not able:
            break
        dense.add(max(able, key=lambda index: (scores[index], -index)))
    asked = [scores[index] for index in left]
    ranks = allocate(free, asked, [costs[index] for index in left], [caps[index] for index in left])
    given = dict(zip(left, ranks, strict=True))
    return tuple(given.get(index, 0) for index in range(len(rows)))


def _shares(
    budget: float, scores: Sequence[float], costs: Sequence[int], caps: Sequence[int] | None = None
) -> list[float]:
    """Real-valued ranks in proportion to the scores; capped groups leave the rest to the others."""
    limits = [float("inf")] * len(costs) if caps is None else [float(cap) for cap in caps]
    wanted, left, free = list(limits), budget, set(range(len(costs)))
    while free:
        weight = sum(scores[i] * costs[i] for i in free)
        even = sum(costs[i] for i in free)
        rate = {i: left * scores[i] / weight if weight > 0 else left / even for i in free}
        full = {i for i in free if rate[i] >= limits[i]}
        for i in free:
            wanted[i] = min(rate[i], limits[i])
        if not full:
            break
        left -= sum(limits[i] * costs[i] for i in full)
        free -= full
    return wanted


def _furthest(
    ranks: Sequence[int], wanted: Sequence[float], scores: Sequence[float], allowed: Sequence[bool], sign: int
) -> int:
    """The allowed index whose rank is furthest below (sign 1) or above (-1) what it wants.

    Of equals, the higher score is given to and the lower one is taken from; then the first.
    """
    gaps = [
        (sign * (wanted[index] - ranks[index]), sign * scores[index], -index)
        for index in range(len(ranks))
        if allowed[index]
    ]
    return -max(gaps)[2]
