"""A `.safetensors` file alone: Hugging Face CLIP, Dinov2, Dinov2WithRegisters or DINOv3ViT weights."""

from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor

from detector.backbones.naming import (
    CLIP_NAMES,
    DINO_NAMES,
    Backbone,
    Table,
    add_zero_biases,
    assemble,
    rename,
)
from detector.errors import ModelError
from detector.vit.shapes import IMAGENET_MEAN, IMAGENET_STD

HEAD_WIDTH = 64
DINO = {
    "mean": IMAGENET_MEAN,
    "std": IMAGENET_STD,
    "activation": "gelu",
    "final_norm": True,
    "layer_scale": True,
    "embedding_norm": False,
    "patch_bias": True,
}


class Family(NamedTuple):
    """How a file without a configuration is read; `known` is what every release of the family has."""

    names: Table
    known: dict[str, Any]
    absent_biases: tuple[str, ...] = ()


# A weight that only this family has -> how to read it; the first that is there decides.
FAMILIES = {
    "embeddings.patch_embedding.weight": Family(CLIP_NAMES, {"embedding_norm": True, "layer_scale": False}),
    "embeddings.patch_embeddings.projection.weight": Family(DINO_NAMES, DINO | {"norm_eps": 1e-6}),
    "embeddings.patch_embeddings.weight": Family(
        DINO_NAMES, DINO | {"positions": "rotary", "image_px": 224}, ("self_attn.k_proj",)
    ),
}


def load_file(name: str) -> Backbone:
    """The image tower in a `.safetensors` file with Hugging Face's names.

    The file holds no configuration, so what every release of its family shares is taken for granted:
    heads 64 wide, OpenAI's QuickGELU in CLIP. For anything else name its folder: `hf:FOLDER`.

    Raises:
        ModelError: the file is missing, not safetensors, or holds no such tower, or not all of it.
    """
    weights = read_safetensors(Path(name))
    found = {key.removeprefix("vision_model.") for key in weights}
    family = next((family for signature, family in FAMILIES.items() if signature in found), None)
    if family is None:
        raise ModelError(f"{name} holds no image tower: it has none of {', '.join(FAMILIES)}")
    renamed = add_zero_biases(rename(weights, family.names, name), family.absent_biases)
    known = family.known
    if "embeddings.register_embedding" in renamed and "positions" not in known:
        known = known | {"positions": "bicubic-antialias"}
    if "encoder.layers.0.mlp.gate.weight" in renamed:
        known = known | {"activation": "silu"}
    width = renamed["embeddings.patch_embedding.weight"].shape[0]
    return assemble(renamed, name, heads=max(1, width // HEAD_WIDTH), **known)


def read_safetensors(path: Path) -> dict[str, Tensor]:
    """All tensors of a file.

    Raises:
        ModelError: the file is missing or not safetensors.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load_file as read

    try:
        return read(path)
    except (OSError, SafetensorError) as error:
        raise ModelError(f"{path} cannot be read as safetensors: {error}") from error
