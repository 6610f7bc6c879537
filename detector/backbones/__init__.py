"""Pretrained trunks: one adapter a file, each giving a structure and weights under one naming."""

from collections.abc import Callable
from fnmatch import fnmatchcase

from detector.backbones.files import load_file
from detector.backbones.hugging_face import load_hugging_face
from detector.backbones.naming import Backbone
from detector.backbones.open_clip_towers import load_open_clip
from detector.backbones.packaged import packaged_clip, packaged_dinov2
from detector.backbones.published import load_published
from detector.backbones.timm_models import load_timm
from detector.errors import ModelError

__all__ = ["BACKBONES", "Backbone", "load_backbone"]

# Pattern of a name -> what loads it, given the part that `*` stands for; the first that fits is taken.
BACKBONES: dict[str, Callable[[str], Backbone]] = {
    "clip-vit-b16": packaged_clip,
    "dinov2-vit-s14": packaged_dinov2,
    "clip-vit-l14-336": load_published,
    "clip-vit-l14-336:*": lambda file: load_published("clip-vit-l14-336", file),
    "dinov3-vit-l16": load_published,
    "dinov3-vit-l16:*": lambda file: load_published("dinov3-vit-l16", file),
    "open_clip:*": load_open_clip,
    "timm:*": load_timm,
    "hf:*": load_hugging_face,
    "*.safetensors": load_file,
}


def load_backbone(name: str) -> Backbone:
    """Structure and weights of a backbone.

    Args:
        name: `clip-vit-b16` or `dinov2-vit-s14` (packages), `clip-vit-l14-336` or `dinov3-vit-l16` (the
            published models' own, from the Hugging Face cache, or `NAME:FILE`),
            `open_clip:MODEL/WEIGHTS` (WEIGHTS a tag or a file), `timm:MODEL` or `timm:MODEL/FILE`,
            `hf:NAME` or `hf:FOLDER` (CLIP, Dinov2, Dinov2WithRegisters, DINOv3ViT), or the path of a
            `.safetensors` file of one of the latter.

    Raises:
        ModelError: the name is unknown, or its weights cannot be read, are incomplete or unexpected.
    """
    for pattern, load in BACKBONES.items():
        if fnmatchcase(name, pattern):
            return load(name.removeprefix(pattern.rstrip("*")) if pattern.endswith("*") else name)
    raise ModelError(f"backbone {name!r} is unknown; allowed: {', '.join(BACKBONES)}")
