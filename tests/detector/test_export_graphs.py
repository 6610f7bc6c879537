"""Every graph a model is exported as: the same numbers as torch, and only what it needs."""

import numpy as np
import onnx
import pytest
import torch

from detector.exporting.checks import compare, open_session
from detector.exporting.errors import ExportError
from detector.exporting.graphs import GRAPHS, view_model
from detector.exporting.sharing import share_weights
from detector.exporting.storage import compress_weights
from tests.detector.exported import PINNED, moved_model, noise, saved, traced
from tests.detector.tiny import PATCH, SIZE

PATCHES = (SIZE // PATCH) ** 2
SHAPES = {
    "probability": (),
    "logits": (2,),
    "gates": (6,),
    "router_logits": (5,),
    "patch_logits": (PATCHES, 2),
}


@pytest.fixture
def run(tmp_path):
    """The outputs by name of a graph on given inputs."""

    def answer(graph: str, **inputs: np.ndarray) -> dict[str, np.ndarray]:
        path = tmp_path / f"{graph}.onnx"
        session = open_session(path if path.exists() else saved(graph, path))
        names = GRAPHS[graph].outputs
        return dict(zip(names, session.run(list(names), inputs), strict=True))

    return answer


@pytest.mark.parametrize("graph", GRAPHS)
def test_a_graph_gives_what_torch_gives_at_batch_1_2_and_7(graph, tmp_path):
    view, model = traced(graph)
    assert [value.name for value in model.graph.input] == list(view.graph.inputs)
    assert [value.name for value in model.graph.output] == list(view.graph.outputs)
    session = open_session(saved(graph, tmp_path / "graph.onnx"))
    for batch in (1, 2, 7):
        arguments = view.example(batch, seed=batch)
        named = {name: value.numpy() for name, value in zip(view.graph.inputs, arguments, strict=True)}
        with torch.no_grad():
            expected = view.module(*arguments)
        found = session.run(list(view.graph.outputs), named)
        for name, mine, theirs in zip(view.graph.outputs, expected, found, strict=True):
            assert theirs.shape == (batch, *SHAPES[name])
            assert np.abs(mine.numpy() - theirs).max() <= 1e-4, name


def test_the_router_alone_gives_the_gates_of_scoring_and_holds_no_expert(run):
    pixels = noise(3, SIZE)
    assert np.abs(run("router", pixels=pixels)["gates"] - run("score", pixels=pixels)["gates"]).max() <= 1e-5
    names = [item.name for item in traced("router")[1].graph.initializer]
    assert not any(name.endswith((".u", ".v", ".residual_u")) or ".head." in name for name in names)


def test_the_models_own_gates_put_in_by_hand_give_its_own_score(run):
    pixels = noise(3, SIZE)
    score = run("score", pixels=pixels)
    mine = run("gates", pixels=pixels, gates=score["gates"])
    assert np.abs(mine["logits"] - score["logits"]).max() <= 1e-4
    other = run("gates", pixels=pixels, gates=np.roll(score["gates"], 1, axis=1))
    assert np.abs(other["logits"] - score["logits"]).max() > 1e-2


def test_a_folded_graph_has_no_experts_and_gives_what_its_gates_give(run):
    pixels = noise(4, SIZE)
    by_hand = run("gates", pixels=pixels, gates=np.tile(np.float32(PINNED), (4, 1)))
    folded = run("folded", pixels=pixels)
    assert np.abs(folded["probability"] - by_hand["probability"]).max() <= 1e-4
    assert np.allclose(folded["gates"], PINNED)
    names = [item.name for item in traced("folded")[1].graph.initializer]
    assert not any(name.endswith((".u", ".s", ".v")) or "residual" in name for name in names)


def test_patches_come_beside_an_unchanged_score(run):
    pixels = noise(2, SIZE)
    score, patches = run("score", pixels=pixels), run("patches", pixels=pixels)
    for name in ("probability", "logits", "gates"):
        assert np.abs(score[name] - patches[name]).max() <= 1e-5
    assert patches["patch_logits"].std() > 1e-3


def test_a_second_graph_reads_its_weights_out_of_the_first_ones_file(tmp_path):
    saved("score", tmp_path / "score.onnx")
    view, model = traced("patches")
    whole = len(model.SerializeToString())
    shared = share_weights(model, tmp_path / "score.onnx")
    onnx.save(model, str(tmp_path / "patches.onnx"))
    assert shared > 0.5 * whole
    assert (tmp_path / "patches.onnx").stat().st_size < 0.5 * whole
    assert sorted(path.name for path in tmp_path.iterdir()) == ["patches.onnx", "score.onnx"]
    assert max(compare(view, tmp_path / "patches.onnx").values()) <= 1e-4


def test_only_weights_of_the_same_content_are_shared(tmp_path):
    other = traced("score")[1]
    for item in other.graph.initializer:
        changed = onnx.numpy_helper.to_array(item) + 1
        item.CopyFrom(onnx.numpy_helper.from_array(changed.astype(changed.dtype), item.name))
    onnx.save(other, str(tmp_path / "other.onnx"))
    with pytest.raises(ExportError, match=r"other\.onnx holds none of this graph's weights"):
        share_weights(traced("patches")[1], tmp_path / "other.onnx")
    (tmp_path / "noise.onnx").write_bytes(b"noise")
    with pytest.raises(ExportError, match="cannot be read as an ONNX file"):
        share_weights(traced("patches")[1], tmp_path / "noise.onnx")


def test_compressing_leaves_small_graphs_alone():
    before, after = (traced("score")[1] for _ in range(2))
    compress_weights(after.graph)
    assert before.SerializeToString() == after.SerializeToString()


@pytest.mark.parametrize(
    ("graph", "gates", "message"),
    [
        (
            "heatmap",
            None,
            "graph 'heatmap' does not exist; choose one of: score, patches, router",
        ),
        ("folded", None, "graph folded needs the gates to fold in"),
        ("score", PINNED, "graph score takes no gates; only folded does"),
        (
            "folded",
            PINNED[:3],
            "3 gates are given; 6 are needed: human, animal",
        ),
    ],
)
def test_what_cannot_be_exported_is_said(graph, gates, message):
    with pytest.raises(Exception, match=message):
        view_model(moved_model(), graph, gates)
