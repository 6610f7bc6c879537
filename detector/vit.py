"""A Vision Transformer trunk whose attention projections carry low-rank experts."""

from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F
from pydantic import BaseModel, ConfigDict
from torch import Tensor, nn

from moe_core.experts import LowRankExperts

PROJECTIONS = ("q_proj", "k_proj", "v_proj", "out_proj")


class TrunkConfig(BaseModel):
    """Shape of a CLIP-style trunk, read from its weights and never guessed."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    width: int
    depth: int
    heads: int
    patch_px: int
    image_px: int
    mlp_width: int
    mean: tuple[float, float, float] = (0.48145466, 0.4578275, 0.40821073)
    std: tuple[float, float, float] = (0.26862954, 0.26130258, 0.27577711)


class ExpertConfig(BaseModel):
    """How experts are put on attention projections.

    Attributes:
        blocks: blocks, counted from 1, whose projections carry experts; None means all, as in the
            paper. Blocks before the first are computed once and shared by the router's pass.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Literal["svd", "lora"] = "svd"
    num_experts: int = 6
    rank: int = 8
    blocks: tuple[int, ...] | None = None

    def covers(self, block: int) -> bool:
        """Whether block number `block`, counted from 1, carries experts."""
        return self.blocks is None or block in self.blocks


class SharedTokens(NamedTuple):
    """What the frozen first blocks give, whatever the gates.

    Attributes:
        tokens: (B, T, D) input of the first block with experts.
        tapped: (B, N * D) unit-variance class tokens of the taps passed so far.
    """

    tokens: Tensor
    tapped: Tensor


def quick_gelu(x: Tensor) -> Tensor:
    """x * sigmoid(1.702 x), the activation OpenAI's CLIP was trained with."""
    return x * torch.sigmoid(1.702 * x)


class Attention(nn.Module):
    """Multi-head self-attention; experts, if any, sit on the q, k, v and output projections."""

    def __init__(
        self, weights: dict[str, Tensor], heads: int, experts: ExpertConfig | None, seed: int
    ) -> None:
        super().__init__()
        self.heads = heads
        for offset, name in enumerate(PROJECTIONS):
            weight, bias = weights[f"{name}.weight"], weights[f"{name}.bias"]
            setattr(self, name, _projection(weight, bias, experts, seed * len(PROJECTIONS) + offset))

    def forward(self, x: Tensor, gates: Tensor | None, queries: int | None) -> Tensor:
        """Output for the first `queries` tokens (all when None): (B, Q, D); x is (B, T, D)."""
        q = self._project("q_proj", x if queries is None else x[:, :queries], gates)
        k, v = self._project("k_proj", x, gates), self._project("v_proj", x, gates)
        q, k, v = (self._split(part) for part in (q, k, v))
        mixed = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        return self._project("out_proj", mixed, gates)

    def _project(self, name: str, x: Tensor, gates: Tensor | None) -> Tensor:
        layer = getattr(self, name)
        if isinstance(layer, LowRankExperts):
            return layer.dense(x) if gates is None else layer(x, gates)
        return layer(x)

    def _split(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (self.heads, x.shape[-1] // self.heads)).transpose(1, 2)


def _projection(weight: Tensor, bias: Tensor, experts: ExpertConfig | None, seed: int) -> nn.Module:
    if experts is None:
        layer = nn.Linear(weight.shape[1], weight.shape[0])
        layer.load_state_dict({"weight": weight, "bias": bias})
        return layer.requires_grad_(False)
    if experts.kind == "svd":
        return LowRankExperts.from_svd(weight, bias, experts.num_experts, experts.rank)
    return LowRankExperts.from_lora(weight, bias, experts.num_experts, experts.rank, seed=seed)


class Block(nn.Module):
    """Pre-norm transformer block; everything but the experts is frozen."""

    def __init__(
        self, weights: dict[str, Tensor], config: TrunkConfig, experts: ExpertConfig | None, seed: int
    ) -> None:
        super().__init__()
        attention = {
            k.removeprefix("self_attn."): v for k, v in weights.items() if k.startswith("self_attn.")
        }
        self.attention = Attention(attention, config.heads, experts, seed)
        self.norm1 = nn.LayerNorm(config.width)
        self.norm2 = nn.LayerNorm(config.width)
        self.fc1 = nn.Linear(config.width, config.mlp_width)
        self.fc2 = nn.Linear(config.mlp_width, config.width)
        for module, name in (
            (self.norm1, "layer_norm1"),
            (self.norm2, "layer_norm2"),
            (self.fc1, "mlp.fc1"),
            (self.fc2, "mlp.fc2"),
        ):
            module.load_state_dict({"weight": weights[f"{name}.weight"], "bias": weights[f"{name}.bias"]})
            module.requires_grad_(False)

    def forward(self, x: Tensor, gates: Tensor | None, queries: int | None = None) -> Tensor:
        """(B, T, D) -> (B, Q, D), Q = `queries` first tokens or all T."""
        kept = x if queries is None else x[:, :queries]
        kept = kept + self.attention(self.norm1(x), gates, queries)
        hidden = quick_gelu(self.fc1(self.norm2(kept)))
        return kept + self.fc2(hidden)


class Trunk(nn.Module):
    """The first blocks of a CLIP image tower, giving the class token of chosen blocks."""

    mean: Tensor
    std: Tensor
    class_token: Tensor
    positions: Tensor

    def __init__(
        self,
        config: TrunkConfig,
        weights: dict[str, Tensor],
        experts: ExpertConfig,
        taps: tuple[int, ...],
        seed: int = 0,
    ) -> None:
        """Trunk with `weights` under Hugging Face CLIP vision names (prefix `vision_model.` removed).

        Args:
            config: shapes; `config.depth` blocks are built.
            weights: state dict of the image tower; more blocks than `depth` may be there.
            experts: what to put on the attention projections.
            taps: blocks, counted from 1, whose class token is returned; the last ends the trunk.
            seed: of LoRA initialisation; SVD experts need none.
        """
        super().__init__()
        self.config, self.taps = config, taps
        self.patch = nn.Conv2d(3, config.width, config.patch_px, config.patch_px, bias=False)
        self.patch.load_state_dict({"weight": weights["embeddings.patch_embedding.weight"]})
        self.norm = nn.LayerNorm(config.width)
        self.norm.load_state_dict({k: weights[f"pre_layrnorm.{k}"] for k in ("weight", "bias")})
        self.requires_grad_(False)
        self.register_buffer("class_token", weights["embeddings.class_embedding"].clone())
        self.register_buffer("positions", weights["embeddings.position_embedding.weight"].clone())
        self.register_buffer("mean", torch.tensor(config.mean).view(1, 3, 1, 1) * 255)
        self.register_buffer("std", torch.tensor(config.std).view(1, 3, 1, 1) * 255)
        self.blocks = nn.ModuleList(
            Block(
                _layer_weights(weights, index),
                config,
                experts if experts.covers(index + 1) else None,
                seed=seed * config.depth + index,
            )
            for index in range(config.depth)
        )
        self.first_expert_block = next(n for n in range(1, config.depth + 1) if experts.covers(n))

    def expert_layers(self) -> list[LowRankExperts]:
        """Every layer with experts, in forward order."""
        return [module for module in self.modules() if isinstance(module, LowRankExperts)]

    def shared(self, pixels: Tensor) -> SharedTokens:
        """The frozen part before the first block with experts.

        Args:
            pixels: (B, 3, S, S) uint8 (or float in 0..255).
        """
        x = self.patch((pixels.float() - self.mean) / self.std).flatten(2).transpose(1, 2)
        x = torch.cat([self.class_token.expand(x.shape[0], 1, -1).to(x.dtype), x], dim=1) + self.positions
        return self._run(self.norm(x), range(1, self.first_expert_block), None)

    def finish(self, shared: SharedTokens, gates: Tensor | None) -> Tensor:
        """Unit-variance class tokens of all taps, side by side: (B, len(taps) * D).

        Args:
            shared: what `shared` gave.
            gates: (B, E), or None for the frozen backbone without experts.
        """
        rest = range(self.first_expert_block, len(self.blocks) + 1)
        return torch.cat([shared.tapped, self._run(shared.tokens, rest, gates).tapped], dim=-1)

    def forward(self, pixels: Tensor, gates: Tensor | None = None) -> Tensor:
        """`finish` after `shared`."""
        return self.finish(self.shared(pixels), gates)

    def _run(self, x: Tensor, numbers: range, gates: Tensor | None) -> SharedTokens:
        tapped = [x.new_zeros(x.shape[0], 0, dtype=torch.float32)]
        for number in numbers:
            # After the last block only the class token is read, so only its query is computed.
            x = self.blocks[number - 1](x, gates, queries=1 if number == len(self.blocks) else None)
            if number in self.taps:
                tapped.append(F.layer_norm(x[:, 0].float(), x.shape[-1:]))
        return SharedTokens(x, torch.cat(tapped, dim=-1))


def _layer_weights(weights: dict[str, Tensor], index: int) -> dict[str, Tensor]:
    prefix = f"encoder.layers.{index}."
    return {name.removeprefix(prefix): value for name, value in weights.items() if name.startswith(prefix)}
