"""float16 and int8: what they cost, and that what costs too much is not written."""

import numpy as np
import onnx
import pytest

from detector.calibration import Calibration
from detector.exporting import checks, delivery
from detector.exporting.checks import Loss, check_loss, compare, measure_loss, open_session
from detector.exporting.errors import ExportError
from detector.exporting.pictures import Labelled, Pictures, Verdicts, open_labelled
from detector.exporting.quantisation import quantise
from detector.exporting.storage import halve_weights
from detector.preprocess import Preprocessing
from tests.detector.exported import noise, saved, traced
from tests.detector.test_export import int8_weight, one_product, run_product
from tests.detector.tiny import SIZE

NUMBER = 24


def test_float16_halves_the_file_and_stays_within_its_tolerance(tmp_path):
    view, model = traced("score")
    halve_weights(model.graph)
    onnx.save(model, str(tmp_path / "half.onnx"))
    whole = saved("score", tmp_path / "whole.onnx")
    assert 1e-6 < compare(view, tmp_path / "half.onnx")["probability"] <= 5e-3
    held = [
        sum(len(item.raw_data) for item in onnx.load(str(path)).graph.initializer)
        for path in (tmp_path / "half.onnx", whole)
    ]
    assert held[0] < 0.7 * held[1]


def test_float16_keeps_exact_int8_exact_and_leaves_out_what_it_cannot_hold():
    x = np.random.default_rng(2).standard_normal((3, 400), dtype=np.float32)
    large = np.full((400, 400), 1e5, dtype=np.float32)
    large[0] = np.random.default_rng(0).standard_normal(400)
    for weight in (int8_weight(400, 400, seed=1), large):
        plain, half = one_product(weight), one_product(weight)
        halve_weights(half.graph)
        assert np.array_equal(run_product(plain, x), run_product(half, x))


@pytest.fixture(scope="module")
def quantised(tmp_path_factory):
    folder = tmp_path_factory.mktemp("int8")
    plain = saved("score", folder / "plain.onnx")
    quantise(traced("score")[1], folder / "int8.onnx")
    return plain, folder / "int8.onnx"


def test_int8_computes_the_dense_layers_and_nothing_else_in_integers(quantised):
    kinds = [node.op_type for node in onnx.load(str(quantised[1])).graph.node]
    # Two blocks of q, k, v, out, fc1 and fc2; the first runs twice, because the router has its own pass.
    assert kinds.count("MatMulInteger") == 2 * 2 * 6
    names = {item.name for item in onnx.load(str(quantised[1])).graph.initializer}
    for kept in ("model.router.network.0.weight", "model.head.linear.weight", "attention.q_proj.u"):
        assert any(kept in name and not name.endswith(("_quantized", "_scale")) for name in names), kept


def margins(path, views):
    logits = open_session(path).run(["logits"], {"pixels": views})[0]
    return (logits[:, 1] - logits[:, 0]).astype(np.float64)


@pytest.fixture(scope="module")
def judged(quantised):
    """Random pictures, labelled by what the float32 model thinks of them, and both models' margins."""
    views = noise(NUMBER, SIZE, seed=5)
    before, after = (margins(path, views) for path in quantised)
    return views, (before > np.median(before)).astype(np.int64), before, after


def pictures_of(views, labels) -> Pictures:
    def read(_):
        return (Labelled(view[None], int(label)) for view, label in zip(views, labels, strict=True))

    return Pictures(read)


def test_the_loss_is_what_the_margins_say(quantised, judged):
    views, labels, before, after = judged
    far = Verdicts(Calibration(1.0, 0.0), real=0.0, ai=1.0)
    loss = measure_loss(*quantised, pictures_of(views, labels), far)
    assert (loss.auroc, loss.flips, loss.pictures) == (1.0, 0.0, NUMBER)
    pairs = [a > b for a in after[labels == 1] for b in after[labels == 0]]
    assert loss.auroc_int8 == pytest.approx(np.mean(pairs))
    assert np.abs(after - before).max() > 1e-6


def test_one_verdict_of_24_that_turns_is_too_much(quantised, judged):
    views, labels, before, after = judged
    widest = np.abs(after - before).argmax()
    between = Calibration(1.0, 0.0).probability((before + after)[widest : widest + 1] / 2)[0]
    loss = measure_loss(*quantised, pictures_of(views, labels), Verdicts(real=between, ai=between))
    assert loss.flips >= 1 / NUMBER
    with pytest.raises(ExportError, match=r"does not ship as int8: AUROC 1\.0000 becomes .* of 24 verdicts"):
        check_loss(loss, "graph score")


@pytest.mark.parametrize(
    ("auroc", "flips", "passes"), [(0.8981, 0.005, True), (0.8979, 0.0, False), (0.95, 0.006, False)]
)
def test_the_bounds(auroc, flips, passes):
    assert Loss(0.9, auroc, flips, 1000, 0).passes == passes


def test_pictures_of_one_class_judge_nothing(quantised, judged):
    with pytest.raises(ExportError, match="24 pictures of 1 classes are given to judge int8 by; real and AI"):
        measure_loss(*quantised, pictures_of(judged[0], np.ones(NUMBER)), Verdicts())


def test_arrays_are_read_with_their_thresholds(tmp_path, judged):
    views, labels, *_ = judged
    np.savez(tmp_path / "set.npz", views=views[:, None], labels=labels, thresholds=[0.2, 0.7])
    pictures = open_labelled(tmp_path / "set.npz", Preprocessing(size_px=SIZE))
    assert pictures.verdicts == Verdicts(real=0.2, ai=0.7)
    for _ in range(2):
        assert [picture.label for picture in pictures] == labels.tolist()
    assert list(Verdicts(real=0.2, ai=0.7).of(np.array([-5.0, 0.0, 5.0]))) == [0, 1, 2]


GOOD = {"views": np.zeros((2, 1, 3, SIZE, SIZE), np.uint8), "labels": np.array([0, 1])}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"views": None}, "holds no views; views and labels are needed"),
        ({"views": np.zeros((2, 3, SIZE, SIZE), np.uint8)}, r"uint8 \(N, V, 3, 32, 32\) is needed"),
        ({"views": GOOD["views"].astype(np.float32)}, r"are float32 \(2, 1, 3, 32, 32\); uint8"),
        ({"labels": np.array([0, 2])}, "must be one 0 .real. or 1 .AI. for each of 2 pictures"),
        ({"labels": np.array([0])}, "must be one 0"),
        ({"thresholds": np.array([0.5])}, "must be two numbers: real, ai"),
    ],
)
def test_other_arrays_are_refused(changes, message, tmp_path):
    arrays = {name: value for name, value in (GOOD | changes).items() if value is not None}
    np.savez(tmp_path / "set.npz", **arrays)
    with pytest.raises(ExportError, match=message):
        open_labelled(tmp_path / "set.npz", Preprocessing(size_px=SIZE))


def test_a_file_that_holds_no_arrays_is_refused(tmp_path):
    (tmp_path / "set.npz").write_bytes(b"noise")
    with pytest.raises(ExportError, match="cannot be read as a file of arrays"):
        open_labelled(tmp_path / "set.npz", Preprocessing(size_px=SIZE))


def test_the_tolerances_are_the_declared_ones():
    assert checks.TOLERANCES == {"fp32": 1e-4, "fp16": 5e-3}
    with pytest.raises(ExportError, match=r"score in fp16 differs from torch by 6\.00e-03 in probability"):
        delivery._check({"probability": 6e-3, "gates": 0.0}, delivery.Wanted(precision="fp16"))
    with pytest.raises(ExportError, match=r"router in fp16 differs from torch by 6\.00e-03 in gates"):
        delivery._check({"gates": 6e-3}, delivery.Wanted("router", "fp16"))
    with pytest.raises(ExportError, match=r"differs from torch by nan"):
        delivery._check({"probability": float("nan")}, delivery.Wanted())
