"""From pixels to tokens: patches, class token, registers and positions."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from detector.errors import ModelError
from detector.vit.shapes import TrunkConfig
from detector.vit.weights import under


class Embeddings(nn.Module):
    """Tokens of normalised pixels: class token, registers, then patches row by row; all frozen."""

    class_token: Tensor
    positions: Tensor
    fitted: Tensor
    registers: Tensor | None
    rotary: Tensor

    def __init__(self, config: TrunkConfig, weights: dict[str, Tensor]) -> None:
        """Embeddings whose position table is fitted to `config.image_px`, whatever size it was made for."""
        super().__init__()
        self.config = config
        self.patch = nn.Conv2d(3, config.width, config.patch_px, config.patch_px, bias=config.patch_bias)
        self.patch.load_state_dict(under(weights, "embeddings.patch_embedding."))
        self.norm = frozen_norm(config, weights, "pre_layrnorm") if config.embedding_norm else nn.Identity()
        self.requires_grad_(False)
        self._add_tokens(weights)
        if config.positions == "rotary":
            table = rotary_table(config.grid, config.width // config.heads, config.rotary_base)
            self.register_buffer("rotary", table, persistent=False)
        else:
            self.register_buffer("fitted", self._resized(config.grid), persistent=False)

    def _add_tokens(self, weights: dict[str, Tensor]) -> None:
        class_token = weights["embeddings.class_embedding"]
        if self.config.positions != "rotary":
            table = weights["embeddings.position_embedding.weight"]
            class_token = class_token + table[0]
            self.register_buffer("positions", table[1:].clone())
        self.register_buffer("class_token", class_token.clone())
        registers = weights["embeddings.register_embedding"].clone() if self.config.registers else None
        self.register_buffer("registers", registers)

    def forward(self, pixels: Tensor) -> Tensor:
        """(B, 1 + registers + N, D) tokens of normalised pixels (B, 3, S, S).

        Raises:
            ModelError: the pixels are not square.
        """
        if pixels.shape[-2] != pixels.shape[-1]:
            raise ModelError(f"an input of {pixels.shape[-1]} x {pixels.shape[-2]} px is not square")
        x = self.patch(pixels).flatten(2).transpose(1, 2)
        if self.config.positions != "rotary":
            x = x + self._table(math.isqrt(x.shape[1]))
        prefix = [self.class_token.unsqueeze(0)] + ([] if self.registers is None else [self.registers])
        tokens = [part.expand(x.shape[0], -1, -1).to(x.dtype) for part in prefix]
        return self.norm(torch.cat([*tokens, x], dim=1))

    def rotation(self, patches: int) -> Tensor | None:
        """(2, N, d) cosines and sines for a square of N patches, or None for learned positions."""
        if self.config.positions != "rotary":
            return None
        if patches == self.config.grid**2:
            return self.rotary
        head, side = self.config.width // self.config.heads, math.isqrt(patches)
        return rotary_table(side, head, self.config.rotary_base).to(self.class_token.device)

    def _table(self, side: int) -> Tensor:
        return self.fitted if side == self.config.grid else self._resized(side)

    def _resized(self, side: int) -> Tensor:
        return resize_positions(self.positions, side, antialias=self.config.positions == "bicubic-antialias")


def frozen_norm(config: TrunkConfig, weights: dict[str, Tensor], name: str) -> nn.LayerNorm:
    """The layer norm stored under `name`, not trained."""
    norm = nn.LayerNorm(config.width, eps=config.norm_eps)
    norm.load_state_dict(under(weights, f"{name}."))
    return norm.requires_grad_(False)


def resize_positions(table: Tensor, side: int, *, antialias: bool) -> Tensor:
    """A position table (N, D) of a square of patches, resized to `side` rows and columns.

    Args:
        table: positions of the patches, row by row.
        side: wanted rows; nothing is computed when the table has as many already.
        antialias: as timm, open_clip and Hugging Face's Dinov2WithRegisters do; Hugging Face's CLIP
            and Dinov2 do not.
    """
    own = math.isqrt(table.shape[0])
    if side == own:
        return table
    image = table.float().unflatten(0, (own, own)).permute(2, 0, 1).unsqueeze(0)
    image = F.interpolate(image, size=(side, side), mode="bicubic", align_corners=False, antialias=antialias)
    return image[0].permute(1, 2, 0).flatten(0, 1).to(table.dtype)


def rotary_table(side: int, head: int, base: float) -> Tensor:
    """(2, side * side, head) cosines and sines of the angles of every patch centre, row by row.

    Source: DINOv3 (arXiv 2508.10104): centres in -1..1 along each side, `head / 4` periods each.
    """
    places = (torch.arange(side) + 0.5) / side * 2 - 1
    centres = torch.stack(torch.meshgrid(places, places, indexing="ij"), dim=-1).flatten(0, 1)
    speeds = 1 / base ** torch.arange(0, 1, 4 / head)
    angles = (2 * math.pi * centres.unsqueeze(-1) * speeds).flatten(1).tile(2)
    return torch.stack([angles.cos(), angles.sin()])


def rotate(x: Tensor, table: Tensor, prefix: int) -> Tensor:
    """Queries or keys (B, heads, T, d) with the patches' pairs of channels turned by their angles.

    Args:
        x: T tokens; the first `prefix` of them have no position.
        table: (2, T - prefix, d) from `rotary_table`.
        prefix: class token and registers.
    """
    still, moving = x[:, :, :prefix], x[:, :, prefix:]
    cosines, sines = table.to(x.dtype)
    first, second = moving.chunk(2, dim=-1)
    turned = moving * cosines + torch.cat([-second, first], dim=-1) * sines
    return torch.cat([still, turned], dim=2)
