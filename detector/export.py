"""ONNX export: small on disk, the same numbers as torch."""

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from detector.errors import ModelError
from detector.model import OmniAID

OPSET = 18
# Smaller tensors are not worth an extra node.
COMPRESS_FROM = 100_000


class _Scored(nn.Module):
    """The exported view of a model: named outputs, nothing else."""

    def __init__(self, model: OmniAID) -> None:
        super().__init__()
        self.model = model

    def forward(self, pixels: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        output = self.model(pixels)
        return output.logits.softmax(dim=-1)[:, 1], output.logits, output.gates


def export_onnx(model: OmniAID, path: Path) -> None:
    """Write `model` as ONNX with input `pixels` and outputs `probability`, `logits`, `gates`.

    The graph takes (B, 3, S, S) uint8 views with any B. Weights that are exactly (integer in
    -128..127) * (one scale per output channel) are stored as int8 and multiplied out when a
    runtime folds constants at load; every other weight stays float32.

    Args:
        model: weights on the CPU.
        path: the file to write; written under a temporary name first.
    """
    import onnx

    size = model.trunk.config.image_px
    pixels = torch.zeros(2, 3, size, size, dtype=torch.uint8)
    partial = path.with_suffix(".partial.onnx")
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            _Scored(model.eval()),
            (pixels,),
            str(partial),
            input_names=["pixels"],
            output_names=["probability", "logits", "gates"],
            dynamic_shapes={"pixels": {0: torch.export.Dim("batch", min=1, max=4096)}},
            opset_version=OPSET,
            dynamo=True,
            external_data=False,
            optimize=False,
            verbose=False,
        )
    graph_model = onnx.load(str(partial))
    compress_weights(graph_model.graph)
    onnx.save(graph_model, str(partial))
    partial.replace(path)


def compress_weights(graph: Any) -> None:
    """Replace, in place, every large initialiser that is exactly int8 per output channel."""
    from onnx import helper, numpy_helper

    nodes, initialisers = [], []
    for item in graph.initializer:
        stored = _as_int8(numpy_helper.to_array(item)) if np.prod(item.dims) >= COMPRESS_FROM else None
        if stored is None:
            initialisers.append(item)
            continue
        integers, scale = stored
        name = item.name
        initialisers += [
            numpy_helper.from_array(integers, f"{name}.int8"),
            numpy_helper.from_array(scale, f"{name}.scale"),
        ]
        nodes += [
            helper.make_node("Cast", [f"{name}.int8"], [f"{name}.integers"], to=1),
            helper.make_node("Mul", [f"{name}.integers", f"{name}.scale"], [name]),
        ]
    kept = list(graph.node)
    del graph.node[:], graph.initializer[:]
    graph.initializer.extend(initialisers)
    graph.node.extend(nodes + kept)


def _as_int8(weight: np.ndarray) -> tuple[np.ndarray, np.ndarray] | None:
    """(integers int8, scale float32) with integers * scale == weight exactly, or None.

    The scale runs along axis 0 (output channels of a torch weight). It is the smallest gap between
    the channel's distinct values, which is the original step as soon as two neighbours occur.
    """
    if weight.ndim != 2 or weight.dtype != np.float32:
        return None
    scale = np.array([[_step(row)] for row in weight], dtype=np.float32)
    integers = np.rint(weight / scale)
    if np.abs(integers).max() > 127:
        return None
    integers = integers.astype(np.int8)
    if not np.array_equal(integers.astype(np.float32) * scale, weight):
        return None
    return integers, scale


def _step(row: np.ndarray) -> np.float32:
    """The float32 step s for which every value of the row is an exact float32 multiple n * s."""
    top = np.abs(row).max()
    if top == 0:
        return np.float32(1)
    # The largest magnitude is n * s for some n in 1..127; the true s is the first that fits all.
    for n in range(127, 0, -1):
        for step in _neighbours(np.float32(top / np.float32(n))):
            if np.array_equal(np.rint(row / step).astype(np.float32) * step, row):
                return step
    return np.float32(top / 127)


def _neighbours(value: np.float32) -> tuple[np.float32, ...]:
    up, down = np.float32(np.inf), np.float32(-np.inf)
    return value, np.nextafter(value, up), np.nextafter(value, down)


def check_export(
    model: OmniAID, path: Path, *, batches: tuple[int, ...] = (1, 2, 7), tolerance: float = 1e-4
) -> float:
    """The largest difference in probability or gates between torch and the exported file.

    Args:
        model: what was exported.
        path: the ONNX file.
        batches: batch sizes tried, on seeded random pixels.
        tolerance: allowed difference.

    Raises:
        ModelError: the difference is larger than `tolerance`.
    """
    import onnxruntime

    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    size, worst = model.trunk.config.image_px, 0.0
    rng = np.random.default_rng(0)
    for batch in batches:
        pixels = rng.integers(0, 256, (batch, 3, size, size), dtype=np.uint8)
        with torch.no_grad():
            expected = _Scored(model.eval())(torch.from_numpy(pixels))
        probability, _, gates = session.run(["probability", "logits", "gates"], {"pixels": pixels})
        for ours, theirs in ((expected[0], probability), (expected[2], gates)):
            worst = max(worst, float(np.abs(ours.numpy() - theirs).max()))
    if worst > tolerance:
        raise ModelError(f"{path.name} differs from torch by {worst:.2e}; at most {tolerance:.0e} is allowed")
    return worst
