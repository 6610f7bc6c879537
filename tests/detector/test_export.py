"""The scoring graph: the same numbers as torch, at any batch size, from a small file."""

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import torch

from detector import export
from detector.errors import ModelError
from detector.export import _as_int8, check_export, compress_weights, export_onnx
from tests.detector.exported import CHANGES, moved_model, noise, saved, traced
from tests.detector.tiny import SIZE, tiny_model


@pytest.fixture
def quick(monkeypatch):
    """The test model's graph is traced once for all tests: tracing is what takes long."""
    monkeypatch.setattr(export, "trace", lambda *_: traced("score")[1])


@pytest.fixture
def exported(quick, tmp_path_factory):
    path = tmp_path_factory.mktemp("export") / "model.onnx"
    export_onnx(moved_model(), path)
    return moved_model(), path


def test_probability_logits_and_gates_equal_torch_at_batch_1_2_and_7(exported):
    model, path = exported
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    for batch in (1, 2, 7):
        pixels = noise(batch, SIZE, seed=batch)
        probability, logits, gates = session.run(["probability", "logits", "gates"], {"pixels": pixels})
        with torch.no_grad():
            expected = model(torch.from_numpy(pixels))
        assert probability.shape == (batch,)
        assert np.abs(probability - expected.logits.softmax(-1)[:, 1].numpy()).max() <= 1e-4
        assert np.abs(logits - expected.logits.numpy()).max() <= 1e-3
        assert np.abs(gates - expected.gates.numpy()).max() <= 1e-4


def test_check_accepts_the_export_and_refuses_another_model(exported):
    model, path = exported
    assert check_export(model, path) <= 1e-4
    other = tiny_model(**CHANGES)
    with torch.no_grad():
        other.head.linear.bias[1] += 1
    with pytest.raises(ModelError, match=r"differs from torch by .*; at most 1e-04 is allowed"):
        check_export(other, path)


def test_no_path_of_this_machine_is_in_the_file(exported):
    assert b".py" not in exported[1].read_bytes()


def test_nothing_half_written_stays(exported, quick, tmp_path, monkeypatch):
    assert [p.name for p in exported[1].parent.iterdir()] == ["model.onnx"]
    path = saved("score", tmp_path / "model.onnx")
    before = path.read_bytes()

    def fill_the_disk(_, partial):
        Path(partial).write_bytes(b"half of it")
        raise OSError("disk full")

    monkeypatch.setattr(onnx, "save", fill_the_disk)
    with pytest.raises(OSError, match="disk full"):
        export_onnx(moved_model(), path)
    assert [p.name for p in tmp_path.iterdir()] == ["model.onnx"]
    assert path.read_bytes() == before


def int8_weight(rows: int, columns: int, seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    integers = rng.integers(-127, 128, (rows, columns)).astype(np.int8)
    return integers.astype(np.float32) * rng.uniform(1e-4, 1e-2, (rows, 1)).astype(np.float32)


def test_int8_weights_are_stored_without_loss():
    weight = int8_weight(20, 300, seed=0)
    weight[3] = 0
    integers, scale = _as_int8(weight)
    assert integers.dtype == np.int8
    assert np.array_equal(integers.astype(np.float32) * scale, weight)


def test_float_weights_are_left_alone():
    assert _as_int8(np.random.default_rng(0).standard_normal((20, 300)).astype(np.float32)) is None


def one_product(weight: np.ndarray) -> onnx.ModelProto:
    rows, columns = weight.shape
    graph = onnx.helper.make_graph(
        [onnx.helper.make_node("MatMul", ["x", "w"], ["y"])],
        "one",
        [onnx.helper.make_tensor_value_info("x", 1, ["b", rows])],
        [onnx.helper.make_tensor_value_info("y", 1, ["b", columns])],
        [onnx.numpy_helper.from_array(weight, "w")],
    )
    return onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 18)], ir_version=9)


def run_product(model: onnx.ModelProto, x: np.ndarray) -> np.ndarray:
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, {"x": x})[0]


def test_a_compressed_graph_gives_the_same_bits():
    plain = one_product(int8_weight(400, 400, seed=1))
    small = onnx.ModelProto()
    small.CopyFrom(plain)
    compress_weights(small.graph)
    assert len(small.SerializeToString()) < 0.3 * len(plain.SerializeToString())
    x = np.random.default_rng(2).standard_normal((3, 400), dtype=np.float32)
    assert np.array_equal(run_product(plain, x), run_product(small, x))
