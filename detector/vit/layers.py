"""One transformer block, frozen but for the experts on its projections."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from detector.vit.embeddings import frozen_norm, rotate
from detector.vit.shapes import ExpertConfig, TrunkConfig
from detector.vit.weights import ATTENTION, under
from moe_core.experts import LowRankExperts

MLP = ("fc1", "fc2", "gate")


def quick_gelu(x: Tensor) -> Tensor:
    """x * sigmoid(1.702 x), the activation OpenAI's CLIP was trained with."""
    if x.requires_grad and torch.is_grad_enabled():
        # The same function, but only one tensor is kept for the backward pass instead of two.
        return F.silu(1.702 * x) / 1.702
    return (1.702 * x).sigmoid_().mul_(x)


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "quick_gelu": quick_gelu,
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "silu": F.silu,
}


def project(layer: nn.Module, x: Tensor, gates: Tensor | None) -> Tensor:
    """A projection's output (B, T, D_out): with its experts where it has some and gates are given."""
    if isinstance(layer, LowRankExperts):
        return layer.dense(x) if gates is None else layer(x, gates)
    return layer(x)


def projection(weights: dict[str, Tensor], name: str, experts: ExpertConfig | None, seed: int) -> nn.Module:
    """The projection stored under `name`: frozen and dense, or with experts at their initial state.

    Args:
        weights: a block's weights.
        name: of the projection.
        experts: what to put on it, if anything.
        seed: of LoRA initialisation.
    """
    weight, bias = weights[f"{name}.weight"], weights[f"{name}.bias"]
    if experts is None:
        layer = nn.Linear(weight.shape[1], weight.shape[0])
        layer.load_state_dict({"weight": weight, "bias": bias})
        return layer.requires_grad_(False)
    number, rank, dropout = experts.num_experts, experts.rank, experts.dropout
    if experts.kind == "svd":
        return LowRankExperts.from_svd(weight, bias, number, rank, dropout=dropout)
    return LowRankExperts.from_lora(weight, bias, number, rank, seed=seed, dropout=dropout)


class Attention(nn.Module):
    """Multi-head self-attention; experts, if any, sit on the q, k, v and output projections."""

    q_proj: nn.Module
    k_proj: nn.Module
    v_proj: nn.Module
    out_proj: nn.Module

    def __init__(
        self, weights: dict[str, Tensor], config: TrunkConfig, experts: ExpertConfig | None, seed: int
    ) -> None:
        super().__init__()
        self.heads, self.prefix = config.heads, config.prefix
        for offset, name in enumerate(ATTENTION):
            setattr(self, name, projection(weights, name, experts, seed + offset))

    def forward(
        self, x: Tensor, gates: Tensor | None, rotation: Tensor | None = None, queries: int | None = None
    ) -> Tensor:
        """Output for the first `queries` tokens (all when None): (B, Q, D); x is (B, T, D)."""
        q = self._heads("q_proj", x if queries is None else x[:, :queries], gates)
        k, v = self._heads("k_proj", x, gates), self._heads("v_proj", x, gates)
        if rotation is not None:
            k = rotate(k, rotation, self.prefix)
            q = q if queries is not None and queries <= self.prefix else rotate(q, rotation, self.prefix)
        mixed = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        return project(self.out_proj, mixed, gates)

    def _heads(self, name: str, x: Tensor, gates: Tensor | None) -> Tensor:
        y = project(getattr(self, name), x, gates)
        return y.unflatten(-1, (self.heads, y.shape[-1] // self.heads)).transpose(1, 2)


class Mlp(nn.Module):
    """fc2(activation(fc1(x))), or fc2(activation(gate(x)) * fc1(x)) where there is a gate."""

    fc1: nn.Module
    fc2: nn.Module
    gate: nn.Module

    def __init__(
        self, weights: dict[str, Tensor], config: TrunkConfig, experts: ExpertConfig | None, seed: int
    ) -> None:
        super().__init__()
        self.activation = ACTIVATIONS[config.activation]
        for offset, name in enumerate(MLP if config.gated_mlp else MLP[:2]):
            setattr(self, name, projection(weights, name, experts, seed + offset))
        self.gated = config.gated_mlp

    def forward(self, x: Tensor, gates: Tensor | None) -> Tensor:
        """(B, T, D) -> (B, T, D)."""
        hidden = project(self.fc1, x, gates)
        if self.gated:
            hidden = self.activation(project(self.gate, x, gates)) * hidden
        else:
            hidden = self.activation(hidden)
        return project(self.fc2, hidden, gates)


class Block(nn.Module):
    """Pre-norm transformer block; everything but the experts is frozen."""

    scale1: Tensor | None
    scale2: Tensor | None

    def __init__(
        self, weights: dict[str, Tensor], config: TrunkConfig, experts: ExpertConfig, number: int, seed: int
    ) -> None:
        """Block number `number`, counted from 1, with its own `weights`."""
        super().__init__()
        on_attention, on_mlp = (
            experts if experts.covers(number, part) else None for part in ("attention", "mlp")
        )
        seed *= len(ATTENTION) + len(MLP)
        self.attention = Attention(under(weights, "self_attn."), config, on_attention, seed)
        self.mlp = Mlp(under(weights, "mlp."), config, on_mlp, seed + len(ATTENTION))
        self.norm1 = frozen_norm(config, weights, "layer_norm1")
        self.norm2 = frozen_norm(config, weights, "layer_norm2")
        for name in ("scale1", "scale2"):
            scale = weights[f"layer_{name}"].clone() if config.layer_scale else None
            self.register_buffer(name, scale)

    def forward(
        self, x: Tensor, gates: Tensor | None, rotation: Tensor | None = None, queries: int | None = None
    ) -> Tensor:
        """(B, T, D) -> (B, Q, D), Q = `queries` first tokens or all T.

        Args:
            x: tokens.
            gates: (B, E), or None for the frozen block without experts.
            rotation: (2, N, d) of rotary positions, or None.
            queries: how many tokens are wanted.
        """
        kept = x if queries is None else x[:, :queries]
        kept = kept + _scaled(self.attention(self.norm1(x), gates, rotation, queries), self.scale1)
        return kept + _scaled(self.mlp(self.norm2(kept), gates), self.scale2)


def _scaled(x: Tensor, scale: Tensor | None) -> Tensor:
    return x if scale is None else x * scale
