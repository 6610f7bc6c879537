"""Image towers of open_clip, by model and pretrained tag or local checkpoint."""

from pathlib import Path
from typing import Any

from torch import nn

from detector.backbones.naming import OPEN_CLIP_NAMES, Backbone, assemble, rename
from detector.backbones.timm_models import from_timm
from detector.errors import ModelError
from detector.vit.shapes import CLIP_MEAN, CLIP_STD
from mirage.extras import need

ACTIVATIONS = {"QuickGELU": "quick_gelu", "GELU": "gelu"}


def load_open_clip(name: str) -> Backbone:
    """The image tower of `MODEL/WEIGHTS`.

    Args:
        name: an architecture that open_clip knows, then a pretrained tag or the path of a checkpoint.
            A tag decides about QuickGELU: open_clip itself would only warn, and give other features.

    Raises:
        ModelError: the model cannot be loaded, or its tower is no plain pre-norm ViT.
    """
    open_clip, source = need("open_clip"), f"open_clip:{name}"
    model, _, weights = name.partition("/")
    if not weights:
        raise ModelError(f"{source} names no weights; write open_clip:MODEL/WEIGHTS with a tag or a file")
    tag = open_clip.get_pretrained_cfg(model, weights) or {}
    if not tag and not Path(weights).is_file():
        tags = ", ".join(open_clip.list_pretrained_tags_by_model(model)) or "none"
        raise ModelError(f"{source}: {weights} is neither a file nor one of the tags of {model}: {tags}")
    try:
        tower = open_clip.create_model(
            model, pretrained=weights, force_quick_gelu=bool(tag.get("quick_gelu")), require_pretrained=True
        ).visual
    except Exception as error:
        raise ModelError(f"{source} cannot be loaded: {' '.join(str(error).split())[:300]}") from error
    return from_open_clip(tower, source)


def from_open_clip(tower: nn.Module, source: str) -> Backbone:
    """The backbone that the image tower of a loaded open_clip model is.

    Raises:
        ModelError: it is no plain pre-norm ViT.
    """
    parts: Any = tower
    pixels = _pixels(parts)
    if hasattr(parts, "trunk"):
        return from_timm(parts.trunk, source, **pixels)
    blocks = getattr(getattr(parts, "transformer", None), "resblocks", None)
    if not blocks or type(blocks[0]).__name__ != "ResidualAttentionBlock":
        raise ModelError(f"{source} is no plain ViT: its tower is a {type(tower).__name__}")
    if getattr(parts, "attn_pool", None) is not None:
        raise ModelError(f"{source} pools by attention; a tower with a class token is needed")
    activation = type(blocks[0].mlp.gelu).__name__
    if activation not in ACTIVATIONS:
        raise ModelError(f"{source} has activation {activation}; allowed: {', '.join(ACTIVATIONS)}")
    weights = rename(tower.state_dict(), OPEN_CLIP_NAMES, source)
    known: dict[str, Any] = {
        "heads": blocks[0].attn.num_heads,
        "depth": len(blocks),
        "activation": ACTIVATIONS[activation],
        "norm_eps": blocks[0].ln_1.eps,
        "positions": "bicubic-antialias",
        "embedding_norm": isinstance(parts.ln_pre, nn.LayerNorm),
        "final_norm": True,
    }
    return assemble(weights, source, **known, **pixels)


def _pixels(tower: Any) -> dict[str, Any]:
    stored = getattr(tower, "preprocess_cfg", None) or {}
    return {"mean": tuple(stored.get("mean", CLIP_MEAN)), "std": tuple(stored.get("std", CLIP_STD))}
