"""Hugging Face CLIP, Dinov2, Dinov2WithRegisters and DINOv3ViT, by hub name or from a folder."""

from collections.abc import Callable
from typing import Any, NamedTuple

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
from detector.vit.shapes import CLIP_MEAN, CLIP_STD, IMAGENET_MEAN, IMAGENET_STD
from mirage.extras import need

ACTIVATIONS = {
    "quick_gelu": "quick_gelu",
    "gelu": "gelu",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_new": "gelu_tanh",
    "silu": "silu",
}


class Kind(NamedTuple):
    """What differs between the supported architectures.

    Attributes:
        model: name of the class in transformers.
        names: how its weights are called.
        positions: as in TrunkConfig.
        structure: fields of TrunkConfig that its configuration tells.
        mean, std: of the pixels, where no preprocessor is stored.
    """

    model: str
    names: Table
    positions: str
    structure: Callable[[Any], dict[str, Any]]
    mean: tuple[float, float, float] = IMAGENET_MEAN
    std: tuple[float, float, float] = IMAGENET_STD


def _clip(config: Any) -> dict[str, Any]:
    return {"layer_scale": False, "embedding_norm": True, "patch_bias": False}


def _dinov2(config: Any) -> dict[str, Any]:
    gated = config.use_swiglu_ffn
    return {"layer_scale": True, "embedding_norm": False, "gated_mlp": gated} | (
        {"activation": "silu"} if gated else {}
    )


def _dinov3(config: Any) -> dict[str, Any]:
    return {
        "layer_scale": True,
        "embedding_norm": False,
        "gated_mlp": config.use_gated_mlp,
        "rotary_base": config.rope_theta,
        "image_px": config.image_size,
        "registers": config.num_register_tokens,
    }


CLIP = Kind("CLIPVisionModel", CLIP_NAMES, "bicubic", _clip, CLIP_MEAN, CLIP_STD)
# Model type in a configuration -> how it is read.
KINDS = {
    "clip": CLIP,
    "clip_vision_model": CLIP,
    "dinov2": Kind("Dinov2Model", DINO_NAMES, "bicubic", _dinov2),
    "dinov2_with_registers": Kind("Dinov2WithRegistersModel", DINO_NAMES, "bicubic-antialias", _dinov2),
    "dinov3_vit": Kind("DINOv3ViTModel", DINO_NAMES, "rotary", _dinov3),
}


def load_hugging_face(name: str) -> Backbone:
    """The image tower stored under a hub name or in a folder written by `save_pretrained`.

    Raises:
        ModelError: it cannot be loaded, is of another architecture, or its weights are incomplete.
    """
    transformers, source = need("transformers", "moe"), f"hf:{name}"
    try:
        config = transformers.AutoConfig.from_pretrained(name)
    except Exception as error:
        raise ModelError(f"{source} cannot be loaded: {_sentence(error)}") from error
    if config.model_type not in KINDS:
        raise ModelError(f"{source} is of type {config.model_type!r}; allowed: {', '.join(KINDS)}")
    kind = KINDS[config.model_type]
    model_class = getattr(transformers, kind.model, None)
    if model_class is None:
        raise ModelError(
            f"{source} needs a newer transformers: {kind.model} is not in {transformers.__version__}"
        )
    try:
        model, told = model_class.from_pretrained(name, output_loading_info=True)
    except Exception as error:
        raise ModelError(f"{source} cannot be loaded: {_sentence(error)}") from error
    _refuse_gaps(told, source)
    return from_hugging_face(model, source, **_pixels(transformers, name, kind))


def from_hugging_face(model: Any, source: str, **known: Any) -> Backbone:
    """The backbone that a loaded Hugging Face vision model is.

    Args:
        model: an instance of one of the classes in KINDS.
        source: for messages.
        known: fields of TrunkConfig that stand in no configuration: `mean`, `std`.

    Raises:
        ModelError: its weights are not those of a supported structure.
    """
    config = model.config
    kind = KINDS[config.model_type]
    if config.hidden_act not in ACTIVATIONS:
        allowed = ", ".join(ACTIVATIONS)
        raise ModelError(f"{source} has activation {config.hidden_act!r}; allowed: {allowed}")
    weights = rename(model.state_dict(), kind.names, source)
    defaults = {"mean": kind.mean, "std": kind.std, "activation": ACTIVATIONS[config.hidden_act]}
    structure = {
        "heads": config.num_attention_heads,
        "depth": config.num_hidden_layers,
        "norm_eps": config.layer_norm_eps,
        "positions": kind.positions,
        "final_norm": True,
    }
    fields = defaults | structure | kind.structure(config) | known
    return assemble(add_zero_biases(weights), source, **fields)


def _refuse_gaps(told: dict[str, Any], source: str) -> None:
    """A checkpoint with gaps would be filled with random numbers; refuse it instead."""
    for what in ("missing_keys", "mismatched_keys"):
        names = sorted(str(item if isinstance(item, str) else item[0]) for item in told.get(what, ()))
        if names:
            verb = "misses" if what == "missing_keys" else "has another shape of"
            raise ModelError(f"{source} {verb} weight {names[0]}")
    strange = [name for name in told.get("unexpected_keys", ()) if not _of_another_part(name)]
    if strange:
        raise ModelError(f"{source} has the unexpected weight {min(strange)}")


def _of_another_part(name: str) -> bool:
    """Whether a weight is of the text tower, a projection or a classifier, which a trunk has not."""
    parts = ("text_model.", "text_projection.", "visual_projection.", "classifier.", "logit_scale")
    return name.startswith(parts) or name.endswith("position_ids")


def _pixels(transformers: Any, name: str, kind: Kind) -> dict[str, Any]:
    """Mean and standard deviation of the stored preprocessor, or nothing where there is none."""
    try:
        stored, _ = transformers.ImageProcessingMixin.get_image_processor_dict(name)
    except (OSError, ValueError):
        return {}
    fields = {"mean": stored.get("image_mean"), "std": stored.get("image_std")}
    return {field: tuple(value) for field, value in fields.items() if value}


def _sentence(error: Exception) -> str:
    """The first sentence of a library's message, on one line."""
    return " ".join(str(error).split()).split(". ")[0] or type(error).__name__
