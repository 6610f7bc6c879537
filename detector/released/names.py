"""The release's names: one spelling of them, and the shape that every one must have.

The spelling is that of the CLIP weights. The attention projections hold, beside `bias`:
SVD: `weight_main` (D, D), `U_r` (D, D - r), `V_r` (D - r, D), `weight_original_fnorm` (one number),
and for each expert `U_experts.E` (D, r), `S_experts.E` (r), `V_experts.E` (r, D);
LoRA: `weight_main` (D, D), also called `weight`, and `lora_A_experts.E` (r, D), `lora_B_experts.E` (D, r).
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from detector.backbones.naming import DINO_NAMES, Table
from detector.errors import ModelError
from detector.vit.shapes import TrunkConfig
from detector.vit.weights import ATTENTION, Shapes, weight_shapes

FROZEN = "feature_extractor."
ROUTER = "gating_network.network."
FIRST = "encoder_layers.0.self_attn.q_proj"
SHOWN = 3
_LAYER = r"encoder_layers\.(\d+)\."
# Hugging Face's DINOv3 names, where blocks or embeddings were taken over as they are -> CLIP's spelling.
MAIN_NAMES: Table = (
    (r"embeddings\.(?:position_ids|mask_token)|(?:embeddings\.)?rope_embeddings\.inv_freq", ""),
    (r"embeddings\.cls_token", "embeddings.class_embedding"),
    (r"embeddings\.register_tokens", "embeddings.register_embedding"),
    (r"embeddings\.patch_embeddings\.(weight|bias)", r"embeddings.patch_embedding.\1"),
    (r"norm\.(weight|bias)", r"ln_post.\1"),
    (_LAYER + r"norm([12])\.(\w+)", r"encoder_layers.\1.layer_norm\2.\3"),
    (_LAYER + r"attention\.([qkv])_proj\.(.+)", r"encoder_layers.\1.self_attn.\2_proj.\3"),
    (_LAYER + r"attention\.o(?:ut)?_proj\.(.+)", r"encoder_layers.\1.self_attn.out_proj.\2"),
    (_LAYER + r"self_attn\.o_proj\.(.+)", r"encoder_layers.\1.self_attn.out_proj.\2"),
    (_LAYER + r"layer_scale([12])\.lambda1", r"encoder_layers.\1.layer_scale\2"),
    (_LAYER + r"mlp\.up_proj\.(\w+)", r"encoder_layers.\1.mlp.fc1.\2"),
    (_LAYER + r"mlp\.down_proj\.(\w+)", r"encoder_layers.\1.mlp.fc2.\2"),
    (_LAYER + r"mlp\.gate_proj\.(\w+)", r"encoder_layers.\1.mlp.gate.\2"),
)
FROZEN_NAMES: Table = ((r"embeddings\.position_ids", ""), *DINO_NAMES)
# The trunk's own names -> where the release keeps the part that carries experts.
MAIN_PLACES: Table = (
    (r"pre_layrnorm\.(.+)", r"ln_pre.\1"),
    (r"post_layernorm\.(.+)", r"ln_post.\1"),
    (r"encoder\.layers\.(\d+)\.(self_attn\.\w+)\.weight", r"encoder_layers.\1.\2.weight_main"),
    (r"encoder\.layers\.(\d+)\.(.+)", r"encoder_layers.\1.\2"),
)


@dataclass(frozen=True)
class Sizes:
    """What only the tensors tell: kind, number and rank of the experts, and the router's width."""

    kind: Literal["svd", "lora"]
    experts: int
    rank: int
    hidden: int


def spell(tensors: Mapping[str, Tensor], source: str) -> dict[str, Tensor]:
    """The tensors, float32, under the one spelling; buffers that hold nothing learned are left out.

    Raises:
        ModelError: two names are spellings of the same.
    """
    spelled: dict[str, Tensor] = {}
    lora = any(".lora_A_experts." in name for name in tensors)
    for name, value in tensors.items():
        new = _spelling(name)
        if lora and re.fullmatch(_LAYER + r"self_attn\.\w+\.weight", new):
            new += "_main"
        if new in spelled:
            raise ModelError(f"{source} holds {new} twice, the second time as {name}")
        if new:
            spelled[new] = _flat(new, value.detach().float())
    return spelled


def _spelling(name: str) -> str:
    prefix = FROZEN if name.startswith(FROZEN) else ""
    own = name.removeprefix(prefix)
    if prefix:
        own = own.removeprefix("vision_model.")
    new = _renamed(own, FROZEN_NAMES if prefix else MAIN_NAMES)
    return prefix + new if new else ""


def _renamed(name: str, table: Table) -> str:
    found = (match.expand(to) for pattern, to in table if (match := re.fullmatch(pattern, name)))
    return next(found, name)


def _flat(name: str, value: Tensor) -> Tensor:
    """Tokens without the leading dimensions of 1, and a number without any."""
    dimensions = {"class_embedding": 1, "register_embedding": 2}.get(name.rsplit(".", 1)[-1], value.dim())
    if name.endswith("weight_original_fnorm") and value.numel() == 1:
        dimensions = 0
    while value.dim() > dimensions and value.shape[0] == 1:
        value = value[0]
    return value


def read_sizes(tensors: Mapping[str, Tensor], source: str) -> Sizes:
    """Kind, number and rank of the experts and the router's width, out of the first tensors of each.

    Raises:
        ModelError: there are no experts, experts of both kinds, or no router.
    """
    first: dict[Literal["svd", "lora"], str] = {"svd": "S_experts", "lora": "lora_A_experts"}
    counts = {kind: _count(tensors, f"{FIRST}.{name}.") for kind, name in first.items()}
    kinds = [kind for kind, count in counts.items() if count]
    if len(kinds) != 1:
        what = "experts of both kinds" if kinds else "no experts"
        raise ModelError(
            f"{source} holds {what} in {FIRST}; either S_experts or lora_A_experts is needed there"
        )
    kind = kinds[0]
    for needed, dimensions in ((f"{FIRST}.{first[kind]}.0", 1 + (kind == "lora")), (ROUTER + "0.weight", 2)):
        if needed not in tensors:
            raise ModelError(f"{source} misses {needed}")
        if tensors[needed].dim() != dimensions:
            raise ModelError(f"{needed} of {source} has {tensors[needed].dim()} dimensions, not {dimensions}")
    if counts[kind] < 2:
        raise ModelError(f"{source} holds one expert; a semantic one and the artifact expert are needed")
    rank, hidden = (tensors[name].shape[0] for name in (f"{FIRST}.{first[kind]}.0", ROUTER + "0.weight"))
    return Sizes(kind, counts[kind], rank, hidden)


def _count(tensors: Mapping[str, Tensor], prefix: str) -> int:
    """How many experts there are; their numbers are checked with all other names."""
    return sum(name.startswith(prefix) for name in tensors)


def place(name: str) -> str:
    """Where the release keeps the trunk's weight `name` in the part that carries experts."""
    return _renamed(name, MAIN_PLACES)


def projections(trunk: TrunkConfig) -> list[str]:
    """Every attention projection, in forward order, as `N.self_attn.q_proj`."""
    return [f"{block}.self_attn.{name}" for block in range(trunk.depth) for name in ATTENTION]


def expected_shapes(trunk: TrunkConfig, sizes: Sizes) -> Shapes:
    """Shape by name of everything a file of these sizes holds."""
    width, semantic = trunk.width, sizes.experts - 1
    shapes: Shapes = {
        f"{ROUTER}0.weight": (sizes.hidden, width),
        f"{ROUTER}0.bias": (sizes.hidden,),
        f"{ROUTER}2.weight": (semantic, sizes.hidden),
        f"{ROUTER}2.bias": (semantic,),
        "head.weight": (2, width),
        "head.bias": (2,),
    }
    for name, shape in weight_shapes(trunk).items():
        shapes |= {FROZEN + name: shape, place(name): shape}
    for name in projections(trunk):
        for part, shape in _expert_shapes(width, sizes).items():
            shapes[f"encoder_layers.{name}.{part}"] = shape
    return shapes


def _expert_shapes(width: int, sizes: Sizes) -> Shapes:
    rank = sizes.rank
    each: Shapes = {"lora_A_experts": (rank, width), "lora_B_experts": (width, rank)}
    once: Shapes = {}
    if sizes.kind == "svd":
        each = {"U_experts": (width, rank), "S_experts": (rank,), "V_experts": (rank, width)}
        once = {
            "U_r": (width, width - rank),
            "V_r": (width - rank, width),
            "weight_original_fnorm": (),
        }
    return once | {
        f"{part}.{number}": shape for part, shape in each.items() for number in range(sizes.experts)
    }


def check_tensors(tensors: Mapping[str, Tensor], shapes: Shapes, source: str) -> None:
    """Make sure that exactly these tensors are there, in these shapes, all finite.

    Raises:
        ModelError: the message names the first few of every kind of fault, and how many there are.
    """
    both = sorted(tensors.keys() & shapes.keys())
    faults = {
        "missing": sorted(shapes.keys() - tensors.keys()),
        "unexpected": sorted(tensors.keys() - shapes.keys()),
        "of a wrong shape": [
            f"{name} is {tuple(tensors[name].shape)}, not {shapes[name]}"
            for name in both
            if tuple(tensors[name].shape) != shapes[name]
        ],
        "not finite": [name for name in both if not bool(torch.isfinite(tensors[name]).all())],
    }
    found = [f"{len(names)} {what} ({listed(names)})" for what, names in faults.items() if names]
    if found:
        raise ModelError(f"{source} does not hold what this backbone's release does: {'; '.join(found)}")


def listed(names: list[str]) -> str:
    """The first few names."""
    return ", ".join(names[:SHOWN]) + (", ..." if len(names) > SHOWN else "")
