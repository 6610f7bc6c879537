"""Compression of routed experts to low rank, one layer at a time: RFID-MoE and its rivals."""

from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, cast

import torch
from torch import Tensor, nn

from moe_core.errors import ConfigError
from moe_core.factored import INDEX_TYPES, Assignment, FactoredExperts, FactoredLinear, Factors, Residual
from moe_core.ledger import REFERENCE_BITS, Ledger, count, total
from moe_core.lowrank import effective_rank, factor, plan_ranks, right_spectrum
from moe_core.transformers.calibration import RoutingStatistics
from moe_core.transformers.find import MoeBlock, find_moe
from moe_core.transformers.storage import build, swap

Grouping = Literal["frequency", "random"]
Allocation = Literal["fused", "uniform", "frequency", "rank"]
Basis = Literal["linear", "silu"]


@dataclass(frozen=True)
class Plan:
    """How experts are compressed.

    Attributes:
        keep: share of the numbers of each kind of matrix in each layer that may be stored.
        group: experts that share a basis; 1 for an SVD of each.
        grouping: neighbours by frequency of use, or at random.
        allocation: what ranks follow: effective rank and frequency fused, none, or one of both.
        xi: share of the effective rank in the fused score.
        whiten: whether inputs' second moment weighs the error.
        common: whether a dense mean of all experts is stored and only differences are factored.
        down: whether down projections are factored too, over a basis on the output side.
        residual: share of the numbers that the residual may take.
        assignment: of positions to the residual's buckets.
        basis: linear, or SiLU of a fitted matrix.
        fit_steps: of Adam for the SiLU basis.
        seed: of random groups, buckets and nothing else.
    """

    keep: float
    group: int = 4
    grouping: Grouping = "frequency"
    allocation: Allocation = "fused"
    xi: float = 0.8
    whiten: bool = False
    common: bool = False
    down: bool = False
    residual: float = 0.0
    assignment: Assignment = "random"
    basis: Basis = "linear"
    fit_steps: int = 300
    seed: int = 0


class Allocated(NamedTuple):
    """What one kind of matrix of one layer got: its budget and its groups' scores and ranks (0: dense)."""

    layer: int
    kind: str
    budget: float
    scores: tuple[float, ...]
    factors: Factors


class Compressed(NamedTuple):
    """Ledgers of all experts before and after, and what each matrix got."""

    before: Ledger
    after: Ledger
    allocated: tuple[Allocated, ...]


def compress(
    model: nn.Module,
    statistics: tuple[RoutingStatistics, ...],
    plan: Plan,
    fisher: tuple[Tensor, ...] | None = None,
) -> Compressed:
    """Ledgers and ranks; the model's experts are replaced in place, one layer after the other.

    Args:
        model: with MoE blocks; no second copy of more than one layer's experts is ever held.
        statistics: of each block, from calibration.
        plan: how.
        fisher: (E,) importance of each block's experts, for the weights of the common mean.

    Raises:
        ConfigError: the budget cannot be met, or the experts are of a kind that factors cannot stand in for.
    """
    before, after, allocated = [], [], []
    for index, seen in enumerate(statistics):
        # Looked up anew each time: a list of all blocks would keep replaced weights alive.
        block = _block(model, seen.layer)
        stored = count(block.experts)
        before.append(stored._replace(active=stored.stored * block.active // block.num_experts))
        importance = seen.frequency if fisher is None else fisher[index] / fisher[index].sum()
        experts, got = _compress_block(model, block, seen, plan, importance)
        after.append(count(experts, active=experts.touched(block.active)))
        allocated += got
        del block, experts
    return Compressed(total(before), total(after), tuple(allocated))


def _block(model: nn.Module, layer: int) -> MoeBlock:
    block = next(block for block in find_moe(model) if block.layer == layer)
    if hasattr(block.experts, "gate_up_proj_bias"):
        raise ConfigError(
            f"the experts of {block.path} ({type(block.experts).__name__}) have biases; "
            "factors stand in for experts without, such as those of Qwen, Mixtral, OLMoE and DeepSeek"
        )
    return block


def group_experts(frequency: Tensor, plan: Plan) -> tuple[tuple[int, ...], ...]:
    """Experts cut into groups, the most used together; the last group may be smaller.

    Source: RFID-MoE, section 3.1; equally frequent experts go by number.
    """
    order = torch.argsort(frequency, descending=True, stable=True)
    if plan.grouping == "random":
        generator = torch.Generator().manual_seed(plan.seed)
        order = torch.randperm(len(frequency), generator=generator)
    return tuple(tuple(part.tolist()) for part in order.split(plan.group))


def group_scores(
    weight: Tensor, groups: tuple[tuple[int, ...], ...], frequency: Tensor, plan: Plan
) -> tuple[float, ...]:
    """C_g = xi E_g + (1 - xi) F_g of each group, or the part of it that the plan asks for; they sum to 1.

    Source: RFID-MoE, sections 3.2 and 3.3.
    """
    if plan.allocation == "uniform":
        return (1 / len(groups),) * len(groups)
    used = torch.stack([frequency[list(group)].sum() for group in groups])
    used = used / used.sum()
    if plan.allocation == "frequency":
        return tuple(used.tolist())
    ranks = torch.tensor(
        [effective_rank(right_spectrum(weight[list(group)].flatten(0, 1)).energy) for group in groups],
        dtype=torch.float64,
    )
    ranks = ranks / ranks.sum()
    xi = 1.0 if plan.allocation == "rank" else plan.xi
    return tuple((xi * ranks + (1 - xi) * used).tolist())


def _compress_block(
    model: nn.Module, block: MoeBlock, seen: RoutingStatistics, plan: Plan, importance: Tensor
) -> tuple[FactoredExperts, list[Allocated]]:
    gate, up, down = (weight.detach() for weight in block.stacked())
    groups = group_experts(seen.frequency, plan)
    # Down projections are turned, so that the shared basis is on the residual stream's side there too.
    kinds = {"gate": gate, "up": up, "down": down.transpose(1, 2)}
    allocated = [_allocate(seen, kind, weight, groups, plan) for kind, weight in kinds.items()]
    act = cast(Any, model.config).hidden_act
    args: dict[str, Any] = {"hidden": block.hidden, "width": block.width, "act": act}
    args |= {got.kind: got.factors.model_dump(mode="json") for got in allocated}
    experts = build("factored_experts", args)
    assert isinstance(experts, FactoredExperts)
    experts.to(dtype=gate.dtype)
    for kind, weight in kinds.items():
        moment = seen.moment if plan.whiten and kind != "down" else None
        _fill(getattr(experts, kind), weight, plan, moment, importance)
    swap(model, block.layer, "factored_experts", args, experts)
    return experts, allocated


def _allocate(
    seen: RoutingStatistics, kind: str, weight: Tensor, groups: tuple[tuple[int, ...], ...], plan: Plan
) -> Allocated:
    """Budget, scores and ranks of one kind of matrix (E, P, D)."""
    experts, rows, width = weight.shape
    whole = experts * rows * width
    side: Literal["in", "out"] = "out" if kind == "down" else "in"
    if kind == "down" and not plan.down:
        factors = Factors(groups=groups, ranks=(0,) * len(groups), side="out")
        return Allocated(seen.layer, kind, whole, (), factors)
    budget = plan.keep * whole
    residual = _residual(plan, rows * width)
    common = plan.common and plan.keep < 1
    free = budget - common * rows * width - _residual_cost(residual, experts, len(groups), rows * width)
    scores = group_scores(weight, groups, seen.frequency, plan)
    ranks = plan_ranks(free, scores, [len(group) * rows for group in groups], width)
    # Where every group is dense, neither a common mean nor a residual has anything to add.
    if not any(ranks):
        return Allocated(seen.layer, kind, budget, scores, Factors(groups=groups, ranks=ranks, side=side))
    factors = Factors(groups=groups, ranks=ranks, side=side, common=common, residual=residual)
    return Allocated(seen.layer, kind, budget, scores, factors)


def _residual(plan: Plan, size: int) -> Residual | None:
    buckets = int(plan.residual * size)
    # With everything kept there is no residual, and the whole budget is needed for the dense weights.
    if not buckets or plan.keep >= 1:
        return None
    return Residual(buckets=buckets, assignment=plan.assignment, seed=plan.seed)


def _residual_cost(residual: Residual | None, experts: int, groups: int, size: int) -> float:
    """Numbers that the residual costs, its index table charged at its stored width."""
    if residual is None:
        return 0
    kind = next(kind for most, kind in INDEX_TYPES if residual.buckets <= most)
    bits = groups * size * kind.itemsize * 8 if residual.assignment == "sorted" else 0
    return experts * residual.buckets + bits / REFERENCE_BITS


@torch.no_grad()
def _fill(
    linear: FactoredLinear, weight: Tensor, plan: Plan, moment: Tensor | None, importance: Tensor
) -> None:
    """Give a factored matrix its numbers from the original (E, P, D), group by group."""
    common = None
    if linear.common is not None:
        common = torch.einsum("e,epd->pd", importance.to(weight), weight)
        linear.common.copy_(common)
    start = own = 0
    for group, rank in linear.factors.low():
        stack = weight[list(group)]
        stack = stack if common is None else stack - common
        coefficients, basis = _factor(stack.flatten(0, 1), rank, plan, moment)
        linear.basis[start : start + rank] = basis
        turned = coefficients.view(len(group), -1, rank).transpose(1, 2).flatten(0, 1)
        linear.coefficients[own : own + len(turned)] = turned
        start, own = start + rank, own + len(turned)
    for place, expert in enumerate(linear.factors.dense()):
        whole = weight[expert] if common is None else weight[expert] - common
        linear.dense[place] = whole.T if linear.factors.side == "out" else whole
    if linear.eta is not None:
        _fill_residual(linear, weight if linear.factors.side == "in" else weight.transpose(1, 2))


def _factor(stack: Tensor, rank: int, plan: Plan, moment: Tensor | None) -> tuple[Tensor, Tensor]:
    coefficients, basis = factor(stack, rank, moment)
    if plan.basis == "linear":
        return coefficients, basis
    return _fit_silu(stack, coefficients, basis, plan.fit_steps)


@torch.enable_grad()
def _fit_silu(stack: Tensor, coefficients: Tensor, basis: Tensor, steps: int) -> tuple[Tensor, Tensor]:
    """A and silu(B) for the least squared error found by Adam from the SVD; the basis is returned activated.

    Source: MoBE, training of bases; RFID-MoE, section 3.1. Differs: one basis per group, hundreds of steps.
    """
    scale = stack.std()
    target = stack / scale
    inner = (basis * basis.shape[1] ** 0.5).clone().requires_grad_()
    outer = (coefficients / scale / basis.shape[1] ** 0.5).clone().requires_grad_()
    optimizer = torch.optim.Adam([inner, outer], lr=0.02)
    best = (float("inf"), outer.detach(), inner.detach())
    for _ in range(steps):
        loss = (outer @ nn.functional.silu(inner) - target).square().mean()
        if loss.item() < best[0]:
            best = (loss.item(), outer.detach().clone(), inner.detach().clone())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return best[1] * scale, nn.functional.silu(best[2])


def _fill_residual(linear: FactoredLinear, weight: Tensor) -> None:
    """eta = P^T (W - W_hat), the least-squares optimum because P^T P = I.

    Source: RFID-MoE, section 3.4. Differs: sorted assignment ranks positions by the group's mean residual.
    """
    assert linear.eta is not None
    left = (weight - linear.whole()).flatten(1)
    most = linear.eta.shape[1]
    if linear.table is not None:
        for number, group in enumerate(linear.factors.groups):
            rank = left[list(group)].mean(dim=0).argsort().argsort()
            linear.table[number] = (rank * most // left.shape[1]).to(linear.table.dtype)
    for group, bucket in zip(linear.factors.groups, linear.buckets(), strict=True):
        sizes = bucket.bincount(minlength=most).clamp_min(1).to(left.dtype)
        sums = torch.zeros(len(group), most, dtype=left.dtype).index_add_(1, bucket, left[list(group)])
        linear.eta[list(group)] = sums / sizes.sqrt()
