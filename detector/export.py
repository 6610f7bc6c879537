"""ONNX export of a trained model's scoring graph: small on disk, the same numbers as torch."""

from pathlib import Path

from detector.exporting.checks import BATCHES, check_against_torch
from detector.exporting.delivery import Wanted, export_checkpoint
from detector.exporting.errors import ExportError
from detector.exporting.files import OPSET, partial_file, trace
from detector.exporting.graphs import GRAPHS, view_model
from detector.exporting.storage import COMPRESS_FROM, _as_int8, compress_weights
from detector.model import OmniAID

__all__ = [
    "COMPRESS_FROM",
    "GRAPHS",
    "OPSET",
    "ExportError",
    "Wanted",
    "_as_int8",
    "check_export",
    "compress_weights",
    "export_checkpoint",
    "export_onnx",
]


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

    with partial_file(path) as partial:
        traced = trace(view_model(model), partial)
        compress_weights(traced.graph)
        onnx.save(traced, str(partial))


def check_export(
    model: OmniAID, path: Path, *, batches: tuple[int, ...] = BATCHES, tolerance: float = 1e-4
) -> float:
    """The largest difference in probability or gates between torch and the exported file.

    Args:
        model: what was exported.
        path: the ONNX file.
        batches: batch sizes tried, on seeded random pixels.
        tolerance: allowed difference.

    Raises:
        ExportError: the difference is larger than `tolerance`.
    """
    return check_against_torch(view_model(model), path, tolerance, batches)
