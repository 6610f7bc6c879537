"""One tiny model whose experts have moved, and its graphs, each traced once for all tests."""

from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import onnx
import torch

from detector.exporting.files import trace
from detector.exporting.graphs import View, view_model
from detector.model import OmniAID
from tests.detector.tiny import tiny_model

PINNED = (0.2, 0.8, 0.0, 0.0, -0.1, 1.0)
CHANGES = {"depth": 2, "taps": (1, 2)}


@torch.no_grad()
def move(model: OmniAID) -> OmniAID:
    """The model with every expert in a place of its own, as after training."""
    generator = torch.Generator().manual_seed(1)
    for layer in model.expert_layers():
        for factor in (layer.u, layer.v):
            factor += 0.2 * torch.randn(factor.shape, generator=generator)
    return model.eval()


@cache
def moved_model() -> OmniAID:
    """The model of all exports; leave it as it is."""
    return move(tiny_model(**CHANGES))


@cache
def traced_bytes(graph: str) -> bytes:
    with TemporaryDirectory() as folder:
        return trace(view_of(graph), Path(folder) / "traced.onnx").SerializeToString()


def view_of(graph: str) -> View:
    return view_model(moved_model(), graph, PINNED if graph == "folded" else None)


def traced(graph: str) -> tuple[View, onnx.ModelProto]:
    """The graph's view, and its ONNX model to do with as one likes."""
    return view_of(graph), onnx.load_model_from_string(traced_bytes(graph))


def saved(graph: str, path: Path) -> Path:
    path.write_bytes(traced_bytes(graph))
    return path


def noise(pictures: int, side: int, seed: int = 0) -> np.ndarray:
    """(N, 3, S, S) uint8 of random pixels."""
    return np.random.default_rng(seed).integers(0, 256, (pictures, 3, side, side), dtype=np.uint8)
