"""Experts whose matrices are low-rank over a basis that a group of experts shares."""

from typing import Literal, Self

import torch
from pydantic import BaseModel, ConfigDict, model_validator
from torch import Tensor, nn

from moe_core.errors import ConfigError
from moe_core.glu import Dispatch, activation, grouped_linear

Side = Literal["in", "out"]
Assignment = Literal["random", "sorted"]
DENSE = 0
INDEX_TYPES = ((2**8, torch.uint8), (2**15, torch.int16), (2**31, torch.int32))


class Residual(BaseModel):
    """Shape of the residual: M numbers per expert, spread over the matrix by a bucket for each position.

    Attributes:
        buckets: M.
        assignment: random buckets from a seed, or a stored table per group.
        seed: of random buckets.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    buckets: int
    assignment: Assignment
    seed: int = 0


class Factors(BaseModel):
    """Shape of one kind of matrix over all experts.

    Attributes:
        groups: expert numbers of each group; together every expert once.
        ranks: of each group; 0 where the group's matrices are stored dense.
        side: whether the shared basis is on the input or on the output side.
        common: whether a dense matrix is added that all experts share (D2-MoE).
        residual: its shape, or None.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    groups: tuple[tuple[int, ...], ...]
    ranks: tuple[int, ...]
    side: Side = "in"
    common: bool = False
    residual: Residual | None = None

    @model_validator(mode="after")
    def _covers_experts(self) -> Self:
        members = [expert for group in self.groups for expert in group]
        if sorted(members) != list(range(len(members))):
            raise ValueError("groups must hold every expert once")
        if len(self.ranks) != len(self.groups):
            raise ValueError(f"there are {len(self.ranks)} ranks for {len(self.groups)} groups")
        return self

    def low(self) -> tuple[tuple[tuple[int, ...], int], ...]:
        """(members, rank) of groups that have a basis."""
        return tuple(pair for pair in zip(self.groups, self.ranks, strict=True) if pair[1] != DENSE)

    def dense(self) -> tuple[int, ...]:
        """Experts stored dense, ascending."""
        pairs = zip(self.groups, self.ranks, strict=True)
        return tuple(sorted(expert for group, rank in pairs if rank == DENSE for expert in group))

    def stored(self, outputs: int, inputs: int) -> int:
        """Numbers stored for matrices of (outputs, inputs)."""
        own, shared = (outputs, inputs) if self.side == "in" else (inputs, outputs)
        count = sum(rank * (len(group) * own + shared) for group, rank in self.low())
        count += (len(self.dense()) + self.common) * outputs * inputs
        experts = sum(map(len, self.groups))
        return count + (experts * self.residual.buckets if self.residual else 0)


class FactoredLinear(nn.Module):
    """One matrix per expert, W_e = A_e B_g (side "in") or B_g^T A_e^T (side "out"), or stored dense.

    Ranks are ragged on disk and in memory; a product pads them, so no rank costs a loop.

    Attributes:
        basis: (sum K_g, shared width) rows of all groups' bases, one after the other.
        coefficients: (sum g K_g, own width) rows of all experts', in the order of `Factors.low`.
        dense: (E_dense, D_out, D_in) matrices that are cheaper whole.
        common: (D_out, D_in) or None.
        eta: (E, M) or None.
        table: (G, D_out * D_in) integers or None, the bucket of each position.
    """

    table: Tensor | None

    def __init__(self, outputs: int, inputs: int, factors: Factors) -> None:
        super().__init__()
        self.outputs, self.inputs, self.factors = outputs, inputs, factors
        own, shared = (outputs, inputs) if factors.side == "in" else (inputs, outputs)
        low = factors.low()
        rows = sum(rank for _, rank in low)
        own_rows = sum(rank * len(group) for group, rank in low)
        self.basis = nn.Parameter(torch.zeros(rows, shared))
        self.coefficients = nn.Parameter(torch.zeros(own_rows, own))
        self.dense = nn.Parameter(torch.zeros(len(factors.dense()), outputs, inputs))
        self.common = nn.Parameter(torch.zeros(outputs, inputs)) if factors.common else None
        residual, experts = factors.residual, sum(map(len, factors.groups))
        self.eta = nn.Parameter(torch.zeros(experts, residual.buckets)) if residual else None
        stored = residual is not None and residual.assignment == "sorted"
        self.register_buffer("table", self._empty_table() if stored else None)
        # Where each expert stands when those with a basis come first, group by group.
        self.places = [expert for group, _ in low for expert in group] + list(factors.dense())
        self.group_of = [number for number, (group, _) in enumerate(low) for _ in group]
        self.low_ranks = [rank for _, rank in low]

    def forward(self, x: Tensor, experts: Tensor) -> Tensor:
        """(N, D_out): row n is W[experts[n]] @ x[n].

        Args:
            x: (N, D_in).
            experts: (N,) int64, ascending.
        """
        place = torch.empty(len(self.places), dtype=torch.int64, device=x.device)
        place[self._tensor(self.places)] = torch.arange(len(self.places), device=x.device)
        places, order = place[experts].sort(stable=True)
        cut = int((places < len(self.group_of)).sum())
        parts = [self._low(x[order[:cut]], places[:cut])] if cut else []
        if cut < len(places):
            parts.append(grouped_linear(x[order[cut:]], self.dense, places[cut:] - len(self.group_of)))
        if not parts:
            return x.new_zeros(0, self.outputs)
        back = torch.empty_like(order)
        back[order] = torch.arange(len(order), device=x.device)
        total = torch.cat(parts)[back]
        if self.common is not None:
            total = total + nn.functional.linear(x, self.common)
        return total if self.eta is None else total + grouped_linear(x, self._spread(), experts)

    @torch.no_grad()
    def whole(self) -> Tensor:
        """(E, D_out, D_in): the matrices multiplied out."""
        matrices = self.basis.new_zeros(len(self.places), self.outputs, self.inputs)
        for number, expert in enumerate(self.places):
            matrices[expert] = self._one(number)
        if self.common is not None:
            matrices += self.common
        return matrices if self.eta is None else matrices + self._spread()

    def touched(self, active: int) -> int:
        """Numbers that one token is multiplied with on average; a basis once per chosen expert."""
        experts = len(self.places)
        bases = sum(rank * len(group) for group, rank in self.factors.low()) * self.basis.shape[1]
        each = bases + self.coefficients.numel() + self.dense.numel()
        each += self.eta.numel() if self.eta is not None else 0
        once = self.common.numel() if self.common is not None else 0
        return each * active // experts + once

    def buckets(self) -> Tensor:
        """(G, D_out * D_in) int64, the bucket of each position in each group."""
        residual = self._residual()
        if self.table is not None:
            return self.table.long()
        shape = (len(self.factors.groups), self.outputs * self.inputs)
        generator = torch.Generator().manual_seed(residual.seed)
        return torch.randint(residual.buckets, shape, generator=generator).to(self.basis.device)

    def _low(self, x: Tensor, places: Tensor) -> Tensor:
        """Products of experts that have a basis; inactive ones are not touched."""
        active, local = places.unique_consecutive(return_inverse=True)
        groups, first = self._tensor(self.group_of)[active].unique_consecutive(return_inverse=True)
        ranks = self._tensor(self.low_ranks)
        basis = self.basis[self._rows(ranks, groups)]
        own_ranks = ranks[self._tensor(self.group_of)]
        own = self.coefficients[self._rows(own_ranks, active)]
        if self.factors.side == "out":
            latent = grouped_linear(x, own, local)
            return grouped_linear(
                self._masked(latent, own_ranks[places]), basis.transpose(1, 2), first[local]
            )
        latent = grouped_linear(x, basis, first[local])
        return grouped_linear(self._masked(latent, own_ranks[places]), own.transpose(1, 2), local)

    @staticmethod
    def _rows(ranks: Tensor, chosen: Tensor) -> Tensor:
        """(C, K_max) rows of the chosen blocks; past a block's end its last row stands in, to be masked."""
        starts = (ranks.cumsum(0) - ranks)[chosen]
        # A multiple of eight spares the grouped product from padding again.
        step = torch.arange(-(-int(ranks.max()) // 8) * 8, device=ranks.device)
        return starts[:, None] + torch.minimum(step, ranks[chosen, None] - 1)

    @staticmethod
    def _masked(latent: Tensor, ranks: Tensor) -> Tensor:
        inside = torch.arange(latent.shape[1], device=latent.device) < ranks[:, None]
        return latent.where(inside, 0)

    def _one(self, number: int) -> Tensor:
        if number >= len(self.group_of):
            return self.dense[number - len(self.group_of)]
        group = self.group_of[number]
        rank, start = self.low_ranks[group], sum(self.low_ranks[:group])
        own_start = sum(self.low_ranks[other] for other in self.group_of[:number])
        basis = self.basis[start : start + rank]
        own = self.coefficients[own_start : own_start + rank]
        return own.T @ basis if self.factors.side == "in" else basis.T @ own

    def _spread(self) -> Tensor:
        """(E, D_out, D_in): P eta of every expert."""
        assert self.eta is not None
        scaled = self.eta.new_empty(len(self.places), self.outputs * self.inputs)
        for group, bucket in zip(self.factors.groups, self.buckets(), strict=True):
            sizes = bucket.bincount(minlength=self.eta.shape[1]).clamp_min(1).to(self.eta.dtype)
            members = self._tensor(list(group))
            scaled = scaled.index_copy(0, members, (self.eta[members] / sizes.sqrt())[:, bucket])
        return scaled.view(-1, self.outputs, self.inputs)

    def _empty_table(self) -> Tensor:
        kind = next(kind for most, kind in INDEX_TYPES if self._residual().buckets <= most)
        return torch.zeros(len(self.factors.groups), self.outputs * self.inputs, dtype=kind)

    def _residual(self) -> Residual:
        if self.factors.residual is None:
            raise ConfigError("these factors have no residual")
        return self.factors.residual

    def _tensor(self, numbers: list[int]) -> Tensor:
        return torch.tensor(numbers, dtype=torch.int64, device=self.basis.device)


class FactoredExperts(nn.Module):
    """E gated linear units whose matrices are `FactoredLinear`; stands in for a model's fused experts.

    Source: RFID-MoE (arXiv 2602.09316), section 3.1; the inner function of the basis is folded in.
    """

    def __init__(self, hidden: int, width: int, act: str, gate: Factors, up: Factors, down: Factors) -> None:
        super().__init__()
        self.width, self.hidden = width, hidden
        self.num_experts = sum(map(len, gate.groups))
        self.gate = FactoredLinear(width, hidden, gate)
        self.up = FactoredLinear(width, hidden, up)
        self.down = FactoredLinear(hidden, width, down)
        self.act_fn = activation(act)

    def forward(self, x: Tensor, experts: Tensor, weights: Tensor) -> Tensor:
        """(T, D): weighted sum of the chosen experts; arguments as those of `GluExperts.forward`."""
        pairs = Dispatch.of(experts)
        rows = x[pairs.tokens]
        latent = self.act_fn(self.gate(rows, pairs.experts)) * self.up(rows, pairs.experts)
        return pairs.combine(self.down(latent, pairs.experts), weights)

    def touched(self, active: int) -> int:
        """Numbers that one token is multiplied with when `active` experts of average size are chosen."""
        return sum(linear.touched(active) for linear in (self.gate, self.up, self.down))
