"""What a file must show before it ships: the same numbers as torch, or the same verdicts as float32."""

from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from detector.exporting.errors import ExportError
from detector.exporting.graphs import View
from detector.exporting.pictures import Pictures, Verdicts

BATCHES = (1, 2, 7)
# Largest difference in a probability between torch and the file, by precision.
TOLERANCES = {"fp32": 1e-4, "fp16": 5e-3}
MOST_AUROC_LOSS, MOST_FLIPS = 0.002, 0.005
BATCH = 8
# Output -> whether it holds logits, which are compared as probabilities.
COMPARED = {"probability": False, "gates": False, "patch_logits": True}


def open_session(path: Path) -> Any:
    """An ONNX Runtime session on the CPU."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def compare(view: View, path: Path, batches: Sequence[int] = BATCHES) -> dict[str, float]:
    """The largest difference to torch by output, on seeded random pixels.

    Args:
        view: what was exported.
        path: the ONNX file.
        batches: batch sizes tried.
    """
    session, worst = open_session(path), {name: 0.0 for name in COMPARED if name in view.graph.outputs}
    for batch in batches:
        arguments = view.example(batch, seed=batch)
        with torch.no_grad():
            expected = dict(zip(view.graph.outputs, view.module(*arguments), strict=True))
        named = {name: value.numpy() for name, value in zip(view.graph.inputs, arguments, strict=True)}
        found = dict(zip(view.graph.outputs, session.run(list(view.graph.outputs), named), strict=True))
        for name in worst:
            mine, theirs = expected[name], torch.from_numpy(found[name])
            if COMPARED[name]:
                mine, theirs = mine.softmax(dim=-1), theirs.softmax(dim=-1)
            worst[name] = max(worst[name], float((mine - theirs).abs().max()))
    return worst


def check_against_torch(view: View, path: Path, tolerance: float, batches: Sequence[int] = BATCHES) -> float:
    """The largest difference in a probability or a gate between torch and the file.

    Raises:
        ExportError: it is larger than `tolerance`.
    """
    worst = max(compare(view, path, batches).values())
    # Not ">": a difference that is no number must not pass.
    if not worst <= tolerance:
        raise ExportError(
            f"{path.name} differs from torch by {worst:.2e}; at most {tolerance:.0e} is allowed"
        )
    return worst


class Loss(NamedTuple):
    """What int8 costs on labelled pictures.

    Attributes:
        auroc: area under the ROC curve of the float32 file.
        auroc_int8: of the int8 file.
        flips: share of pictures with another verdict.
        pictures: how many were scored.
        unreadable: how many could not be.
    """

    auroc: float
    auroc_int8: float
    flips: float
    pictures: int
    unreadable: int

    @property
    def passes(self) -> bool:
        """Whether the int8 file may ship."""
        return self.auroc - self.auroc_int8 <= MOST_AUROC_LOSS and self.flips <= MOST_FLIPS


def measure_loss(reference: Path, quantised: Path, pictures: Pictures, verdicts: Verdicts) -> Loss:
    """What the int8 file loses against the float32 file of the same model.

    Args:
        reference: float32 file with input `pixels` and output `logits`.
        quantised: int8 file of the same graph.
        pictures: of both classes.
        verdicts: how margins, the mean over a picture's views, become verdicts.

    Raises:
        ExportError: there are no pictures of one class.
    """
    from sklearn.metrics import roc_auc_score

    sessions, waiting = [open_session(path) for path in (reference, quantised)], iter(pictures)
    margins: list[list[NDArray[np.float32]]] = [[], []]
    labels: list[int] = []
    while chunk := list(islice(waiting, BATCH)):
        views = np.concatenate([picture.views for picture in chunk])
        labels += [picture.label for picture in chunk]
        for session, kept in zip(sessions, margins, strict=True):
            logits = session.run(["logits"], {"pixels": views})[0]
            kept.append((logits[:, 1] - logits[:, 0]).reshape(len(chunk), -1).mean(axis=1))
    if len(set(labels)) < 2:
        given = f"{len(labels)} pictures of {len(set(labels))} classes"
        raise ExportError(f"{given} are given to judge int8 by; real and AI ones are needed")
    before, after = (np.concatenate(kept).astype(np.float64) for kept in margins)
    return Loss(
        auroc=float(roc_auc_score(labels, before)),
        auroc_int8=float(roc_auc_score(labels, after)),
        flips=float((verdicts.of(before) != verdicts.of(after)).mean()),
        pictures=len(labels),
        unreadable=pictures.unreadable,
    )


def check_loss(loss: Loss, name: str) -> None:
    """Make sure that an int8 file may ship.

    Raises:
        ExportError: it loses too much; the message tells how much.
    """
    if not loss.passes:
        raise ExportError(
            f"{name} does not ship as int8: AUROC {loss.auroc:.4f} becomes {loss.auroc_int8:.4f} (a loss of "
            f"{MOST_AUROC_LOSS} is allowed) and {loss.flips:.2%} of {loss.pictures} verdicts flip "
            f"({MOST_FLIPS:.1%} are allowed)"
        )
