"""What decides a trunk's structure, and where its experts sit."""

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

CLIP_MEAN, CLIP_STD = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)
IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


class TrunkConfig(BaseModel):
    """Structure of a pre-norm ViT with a class token, read from its source and never guessed.

    The defaults are OpenAI's CLIP image tower.

    Attributes:
        image_px: side of the input the position table is fitted to; other sizes are interpolated.
        positions: how positions enter: a learned table, resized as its source resizes it (bicubic
            without or with antialiasing), or rotary angles on queries and keys (DINOv3).
        embedding_norm: whether the embedded tokens are normalised before the first block (CLIP).
        final_norm: whether there are weights for the norm after the last block.
        gated_mlp: whether the MLP is activation(gate(x)) * fc1(x) instead of activation(fc1(x)).
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    width: int
    depth: int
    heads: int
    patch_px: int
    image_px: int
    mlp_width: int
    mean: tuple[float, float, float] = CLIP_MEAN
    std: tuple[float, float, float] = CLIP_STD
    activation: Literal["quick_gelu", "gelu", "gelu_tanh", "silu"] = "quick_gelu"
    norm_eps: float = 1e-5
    positions: Literal["bicubic", "bicubic-antialias", "rotary"] = "bicubic"
    rotary_base: float = 100.0
    registers: int = 0
    patch_bias: bool = False
    embedding_norm: bool = True
    layer_scale: bool = False
    gated_mlp: bool = False
    final_norm: bool = False

    @property
    def grid(self) -> int:
        """Patches along one side of an input of `image_px`."""
        return self.image_px // self.patch_px

    @property
    def prefix(self) -> int:
        """Tokens before the patches: the class token, then the registers."""
        return 1 + self.registers

    @model_validator(mode="after")
    def _heads_divide_the_width(self) -> "TrunkConfig":
        if self.width % self.heads:
            raise ValueError(f"width {self.width} cannot be split over {self.heads} heads")
        return self


class ExpertConfig(BaseModel):
    """How experts are put on the projections.

    Attributes:
        rank: of every expert, or one number per expert (the semantic ones in order, artifact last).
        blocks: blocks, counted from 1, whose projections carry experts; None means all, as in the
            paper. Blocks before the first are computed once and shared by the router's pass.
        on: which projections: q, k, v and output of the attention (the paper), the MLP's, or both.
        dropout: share of input values dropped on the experts' branch while training.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Literal["svd", "lora"] = "svd"
    num_experts: int = 6
    rank: int | tuple[int, ...] = 8
    blocks: tuple[int, ...] | None = None
    on: Literal["attention", "attention+mlp", "mlp"] = "attention"
    dropout: float = Field(default=0.0, ge=0, lt=1)

    def covers(self, block: int, part: Literal["attention", "mlp"] = "attention") -> bool:
        """Whether the attention or MLP of block number `block`, counted from 1, carries experts."""
        return part in self.on.split("+") and self.has(block)

    def has(self, block: int) -> bool:
        """Whether block number `block`, counted from 1, carries experts at all."""
        return self.blocks is None or block in self.blocks
