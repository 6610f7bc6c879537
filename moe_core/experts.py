"""Low-rank experts around one frozen dense layer, all experts stacked in three matrix products."""

import math
from collections.abc import Sequence
from typing import Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from moe_core.errors import ConfigError


class LowRankExperts(nn.Module):
    """y = W_main x + b + U_cat (g_cat * S_cat * (V_cat x)), gates broadcast per sample.

    No gather and no loop over experts, so the result does not depend on the batch a row is in.
    W_main is never made: the frozen dense weight stays whole, and the triplets that the experts
    start from are taken off as one more member of the stack, whose gate is always -1. An exactly
    representable weight stays exactly representable, and no second copy of it is held or differentiated.

    Experts may differ in rank. All hold R = max(ranks) triplets, so that each starts as the same
    residual; a smaller one trains its last `ranks[e]` triplets, the others stay as they started.

    Attributes:
        weight: (D_out, D_in) buffer, the frozen dense layer.
        bias: (D_out,) buffer or None.
        residual_u, residual_s, residual_v: (R, D_out), (R,), (R, D_in) buffers: the triplets taken
            off `weight`; R = 0 rows where nothing is (LoRA).
        u, s, v: (E, R, D_out), (E, R), (E, R, D_in) parameters, the experts.
        ranks: E numbers of trained triplets.
        dropout: share of input values dropped on the experts' branch while training.

    Source: OmniAID (arXiv 2511.08423), experts of the attention projections.
    Differs: experts are stacked; the released code loops over them.
    """

    weight: Tensor
    bias: Tensor | None
    residual_u: Tensor
    residual_s: Tensor
    residual_v: Tensor
    trained: Tensor | None

    def __init__(
        self,
        weight: Tensor,
        bias: Tensor | None,
        residual: tuple[Tensor, Tensor, Tensor],
        factors: tuple[Tensor, Tensor, Tensor],
        *,
        ranks: Sequence[int] | None = None,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.register_buffer("weight", weight.detach().clone())
        self.register_buffer("bias", None if bias is None else bias.detach().clone())
        for name, value in zip(("residual_u", "residual_s", "residual_v"), residual, strict=True):
            self.register_buffer(name, value.detach().clone())
        self.u, self.s, self.v = (nn.Parameter(factor.detach().clone()) for factor in factors)
        self.ranks = tuple(ranks) if ranks is not None else (self.rank,) * self.num_experts
        self.dropout = dropout
        uneven = set(self.ranks) != {self.rank}
        mask = _last_rows(self.ranks, self.rank).to(weight.device) if uneven else None
        self.register_buffer("trained", mask, persistent=False)

    @property
    def num_experts(self) -> int:
        """E."""
        return self.s.shape[0]

    @property
    def rank(self) -> int:
        """R, the largest rank of an expert."""
        return self.s.shape[1]

    @property
    def has_residual(self) -> bool:
        """Whether triplets are taken off the dense weight (SVD) or none are (LoRA)."""
        return self.residual_s.numel() > 0

    @classmethod
    def from_svd(
        cls,
        weight: Tensor,
        bias: Tensor | None,
        num_experts: int,
        rank: int | Sequence[int],
        *,
        dropout: float = 0.0,
    ) -> Self:
        """Experts that all start from the R smallest singular triplets of `weight`, R the largest rank.

        With one gate at 1 and the others at 0 the layer equals the dense layer.

        Args:
            weight: (D_out, D_in) frozen dense weight.
            bias: (D_out,) or None.
            num_experts: E >= 1.
            rank: of every expert, or one number per expert; 1 <= rank < min(D_out, D_in).
            dropout: share of input values dropped on the experts' branch while training.

        Raises:
            ConfigError: `num_experts` or `rank` is out of range.
        """
        ranks = _checked_ranks(weight, num_experts, rank)
        most = max(ranks)
        left, values, right = torch.linalg.svd(weight.detach().double(), full_matrices=False)
        triplets = (left[:, -most:].T, values[-most:], right[-most:])
        first, second, third = (part.to(weight.dtype) for part in triplets)
        residual = (first, second, third)
        u, s, v = (part.expand(num_experts, *part.shape) for part in residual)
        return cls(weight, bias, residual, (u, s, v), ranks=ranks, dropout=dropout)

    @classmethod
    def from_lora(
        cls,
        weight: Tensor,
        bias: Tensor | None,
        num_experts: int,
        rank: int | Sequence[int],
        *,
        seed: int,
        scale: float = 1.0,
        dropout: float = 0.0,
    ) -> Self:
        """LoRA experts: A Kaiming-uniform, B zero, the dense weight frozen whole.

        Args:
            weight: (D_out, D_in) frozen dense weight.
            bias: (D_out,) or None.
            num_experts: E >= 1.
            rank: of every expert, or one number per expert; 1 <= rank < min(D_out, D_in).
            seed: of the draw of A.
            scale: fixed factor on every expert (alpha / rank in the LoRA paper); not trained.
            dropout: share of input values dropped on the experts' branch while training.

        Raises:
            ConfigError: `num_experts` or `rank` is out of range.
        """
        ranks = _checked_ranks(weight, num_experts, rank)
        most, (d_out, d_in) = max(ranks), weight.shape
        generator = torch.Generator().manual_seed(seed)
        bound = 1 / math.sqrt(d_in)
        v = (torch.rand(num_experts, most, d_in, generator=generator) * 2 - 1) * bound
        # Rows a smaller expert does not train are zero on both sides, so they never act.
        used = _last_rows(ranks, most)
        none = (weight.new_zeros(0, d_out), weight.new_zeros(0), weight.new_zeros(0, d_in))
        factors = (
            weight.new_zeros(num_experts, most, d_out),
            (used * scale).to(weight),
            (v * used.unsqueeze(-1)).to(weight),
        )
        layer = cls(weight, bias, none, factors, ranks=ranks, dropout=dropout)
        layer.s.requires_grad_(False)
        return layer

    def main_weight(self) -> Tensor:
        """W_main (D_out, D_in): the dense weight without the triplets that experts start from."""
        if not self.has_residual:
            return self.weight
        return self.weight - (self.residual_u.T * self.residual_s) @ self.residual_v

    def trained_factors(self, expert: int) -> tuple[Tensor, Tensor, Tensor]:
        """The part of one expert that training changes: (r, D_out), (r,), (r, D_in), r = ranks[expert]."""
        first = self.rank - self.ranks[expert]
        return self.u[expert, first:], self.s[expert, first:], self.v[expert, first:]

    def dense(self, x: Tensor) -> Tensor:
        """Output (B, T, D_out) of the frozen dense layer alone, as if no expert existed."""
        return F.linear(x, self.weight, self.bias)

    def forward(self, x: Tensor, gates: Tensor) -> Tensor:
        """Layer output (B, T, D_out).

        Args:
            x: (B, T, D_in).
            gates: (B, E), the weight of each expert for each sample.
        """
        u, s, v = (self._differentiable(factor) for factor in (self.u, self.s, self.v))
        up, scale = u.flatten(0, 1), (gates.unsqueeze(-1) * s).flatten(1)
        if self.has_residual:
            taken_off = -self.residual_s.expand(gates.shape[0], -1)
            up, scale = torch.cat([up, self.residual_u]), torch.cat([scale, taken_off], dim=-1)
        hidden = self._down(x, v.flatten(0, 1))
        hidden = hidden * scale.unsqueeze(1).to(hidden.dtype)
        return F.linear(x, self.weight, self.bias) + hidden @ up

    def _down(self, x: Tensor, down: Tensor) -> Tensor:
        """(B, T, E * R + R0) inner products with the experts' directions, then with the residual's."""
        if not (self.training and self.dropout):
            return F.linear(x, torch.cat([down, self.residual_v]) if self.has_residual else down)
        dropped = F.linear(F.dropout(x, self.dropout), down)
        return torch.cat([dropped, F.linear(x, self.residual_v)], dim=-1)

    def _differentiable(self, factor: Tensor) -> Tensor:
        """`factor` with the gradient of rows that are not trained cut off."""
        if self.trained is None or not factor.requires_grad:
            return factor
        mask = self.trained if factor.dim() == 2 else self.trained.unsqueeze(-1)
        return torch.where(mask, factor, factor.detach())

    @torch.no_grad()
    def fold(self, gates: Tensor) -> Tensor:
        """The dense weight (D_out, D_in) that equals this layer with its gates fixed at (E,)."""
        scale = (gates.unsqueeze(-1) * self.s).reshape(-1, 1)
        u, v = self.u.flatten(0, 1), self.v.flatten(0, 1)
        return self.main_weight() + u.T @ (scale * v)

    @torch.no_grad()
    def copy_expert(self, source: "LowRankExperts", expert: int) -> None:
        """Take over expert number `expert` of a layer of the same shape (merging stage-1 runs)."""
        for mine, theirs in zip((self.u, self.s, self.v), (source.u, source.s, source.v), strict=True):
            mine[expert] = theirs[expert]


def _last_rows(ranks: Sequence[int], most: int) -> Tensor:
    """(E, R) bool: the last `ranks[e]` of `most` rows."""
    return torch.arange(most) >= most - torch.tensor(ranks).unsqueeze(-1)


def _checked_ranks(weight: Tensor, num_experts: int, rank: int | Sequence[int]) -> tuple[int, ...]:
    if weight.dim() != 2:
        raise ConfigError(f"the dense weight has {weight.dim()} dimensions; low-rank experts need 2")
    if num_experts < 1:
        raise ConfigError(f"num_experts is {num_experts}; at least 1 is needed")
    ranks = (rank,) * num_experts if isinstance(rank, int) else tuple(rank)
    if len(ranks) != num_experts:
        raise ConfigError(f"there are {len(ranks)} ranks for {num_experts} experts; one for each is needed")
    limit = min(weight.shape)
    wrong = [number for number in ranks if not 1 <= number < limit]
    if wrong:
        raise ConfigError(f"rank is {wrong[0]}; a {tuple(weight.shape)} weight allows 1..{limit - 1}")
    return ranks
