"""`omniaid export`: a checkpoint folder in, an ONNX file and its card out, or one sentence and nothing."""

import json

import numpy as np
import pytest
import torch
import typer
from typer.testing import CliRunner

from detector import export_commands
from detector.checkpoint import save_checkpoint
from detector.exporting import delivery
from detector.exporting.errors import ExportError
from detector.preprocess import Preprocessing, make_views
from detector.runtime import Runtime
from mirage.errors import MirageError
from tests.detector.exported import PINNED, moved_model, noise, traced
from tests.detector.tiny import SIZE

FACTS = {"preprocessing": {"size_px": SIZE, "views": ["global"], "resized_first_px": 512}}
CALIBRATION = {
    "temperature": 2.0,
    "bias": 0.5,
    "thresholds": {
        "ai": 0.8,
        "real": 0.2,
        "false_positive_rate": 0.05,
        "false_negative_rate": 0.04,
        "how": "by hand",
    },
}
SHIPPED = ["checkpoint", "model.json", "model.onnx"]


@pytest.fixture
def folder(tmp_path):
    save_checkpoint(moved_model(), tmp_path / "checkpoint", FACTS)
    return tmp_path


@pytest.fixture
def quick(monkeypatch):
    """Graphs of the test model are traced once for all tests: tracing is what takes long."""
    monkeypatch.setattr(delivery, "trace", lambda view, _: traced(_name(view))[1])


def _name(view):
    return next(name for name, graph in delivery.GRAPHS.items() if graph is view.graph)


def invoke(folder, *options):
    app = typer.Typer()
    app.callback()(lambda: None)
    export_commands.register(app)
    command = ["export", str(folder / "checkpoint"), "--out", str(folder / "model.onnx"), *options]
    return CliRunner().invoke(app, command)


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_the_file_and_its_card_are_what_the_runtime_loads(folder, quick):
    result = invoke(folder)
    assert result.exit_code == 0, result.exception
    assert result.stdout.strip() == str(folder / "model.onnx")
    assert "score in fp32; largest difference to torch: " in result.stderr
    assert names(folder) == SHIPPED
    runtime = Runtime(folder / "model.onnx", threads=1)
    views = noise(3, SIZE)
    with torch.no_grad():
        expected = moved_model()(torch.from_numpy(views))
    assert np.abs(runtime.score_views(views).logits - expected.logits.numpy()).max() <= 1e-4
    card = runtime.card
    assert card.preprocessing.resized_first_px == 512
    assert card.training["export"]["onnx_against_torch"]["probability"] <= 1e-4
    assert card.training["facts"]["preprocessing"] == FACTS["preprocessing"]
    assert (card.thresholds.ai, card.thresholds.real) == (0.5, 0.5)
    assert card.thresholds.how.startswith("not calibrated")
    assert "never calibrated" in card.limits[0]


def test_a_calibrated_checkpoint_keeps_its_thresholds(folder, quick):
    save_checkpoint(moved_model(), folder / "checkpoint", FACTS | {"calibration": CALIBRATION})
    assert invoke(folder).exit_code == 0
    card = Runtime(folder / "model.onnx", threads=1).card
    assert (card.temperature, card.bias, card.thresholds.ai, card.limits) == (2.0, 0.5, 0.8, ())


def test_a_folded_file_stands_in_for_scoring(folder, quick):
    given = ",".join(str(gate) for gate in PINNED)
    assert invoke(folder, "--graph", "folded", "--gates", given).exit_code == 0
    runtime = Runtime(folder / "model.onnx", threads=1)
    assert np.allclose(runtime.score_views(noise(2, SIZE)).gates, PINNED)
    assert runtime.card.training["export"]["gates"] == list(PINNED)


@pytest.mark.parametrize("graph", ["patches", "router", "gates"])
@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_every_graph_is_written_in_both_float_precisions(graph, precision, folder, quick):
    result = invoke(folder, "--graph", graph, "--precision", precision)
    assert result.exit_code == 0, result.exception
    assert names(folder) == SHIPPED
    card = json.loads((folder / "model.json").read_text())
    assert (card["training"]["export"]["graph"], card["training"]["export"]["precision"]) == (
        graph,
        precision,
    )


def test_patches_take_their_weights_from_the_scoring_file(folder, quick):
    assert invoke(folder).exit_code == 0
    share = ["--graph", "patches", "--share", str(folder / "model.onnx")]
    again = invoke(folder, *share, "--out", str(folder / "patches.onnx"))
    assert again.exit_code == 0, again.exception
    assert (folder / "patches.onnx").stat().st_size < 0.5 * (folder / "model.onnx").stat().st_size
    cards = [json.loads((folder / f"{name}.json").read_text()) for name in ("model", "patches")]
    exported = cards[1]["training"]["export"]
    assert (exported["weights_in"], exported["weights_sha256"]) == ("model.onnx", cards[0]["sha256"])
    assert Runtime(folder / "patches.onnx", threads=1).score_views(noise(1, SIZE)).gates.shape == (1, 6)


def judge(folder, threshold):
    """An evaluation set on which the two classes are what the model thinks them to be."""
    views = noise(24, SIZE, seed=5)
    with torch.no_grad():
        logits = moved_model()(torch.from_numpy(views)).logits.numpy()
    labels = (logits[:, 1] - logits[:, 0] > np.median(logits[:, 1] - logits[:, 0])).astype(int)
    np.savez(folder / "set.npz", views=views[:, None], labels=labels, thresholds=threshold)
    return ["--precision", "int8", "--evaluate", str(folder / "set.npz")]


def test_int8_that_fails_its_gate_leaves_everything_as_it_was(folder, quick, monkeypatch):
    assert invoke(folder).exit_code == 0
    options = judge(folder, [0.0, 1.0])
    before = {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}
    # The bounds are the only thing that is changed: everything is measured on the real files.
    monkeypatch.setattr("detector.exporting.checks.MOST_AUROC_LOSS", -1.0)
    result = invoke(folder, *options)
    assert isinstance(result.exception, ExportError)
    assert "graph score does not ship as int8: AUROC 1.0000 becomes" in str(result.exception)
    assert {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()} == before


def test_int8_that_passes_is_written_with_what_it_costs(folder, quick, monkeypatch):
    options = judge(folder, [0.0, 1.0])
    # Random weights order random pictures by hair's breadths; trained ones are held to the true bound.
    monkeypatch.setattr("detector.exporting.checks.MOST_AUROC_LOSS", 0.2)
    result = invoke(folder, *options)
    assert result.exit_code == 0, result.exception
    assert "0.00% of 24 verdicts flip, 0 unreadable" in result.stderr
    card = Runtime(folder / "model.onnx", threads=1).card
    assert card.training["export"]["int8"]["pictures"] == 24
    assert names(folder) == [*SHIPPED, "set.npz"]


def test_int8_is_judged_on_a_folder_of_pictures_too(folder, quick, monkeypatch):
    from PIL import Image

    rng, views = np.random.default_rng(0), []
    for name in ("real", "fake"):
        (folder / "tree" / name).mkdir(parents=True)
        for number in range(3):
            image = Image.fromarray(rng.integers(0, 256, (40, 50, 3), dtype=np.uint8))
            image.save(folder / "tree" / name / f"{number}.png")
            views.append(make_views(image, Preprocessing(**FACTS["preprocessing"])))
    (folder / "tree" / "fake" / "broken.png").write_bytes(b"noise")
    monkeypatch.setattr("detector.exporting.checks.MOST_AUROC_LOSS", 1.0)
    monkeypatch.setattr("detector.exporting.checks.MOST_FLIPS", 1.0)
    result = invoke(folder, "--precision", "int8", "--evaluate", str(folder / "tree"))
    assert result.exit_code == 0, result.exception
    assert "of 6 verdicts flip, 1 unreadable" in result.stderr


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--precision", "int8"], "int8 needs labelled pictures to be judged on; name them with --evaluate"),
        (["--precision", "int8", "--graph", "router"], "graph router gives no verdict to judge int8 by"),
        (["--graph", "folded"], "graph folded needs the gates to fold in"),
        (["--gates", "1,0,0,0,0,1"], "graph score takes no gates; only folded does"),
        (["--graph", "folded", "--gates", "1,0"], "2 gates are given; 6 are needed"),
        (["--out", "model.pt"], "model.pt does not end in .onnx"),
        (["--share", "/elsewhere/model.onnx"], "must lie in the folder of"),
    ],
)
def test_what_does_not_go_is_one_sentence_and_no_file(options, message, folder):
    result = invoke(folder, *options)
    assert not isinstance(result.exception, MirageError)
    assert message in str(result.exception)
    assert "\n" not in str(result.exception)
    assert names(folder) == ["checkpoint"]


@pytest.mark.parametrize(
    ("facts", "message"),
    [
        ({"preprocessing": {"size_px": 64}}, "views are 64 px, but its model takes 32 px"),
        ({"preprocessing": {"side": 64}}, "facts cannot be used for a card: Extra inputs"),
        ({"calibration": {"temperature": 1.0}}, "facts cannot be used for a card: KeyError"),
    ],
)
def test_facts_that_contradict_the_model_are_named(facts, message, folder):
    save_checkpoint(moved_model(), folder / "checkpoint", facts)
    result = invoke(folder)
    assert isinstance(result.exception, ExportError)
    assert message in str(result.exception)
