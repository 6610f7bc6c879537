"""int8 arithmetic: the trunk's dense layers as integer matrix products, the rest in float32."""

import re
from pathlib import Path
from typing import Any

DENSE = re.compile(r"trunk\.blocks\.\d+\.(attention|mlp)\.\w+\.weight")
# What onnxruntime looks for before it asks for a preparation that `fold_transposes` has done.
PREPARED = ("onnx.quant.pre_process", "onnxruntime.quant")


def quantise(model: Any, path: Path) -> None:
    """Write the model with its trunk's dense layers in int8: weights per output channel, inputs on the fly.

    Experts, router, head, embeddings and norms stay in float32: they are small, and the signal is in them.
    Weights keep 7 of the 8 bits, because processors without VNNI add two products in 16 bits.

    Args:
        model: ONNX model as `trace` gives it; changed in place.
        path: the file to write.
    """
    from onnxruntime.quantization import QuantType, quantize_dynamic

    dense = fold_transposes(model.graph)
    nodes = [node.name for node in model.graph.node if node.op_type == "MatMul" and node.input[1] in dense]
    key, value = PREPARED
    model.metadata_props.add(key=key, value=value)
    quantize_dynamic(
        model,
        path,
        op_types_to_quantize=["MatMul"],
        nodes_to_quantize=nodes,
        per_channel=True,
        reduce_range=True,
        weight_type=QuantType.QInt8,
    )


def fold_transposes(graph: Any) -> set[str]:
    """Transpose, in place, the trunk's dense weights that the graph transposes; the names they then have."""
    from onnx import numpy_helper

    weights = {item.name: item for item in graph.initializer if DENSE.search(item.name)}
    found = [node for node in graph.node if node.op_type == "Transpose" and node.input[0] in weights]
    renamed = {node.output[0]: f"{node.input[0]}.transposed" for node in found}
    for name in sorted({node.input[0] for node in found}):
        turned = numpy_helper.to_array(weights[name]).T.copy()
        graph.initializer.append(numpy_helper.from_array(turned, f"{name}.transposed"))
    for node in found:
        graph.node.remove(node)
    used = set()
    for node in graph.node:
        node.input[:] = [renamed.get(name, name) for name in node.input]
        used.update(node.input)
    for item in [item for name, item in weights.items() if name not in used]:
        graph.initializer.remove(item)
    return set(renamed.values())
