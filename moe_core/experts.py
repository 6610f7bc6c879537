"""Low-rank experts around one frozen dense layer, all experts stacked in three matrix products."""

import math
from typing import Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from moe_core.errors import ConfigError


class LowRankExperts(nn.Module):
    """y = W_main x + b + U_cat (g_cat * S_cat * (V_cat x)), gates broadcast per sample.

    No gather and no loop over experts, so the result does not depend on the batch a row is in.
    The frozen dense weight is kept whole and the triplets that the experts start from are taken
    off in the forward pass: an exactly representable weight stays exactly representable.

    Attributes:
        weight: (D_out, D_in) buffer, the frozen dense layer.
        bias: (D_out,) buffer or None.
        residual_u, residual_s, residual_v: (R, D_out), (R,), (R, D_in) buffers: the triplets taken
            off `weight`; R = 0 rows where nothing is (LoRA).
        u, s, v: (E, R, D_out), (E, R), (E, R, D_in) parameters, the experts.

    Source: OmniAID (arXiv 2511.08423), experts of the attention projections.
    Differs: experts are stacked; the released code loops over them.
    """

    weight: Tensor
    bias: Tensor | None
    residual_u: Tensor
    residual_s: Tensor
    residual_v: Tensor

    def __init__(
        self,
        weight: Tensor,
        bias: Tensor | None,
        residual: tuple[Tensor, Tensor, Tensor],
        factors: tuple[Tensor, Tensor, Tensor],
    ) -> None:
        super().__init__()
        self.register_buffer("weight", weight.detach().clone())
        self.register_buffer("bias", None if bias is None else bias.detach().clone())
        for name, value in zip(("residual_u", "residual_s", "residual_v"), residual, strict=True):
            self.register_buffer(name, value.detach().clone())
        self.u, self.s, self.v = (nn.Parameter(factor.detach().clone()) for factor in factors)

    @property
    def num_experts(self) -> int:
        """E."""
        return self.s.shape[0]

    @property
    def rank(self) -> int:
        """R, the rank of one expert."""
        return self.s.shape[1]

    @classmethod
    def from_svd(cls, weight: Tensor, bias: Tensor | None, num_experts: int, rank: int) -> Self:
        """Experts that all start from the `rank` smallest singular triplets of `weight`.

        With one gate at 1 and the others at 0 the layer equals the dense layer.

        Args:
            weight: (D_out, D_in) frozen dense weight.
            bias: (D_out,) or None.
            num_experts: E >= 1.
            rank: R, 1 <= R < min(D_out, D_in).

        Raises:
            ConfigError: `num_experts` or `rank` is out of range.
        """
        _check_sizes(weight, num_experts, rank)
        left, values, right = torch.linalg.svd(weight.detach().double(), full_matrices=False)
        residual = (left[:, -rank:].T, values[-rank:], right[-rank:])
        residual = tuple(part.to(weight.dtype) for part in residual)
        factors = tuple(part.expand(num_experts, *part.shape) for part in residual)
        return cls(weight, bias, residual, factors)

    @classmethod
    def from_lora(
        cls,
        weight: Tensor,
        bias: Tensor | None,
        num_experts: int,
        rank: int,
        *,
        seed: int,
        scale: float = 1.0,
    ) -> Self:
        """LoRA experts: A Kaiming-uniform, B zero, the dense weight frozen whole.

        Args:
            weight: (D_out, D_in) frozen dense weight.
            bias: (D_out,) or None.
            num_experts: E >= 1.
            rank: R, 1 <= R < min(D_out, D_in).
            seed: of the draw of A.
            scale: fixed factor on every expert (alpha / rank in the LoRA paper); not trained.

        Raises:
            ConfigError: `num_experts` or `rank` is out of range.
        """
        _check_sizes(weight, num_experts, rank)
        d_out, d_in = weight.shape
        generator = torch.Generator().manual_seed(seed)
        bound = 1 / math.sqrt(d_in)
        v = (torch.rand(num_experts, rank, d_in, generator=generator) * 2 - 1) * bound
        none = (weight.new_zeros(0, d_out), weight.new_zeros(0), weight.new_zeros(0, d_in))
        factors = (
            weight.new_zeros(num_experts, rank, d_out),
            weight.new_full((num_experts, rank), scale),
            v.to(weight),
        )
        layer = cls(weight, bias, none, factors)
        layer.s.requires_grad_(False)
        return layer

    def main_weight(self) -> Tensor:
        """W_main (D_out, D_in): the dense weight without the triplets that experts start from."""
        if self.residual_s.numel() == 0:
            return self.weight
        return self.weight - (self.residual_u.T * self.residual_s) @ self.residual_v

    def dense(self, x: Tensor) -> Tensor:
        """Output (B, T, D_out) of the frozen dense layer alone, as if no expert existed."""
        return F.linear(x, self.weight, self.bias)

    def forward(self, x: Tensor, gates: Tensor) -> Tensor:
        """Layer output (B, T, D_out).

        Args:
            x: (B, T, D_in).
            gates: (B, E), the weight of each expert for each sample.
        """
        experts, rank = self.s.shape
        scale = (gates.unsqueeze(-1) * self.s).reshape(-1, 1, experts * rank)
        hidden = F.linear(x, self.v.reshape(experts * rank, -1)) * scale.to(x.dtype)
        return F.linear(x, self.main_weight(), self.bias) + hidden @ self.u.reshape(experts * rank, -1)

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


def _check_sizes(weight: Tensor, num_experts: int, rank: int) -> None:
    if weight.dim() != 2:
        raise ConfigError(f"the dense weight has {weight.dim()} dimensions; low-rank experts need 2")
    if num_experts < 1:
        raise ConfigError(f"num_experts is {num_experts}; at least 1 is needed")
    if not 1 <= rank < min(weight.shape):
        raise ConfigError(f"rank is {rank}; a {tuple(weight.shape)} weight allows 1..{min(weight.shape) - 1}")
