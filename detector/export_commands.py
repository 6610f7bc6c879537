"""The command that exports checkpoints to ONNX; torch is imported when it runs, never before."""

import sys
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from detector.errors import DetectorError

if TYPE_CHECKING:
    from detector.exporting.cards import Exported


class GraphName(StrEnum):
    """What the file computes."""

    SCORE = "score"
    PATCHES = "patches"
    ROUTER = "router"
    GATES = "gates"
    FOLDED = "folded"


class PrecisionName(StrEnum):
    """How the file stores its weights, and with int8 also computes."""

    FP32 = "fp32"
    FP16 = "fp16"
    INT8 = "int8"


def register(app: typer.Typer) -> None:
    """Add the export command to `app`."""
    app.command("export")(export)


def export(
    checkpoint: Annotated[
        Path,
        typer.Argument(
            metavar="CHECKPOINT_FOLDER", help="model.safetensors and model.json, as `omniaid import` writes."
        ),
    ],
    out: Annotated[
        Path, typer.Option(metavar="FILE.onnx", help="The file to write; its card is FILE.json beside it.")
    ],
    graph: Annotated[
        GraphName,
        typer.Option(
            help="score: what scanning needs; patches: also the logits of every patch; router: pictures to "
            "gates; gates: pictures and gates to logits; folded: a plain ViT with fixed gates."
        ),
    ] = GraphName.SCORE,
    precision: Annotated[
        PrecisionName,
        typer.Option(
            help="fp32; fp16: stored as float16, computed in float32; int8: dense layers computed in int8."
        ),
    ] = PrecisionName.FP32,
    gates: Annotated[
        str | None,
        typer.Option(
            metavar="G,G,...", help="For folded: one number per expert, the artifact expert's last."
        ),
    ] = None,
    evaluate: Annotated[
        Path | None,
        typer.Option(
            metavar="DATA",
            help="For int8: pictures to judge it on; an .npz file with views, labels and thresholds, or a "
            "folder that `omniaid eval` takes.",
        ),
    ] = None,
    share: Annotated[
        Path | None,
        typer.Option(
            metavar="SCORE.onnx",
            help="Use the weights in this file of the same folder and precision instead of holding them.",
        ),
    ] = None,
) -> None:
    """Write a checkpoint as ONNX with a free batch size, and its card. What fails its check is not written.

    The file must give torch's probabilities to 1e-4 (fp32) or 5e-3 (fp16); int8 may lose 0.002 AUROC and
    turn 0.5 % of the verdicts.
    """
    try:
        from detector.checkpoint import read_checkpoint_card
        from detector.exporting.delivery import Wanted, export_checkpoint
        from detector.gates import parse_gates
    except ImportError as error:
        raise DetectorError(f"exporting needs {error.name}; run: pip install 'omniaid[train]'") from error

    names = read_checkpoint_card(checkpoint).model.expert_names
    fixed = None if gates is None else parse_gates(gates, names)
    wanted = Wanted(graph.value, precision.value, fixed, evaluate, share)
    print(describe(export_checkpoint(checkpoint, out, wanted)), file=sys.stderr)
    print(out)


def describe(exported: "Exported") -> str:
    """What was measured, in one line."""
    against = ", ".join(f"{name} {value:.1e}" for name, value in exported.onnx_against_torch.items())
    line = f"{exported.graph} in {exported.precision}; largest difference to torch: {against}"
    if exported.int8 is None:
        return line
    loss = exported.int8
    return (
        f"{line}; AUROC {loss['auroc']:.4f} -> {loss['auroc_int8']:.4f}, {loss['flips']:.2%} of "
        f"{loss['pictures']:.0f} verdicts flip, {loss['unreadable']:.0f} unreadable"
    )
