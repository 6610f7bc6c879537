import hashlib
import json

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from detector.errors import ModelError
from detector.runtime import Runtime, default_model_path

CARD = {
    "name": "tiny",
    "version": "0",
    "experts": ["human", "artifact"],
    "self_test": {"why_none": "its answers are means of the pixels, the same for both classes"},
    "preprocessing": {"size_px": 16, "views": ["global"]},
    "temperature": 1.0,
    "thresholds": {
        "ai": 0.9,
        "real": 0.1,
        "false_positive_rate": 0,
        "false_negative_rate": 0,
        "how": "by hand",
    },
}


def tiny_model(
    folder,
    *,
    experts=2,
    size_px=16,
    dtype=TensorProto.UINT8,
    batch="batch",
    names=("logits", "gates"),
    factor=1.0,
    slope=0.0,
    card=None,
):
    """A real ONNX file of the product's signature whose answers are means of the pixels."""
    weights = [np.full((3, 2), factor, np.float32), np.full((3, experts), factor, np.float32)]
    weights[0][:, 1] *= 1 + slope
    nodes = [
        helper.make_node("Cast", ["pixels"], ["x"], to=TensorProto.FLOAT),
        helper.make_node("ReduceMean", ["x"], ["mean"], axes=[2, 3], keepdims=0),
        helper.make_node("MatMul", ["mean", "w0"], [names[0]]),
        helper.make_node("MatMul", ["mean", "w1"], [names[1]]),
    ]
    graph = helper.make_graph(
        nodes,
        "tiny",
        [helper.make_tensor_value_info("pixels", dtype, [batch, 3, size_px, size_px])],
        [
            helper.make_tensor_value_info(names[0], TensorProto.FLOAT, [batch, 2]),
            helper.make_tensor_value_info(names[1], TensorProto.FLOAT, [batch, experts]),
        ],
        [onnx.numpy_helper.from_array(w, f"w{i}") for i, w in enumerate(weights)],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    path = folder / "tiny.onnx"
    path.write_bytes(model.SerializeToString())
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    path.with_suffix(".json").write_text(json.dumps({**CARD, "sha256": digest, **(card or {})}))
    return path


def refusal(path):
    with pytest.raises(ModelError) as caught:
        Runtime(path, threads=1)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_model_of_the_right_signature_runs(tmp_path):
    runtime = Runtime(tiny_model(tmp_path), threads=1)
    views = np.stack([np.full((3, 16, 16), value, np.uint8) for value in (0, 1, 255)])
    scores = runtime.score_views(views)
    assert scores.logits.tolist() == [[0, 0], [3, 3], [765, 765]]
    assert scores.gates.shape == (3, 2) and scores.gates.dtype == np.float32


def test_a_missing_model(tmp_path):
    assert refusal(tmp_path / "none.onnx").endswith("none.onnx does not exist")


def test_a_missing_card(tmp_path):
    path = tiny_model(tmp_path)
    path.with_suffix(".json").unlink()
    assert "needs its card" in refusal(path)


def test_a_damaged_model(tmp_path):
    path = tiny_model(tmp_path)
    path.write_bytes(path.read_bytes()[:-1])
    assert "the file is damaged or the card belongs to another model" in refusal(path)


def test_a_file_that_is_no_model(tmp_path):
    path = tmp_path / "text.onnx"
    path.write_text("hello")
    digest = hashlib.sha256(b"hello").hexdigest()
    path.with_suffix(".json").write_text(json.dumps({**CARD, "sha256": digest}))
    assert "cannot be loaded as an ONNX model" in refusal(path)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"experts": 3}, r"'gates' as tensor\(float\) \(batch, 3\), but its card \(2 experts"),
        ({"card": {"experts": ["a", "b", "c"]}}, r"but its card \(3 experts"),
        ({"size_px": 32}, r"'pixels' as tensor\(uint8\) \(batch, 3, 32, 32\)"),
        ({"dtype": TensorProto.FLOAT}, r"'pixels' as tensor\(float\)"),
        ({"batch": 1}, r"'pixels' as tensor\(uint8\) \(1, 3, 16, 16\)"),
        ({"names": ("logits", "weights")}, "no output 'gates'; it has: logits, pixels, weights"),
    ],
    ids=["experts", "card", "size", "dtype", "fixed batch", "names"],
)
def test_a_model_that_is_not_what_its_card_says(tmp_path, options, reason):
    path = tiny_model(tmp_path, **options)
    with pytest.raises(ModelError, match=reason):
        Runtime(path, threads=1)


@pytest.mark.parametrize("factor", [np.nan, np.inf])
def test_values_that_are_not_finite_are_refused(tmp_path, factor):
    runtime = Runtime(tiny_model(tmp_path, factor=factor), threads=1)
    with pytest.raises(ModelError, match="not finite"):
        runtime.score_views(np.ones((1, 3, 16, 16), np.uint8))


def test_the_shipped_model_does_not_depend_on_the_batch(detector):
    card = detector.card
    size = card.preprocessing.size_px
    views = np.random.default_rng(0).integers(0, 256, (7, 3, size, size), dtype=np.uint8)
    views[3:] = views[3:] // 8 + np.arange(size, dtype=np.uint8) // 2  # some smooth ones among the noise
    together = detector.runtime.score_views(views)
    alone = [detector.runtime.score_views(view[None]) for view in views]
    assert np.abs(together.logits - np.concatenate([s.logits for s in alone])).max() <= 1e-4
    assert np.abs(together.gates - np.concatenate([s.gates for s in alone])).max() <= 1e-4


def test_the_shipped_gates_are_a_routing(detector):
    size = detector.card.preprocessing.size_px
    gates = detector.runtime.score_views(np.zeros((1, 3, size, size), np.uint8)).gates[0]
    assert detector.card.experts[-1] == "artifact" and gates[-1] == pytest.approx(1.0)
    assert gates[:-1].sum() == pytest.approx(1.0, abs=1e-5) and (gates >= 0).all()


def test_the_shipped_card_belongs_to_the_shipped_model():
    card = json.loads(default_model_path().with_suffix(".json").read_text())
    assert card["sha256"] == hashlib.sha256(default_model_path().read_bytes()).hexdigest()
