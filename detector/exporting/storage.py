"""How weights are stored: exactly as int8 where they are of that form, or rounded to float16."""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

# Smaller tensors are not worth an extra node.
COMPRESS_FROM = 100_000
HALVE_FROM = 2048
# ONNX's number of the type.
FLOAT = 1
# A tensor's new initialisers and the nodes that make the old one of them; None where it stays as it is.
Stored = tuple[list[Any], list[Any]] | None


def compress_weights(graph: Any) -> None:
    """Replace, in place, every large initialiser that is exactly int8 per output channel."""
    _replace(graph, lambda item: _exact(item) if np.prod(item.dims) >= COMPRESS_FROM else None)


def halve_weights(graph: Any) -> None:
    """Replace, in place, initialisers by float16 ones, and those that are exactly int8 by int8.

    A runtime turns them into float32 when it folds constants at load, so computing is as before.
    A tensor with a value that float16 cannot hold is left alone.
    """

    def store(item: Any) -> Stored:
        if np.prod(item.dims) < HALVE_FROM:
            return None
        return (_exact(item) if np.prod(item.dims) >= COMPRESS_FROM else None) or _half(item)

    _replace(graph, store)


def _replace(graph: Any, store: Callable[[Any], Stored]) -> None:
    nodes, initialisers = [], []
    for item in graph.initializer:
        stored = store(item)
        initialisers += [item] if stored is None else stored[0]
        nodes += [] if stored is None else stored[1]
    kept = list(graph.node)
    del graph.node[:], graph.initializer[:]
    graph.initializer.extend(initialisers)
    graph.node.extend(nodes + kept)


def _exact(item: Any) -> Stored:
    from onnx import helper, numpy_helper

    stored, name = _as_int8(numpy_helper.to_array(item)), item.name
    if stored is None:
        return None
    integers, scale = stored
    return (
        [
            numpy_helper.from_array(integers, f"{name}.int8"),
            numpy_helper.from_array(scale, f"{name}.scale"),
        ],
        [
            helper.make_node("Cast", [f"{name}.int8"], [f"{name}.integers"], to=FLOAT),
            helper.make_node("Mul", [f"{name}.integers", f"{name}.scale"], [name]),
        ],
    )


def _half(item: Any) -> Stored:
    from onnx import helper, numpy_helper

    weight, name = numpy_helper.to_array(item), item.name
    if weight.dtype != np.float32 or np.abs(weight).max() > np.finfo(np.float16).max:
        return None
    half = numpy_helper.from_array(weight.astype(np.float16), f"{name}.half")
    return [half], [helper.make_node("Cast", [f"{name}.half"], [name], to=FLOAT)]


def _as_int8(weight: NDArray[Any]) -> tuple[NDArray[np.int8], NDArray[np.float32]] | None:
    """(integers int8, scale float32) with integers * scale == weight exactly, or None.

    The scale runs along axis 0 (output channels of a torch weight). It is the smallest gap between
    the channel's distinct values, which is the original step as soon as two neighbours occur.
    """
    if weight.ndim != 2 or weight.dtype != np.float32:
        return None
    scale = np.empty((len(weight), 1), dtype=np.float32)
    for place, row in enumerate(weight):
        step = _step(row)
        if step is None:
            return None
        scale[place] = step
    integers = np.rint(weight / scale)
    if np.abs(integers).max() > 127:
        return None
    integers = integers.astype(np.int8)
    if not np.array_equal(integers.astype(np.float32) * scale, weight):
        return None
    return integers, scale


def _step(row: NDArray[Any]) -> np.float32 | None:
    """The float32 step s for which every value of the row is an exact float32 multiple n * s, if any."""
    top = np.abs(row).max()
    if top == 0:
        return np.float32(1)
    # Weights that were never rounded show it by their number of values, long before every step is tried.
    if len(np.unique(np.abs(row))) > 128:
        return None
    # The largest magnitude is n * s for some n in 1..127; the true s is the first that fits all.
    for n in range(127, 0, -1):
        for step in _neighbours(np.float32(top / np.float32(n))):
            if np.array_equal(np.rint(row / step).astype(np.float32) * step, row):
                return step
    return None


def _neighbours(value: np.float32) -> tuple[np.float32, ...]:
    up, down = np.float32(np.inf), np.float32(-np.inf)
    return value, np.nextafter(value, up), np.nextafter(value, down)
