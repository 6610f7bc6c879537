"""ONNX files: written whole or not at all."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import Any

import torch

from detector.exporting.graphs import View

OPSET = 18
MOST_VIEWS = 4096


@contextmanager
def partial_file(path: Path) -> Iterator[Path]:
    """Yields the name to write under; the file takes `path`'s name at the end, and vanishes on an error."""
    partial = path.with_name(f"{path.stem}.partial{path.suffix}")
    try:
        yield partial
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def trace(view: View, path: Path) -> Any:
    """The view as an ONNX model with a free batch size and float32 weights, as torch writes it.

    Args:
        view: what to trace.
        path: of a file that is written and overwritten on the way.
    """
    import onnx

    batch = torch.export.Dim("batch", min=1, max=MOST_VIEWS)
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            view.module,
            view.example(2, seed=0),
            str(path),
            input_names=list(view.graph.inputs),
            output_names=list(view.graph.outputs),
            dynamic_shapes={name: {0: batch} for name in view.graph.inputs},
            opset_version=OPSET,
            dynamo=True,
            external_data=False,
            optimize=False,
            verbose=False,
        )
    model = onnx.load(str(path))
    strip_traces(model)
    return model


def strip_traces(model: Any) -> None:
    """Take out, in place, the notes on where in the source a node came from, with paths of this machine."""
    graph = model.graph
    named = (graph.node, graph.initializer, graph.value_info, graph.input, graph.output)
    for part in (model, graph, *chain.from_iterable(named)):
        part.ClearField("metadata_props")
        part.ClearField("doc_string")
