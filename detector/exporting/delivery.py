"""One checkpoint, one graph, one precision: an ONNX file and its card, both checked, or neither."""

import copy
import hashlib
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from detector.checkpoint import load_checkpoint, read_checkpoint_card
from detector.exporting.cards import Exported, Scoring, make_card, read_scoring
from detector.exporting.checks import TOLERANCES, check_loss, compare, measure_loss
from detector.exporting.errors import ExportError
from detector.exporting.files import partial_file, trace
from detector.exporting.graphs import GRAPHS, View, view_model
from detector.exporting.pictures import open_labelled
from detector.exporting.quantisation import quantise
from detector.exporting.sharing import share_weights
from detector.exporting.storage import compress_weights, halve_weights

Precision = Literal["fp32", "fp16", "int8"]
STORES: dict[str, Callable[[Any], None]] = {"fp32": compress_weights, "fp16": halve_weights}


@dataclass(frozen=True)
class Wanted:
    """What to export.

    Attributes:
        graph: a name of GRAPHS.
        precision: `fp32` and `fp16` compute in float32 and differ in how weights are stored; `int8`
            computes in int8.
        gates: what `folded` folds in.
        evaluate: labelled pictures that int8 is judged on.
        share: an ONNX file in the same folder, of the same model and precision, whose weights are used.
    """

    graph: str = "score"
    precision: Precision = "fp32"
    gates: Sequence[float] | None = None
    evaluate: Path | None = None
    share: Path | None = None


def export_checkpoint(folder: Path, out: Path, wanted: Wanted | None = None) -> Exported:
    """What was measured on the ONNX file now at `out`, whose card lies beside it.

    Args:
        folder: a checkpoint as `omniaid import` writes it.
        out: the `.onnx` file to write; what is there is replaced when all checks have passed.
        wanted: what to export.

    Raises:
        ExportError: what is wanted does not exist, or the file does not pass its check.
        ModelError: the checkpoint cannot be read, or the gates do not fit it.
    """
    asked = wanted or Wanted()
    _check_wanted(asked, out)
    checkpoint, model = read_checkpoint_card(folder), load_checkpoint(folder)
    scoring = read_scoring(checkpoint, model)
    view = view_model(model, asked.graph, asked.gates)
    out.parent.mkdir(parents=True, exist_ok=True)
    with ExitStack() as files:
        card, path = (files.enter_context(partial_file(file)) for file in (out.with_suffix(".json"), out))
        exported = _write(view, path, asked, scoring)
        digest = _sha256(path)
        written = make_card(out.stem, digest, checkpoint, scoring, exported)
        card.write_text(written.model_dump_json(indent=1) + "\n", "utf-8")
    return exported


def _check_wanted(asked: Wanted, out: Path) -> None:
    """Refuse what cannot be done before anything is read."""
    if out.suffix != ".onnx":
        raise ExportError(f"{out} does not end in .onnx")
    if asked.graph not in GRAPHS:
        raise ExportError(f"graph {asked.graph!r} does not exist; choose one of: {', '.join(GRAPHS)}")
    if asked.precision not in get_args(Precision):
        allowed = ", ".join(get_args(Precision))
        raise ExportError(f"precision {asked.precision!r} does not exist; choose one of: {allowed}")
    if asked.precision == "int8":
        _check_int8_wanted(asked)
    if asked.share is not None and asked.share.resolve().parent != out.resolve().parent:
        raise ExportError(f"{asked.share} must lie in the folder of {out}; an ONNX file reads no other")


def _check_int8_wanted(asked: Wanted) -> None:
    if not GRAPHS[asked.graph].scores:
        able = ", ".join(name for name, graph in GRAPHS.items() if graph.scores)
        raise ExportError(f"graph {asked.graph} gives no verdict to judge int8 by; int8 is for: {able}")
    if asked.evaluate is None:
        raise ExportError("int8 needs labelled pictures to be judged on; name them with --evaluate")
    if asked.share is not None:
        raise ExportError("int8 holds its own weights; leave the file to share out")


def _write(view: View, path: Path, asked: Wanted, scoring: Scoring) -> Exported:
    """What was measured on the file now at `path`."""
    traced = trace(view, path)
    if asked.precision == "int8":
        return _write_int8(view, traced, path, asked, scoring)
    import onnx

    STORES[asked.precision](traced.graph)
    if asked.share is not None:
        share_weights(traced, asked.share)
    onnx.save(traced, str(path))
    differences = compare(view, path)
    _check(differences, asked)
    return Exported(
        asked.graph,
        asked.precision,
        _fixed(asked),
        differences,
        weights_in=None if asked.share is None else asked.share.name,
        weights_sha256=None if asked.share is None else _sha256(asked.share),
    )


def _check(differences: dict[str, float], asked: Wanted) -> None:
    """Make sure that rounding is all that differs.

    A rounded weight may turn a choice between two experts that are as good as each other, which is seen in
    a gate and not in the probability; so with a probability at hand that alone decides on float16.
    """
    tolerance, by = TOLERANCES[asked.precision], dict(differences)
    if asked.precision == "fp16" and "probability" in by:
        by.pop("gates", None)
    worst = max(by, key=lambda name: by[name])
    if not by[worst] <= tolerance:
        raise ExportError(
            f"graph {asked.graph} in {asked.precision} differs from torch by {by[worst]:.2e} in {worst}; "
            f"at most {tolerance:.0e} is allowed"
        )


def _write_int8(view: View, traced: Any, path: Path, asked: Wanted, scoring: Scoring) -> Exported:
    import onnx

    assert asked.evaluate is not None
    pictures = open_labelled(asked.evaluate, scoring.preprocessing)
    verdicts = pictures.verdicts or scoring.verdicts
    with ExitStack() as files:
        plain = path.with_suffix(".fp32.onnx")
        files.callback(plain.unlink, missing_ok=True)
        onnx.save(traced, str(plain))
        differences = compare(view, plain)
        _check(differences, Wanted(asked.graph, "fp32"))
        quantise(copy.deepcopy(traced), path)
        loss = measure_loss(plain, path, pictures, verdicts)
    check_loss(loss, f"graph {asked.graph}")
    return Exported(asked.graph, asked.precision, _fixed(asked), compare(view, path), loss._asdict())


def _fixed(asked: Wanted) -> tuple[float, ...] | None:
    return None if asked.gates is None else tuple(asked.gates)


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
