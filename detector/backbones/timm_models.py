"""ViTs of timm: plain, CLIP, DINOv2 (class VisionTransformer) and DINOv3 (class Eva)."""

from typing import Any

import torch
from torch import Tensor, nn

from detector.backbones.naming import TIMM_NAMES, Backbone, Table, add_zero_biases, assemble, rename
from detector.errors import ModelError
from mirage.extras import need

ACTIVATIONS = {
    "QuickGELU": "quick_gelu",
    "GELU": "gelu",
    "GELUTanh": "gelu_tanh",
    "SiLU": "silu",
    "silu": "silu",
}
# First half of a packed matrix is the gate.
PACKED: Table = ((r"blocks\.(\d+)\.mlp\.fc1\.(\w+)", r"encoder.layers.\1.mlp.gate_and_fc1.\2"),)


def load_timm(name: str) -> Backbone:
    """The ViT `MODEL` with timm's pretrained weights, or `MODEL/FILE` with those of a local checkpoint.

    Raises:
        ModelError: it cannot be loaded, or is no plain pre-norm ViT with a class token.
    """
    timm, source = need("timm"), f"timm:{name}"
    model, _, path = name.partition("/") if not name.startswith(("hf-hub:", "hf_hub:")) else (name, "", "")
    try:
        # timm itself would unpickle whatever a local file holds.
        stored = need("timm.models").load_state_dict(path, weights_only=True) if path else None
        overlay = {"pretrained_cfg_overlay": {"state_dict": stored}} if stored else {}
        loaded = timm.create_model(model, pretrained=True, **overlay)
    except Exception as error:
        raise ModelError(f"{source} cannot be loaded: {' '.join(str(error).split())[:300]}") from error
    return from_timm(loaded, source)


def from_timm(model: nn.Module, source: str, **known: Any) -> Backbone:
    """The backbone that a loaded timm model is.

    Args:
        model: an instance of VisionTransformer or Eva.
        source: for messages.
        known: fields of TrunkConfig that overrule timm's: `mean`, `std`.

    Raises:
        ModelError: it has parts that a plain pre-norm ViT does not have; the message names one.
    """
    parts: Any = model
    strange = next((what for what, found in _obstacles(parts) if found), None)
    if strange:
        raise ModelError(f"{source} cannot be used: it {strange}")
    packed = type(parts.blocks[0].mlp).__name__ == "GluMlp"
    weights = rename(model.state_dict(), (*PACKED, *TIMM_NAMES) if packed else TIMM_NAMES, source)
    weights = add_zero_biases(_with_own_positions(parts, weights))
    return assemble(weights, source, **(_structure(parts) | _pixels(parts) | known))


def _obstacles(model: Any) -> list[tuple[str, bool]]:
    """What keeps a model from being a plain pre-norm ViT, and whether this one has it."""
    if not hasattr(model, "blocks") or not hasattr(model, "patch_embed"):
        return [(f"is a {type(model).__name__}, no Vision Transformer", True)]
    block = model.blocks[0]
    attention, rope = block.attn, getattr(model, "rope", None)
    plain = ("Block", "EvaBlock")
    rotary = type(rope).__name__ == "RotaryEmbeddingDinoV3"
    return [
        (f"has blocks of type {type(block).__name__}", type(block).__name__ not in plain),
        ("has no class token", getattr(model, "cls_token", None) is None),
        ("normalises queries and keys", not isinstance(attention.q_norm, nn.Identity)),
        ("normalises inside the attention", _normalises(attention)),
        ("gates the attention", getattr(attention, "gate", None) is not None),
        ("normalises inside the MLP", _normalises(block.mlp)),
        ("has rotary positions of another kind", rope is not None and not rotary),
        ("pairs rotary channels in another way", rotary and not getattr(rope, "rotate_half", False)),
        ("has both learned and rotary positions", rope is not None and model.pos_embed is not None),
        ("has no positions", rope is None and model.pos_embed is None),
        (
            "shares keys between heads",
            getattr(attention, "num_kv_heads", None) not in (None, attention.num_heads),
        ),
    ]


def _normalises(part: Any) -> bool:
    norm = getattr(part, "norm", None)
    return norm is not None and not isinstance(norm, nn.Identity)


def _with_own_positions(model: Any, weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """Weights whose position table has a row for the class token and none for registers, sums unchanged."""
    name, register = "embeddings.position_embedding.weight", "embeddings.register_embedding"
    table = weights.get(name)
    if table is None:
        return weights
    if model.no_embed_class:
        return weights | {name: torch.cat([torch.zeros(1, table.shape[1]), table])}
    registers = model.num_prefix_tokens - 1
    if not registers:
        return weights
    return weights | {
        name: torch.cat([table[:1], table[1 + registers :]]),
        register: weights[register] + table[1 : 1 + registers],
    }


def _structure(model: Any) -> dict[str, Any]:
    block = model.blocks[0]
    activation = type(block.mlp.act).__name__
    if activation == "function":
        activation = block.mlp.act.__name__
    if activation not in ACTIVATIONS:
        raise ModelError(f"activation {activation} is not known; allowed: {', '.join(ACTIVATIONS)}")
    rope = getattr(model, "rope", None)
    found: dict[str, Any] = {
        "heads": block.attn.num_heads,
        "depth": len(model.blocks),
        "activation": ACTIVATIONS[activation],
        "norm_eps": block.norm1.eps,
        "positions": "bicubic-antialias" if rope is None else "rotary",
        "embedding_norm": isinstance(model.norm_pre, nn.LayerNorm),
        "final_norm": isinstance(model.norm, nn.LayerNorm),
    }
    if rope is not None:
        found |= {"rotary_base": rope.temperature, "image_px": model.patch_embed.img_size[0]}
    return found


def _pixels(model: Any) -> dict[str, Any]:
    stored = getattr(model, "pretrained_cfg", None) or {}
    return {field: tuple(stored[field]) for field in ("mean", "std") if stored.get(field)}
