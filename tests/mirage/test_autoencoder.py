"""The small autoencoder: what it learns from, that it learns, resumes exactly and exports exactly."""

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer
from numpy.typing import NDArray
from PIL import Image
from typer.testing import CliRunner

from mirage import autoencoder_trainer
from mirage.autoencoder import (
    check_export,
    measure,
    read_training,
    run_exported,
    train_autoencoder,
)
from mirage.autoencoder_commands import train_autoencoder_command
from mirage.autoencoder_crops import CropSettings, draw_batch, read_crops
from mirage.autoencoder_network import Shape, build_autoencoder
from mirage.autoencoder_trainer import Progress, Trainer, Training
from mirage.errors import BuildError
from mirage.extras import MissingExtra
from mirage.reconstruct import reconstruct
from tests.mirage.conftest import encode, picture
from tests.mirage.written_set import WrittenSet

SMALL = Shape(latents=8, widths=(8, 8, 16))
CROPS = CropSettings(pictures=6, held_out=2, per_picture=2, side_px=48, measured_px=64)
QUICK = Training(
    seed=3,
    steps=20,
    linear_steps=60,
    batch=2,
    window_px=32,
    rate=1e-2,
    linear_rate=3e-2,
    shape=SMALL,
    crops=CROPS,
)


@pytest.fixture(scope="module")
def photographs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished data set with ten photographs, and pictures of other kinds in plain colours."""
    written = WrittenSet(tmp_path_factory.mktemp("set"))
    for _ in range(10):
        written.keep("train", "real", "walks", "camera-portfolio")
    others = [
        ("train", "ai", "made", "camera-like", {}),
        ("train", "real", "drawings", "drawn", {}),
        ("train", "real", "twins", "camera", {"domain": "artifact"}),
        ("devtest", "real", "later", "camera", {}),
        ("train", "real", "small", "camera", {"width": 60}),
    ]
    for split, label, source, generator, facts in others:
        row = written.keep(split, label, source, generator, **facts)
        written.store(row, encode(Image.new("RGB", (96, 96), "magenta")))
    written.write()
    return written.folder


@pytest.fixture(scope="module")
def trained(photographs: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file of an uninterrupted training; its last checkpoint is kept beside it as `last.pt`."""
    out = tmp_path_factory.mktemp("run") / "small.onnx"

    def keep(progress: Progress) -> None:
        if progress.step == progress.steps:
            shutil.copy(out.with_suffix(".checkpoint.pt"), out.with_name("last.pt"))

    train_autoencoder(photographs, out, QUICK, keep)
    return out


def trained_network(trained: Path) -> Any:
    import torch

    network = build_autoencoder(SMALL)
    network.load_state_dict(torch.load(trained.with_name("last.pt"))["network"])
    return network


def noise(height: int, width: int) -> NDArray[np.float32]:
    return np.random.default_rng([height, width]).random((1, 3, height, width), np.float32)


def test_only_real_photographs_of_the_training_split_are_learnt_from(photographs):
    crops = read_crops(photographs, CropSettings(pictures=99, held_out=2, side_px=48, measured_px=64), 0)
    assert crops.pictures == 8
    assert crops.train.shape == (32, 48, 48, 3) and crops.held_out.shape == (2, 64, 64, 3)
    magenta = np.array([255, 0, 255])
    for group in (crops.train, crops.held_out):
        assert not (group == magenta).all(axis=-1).mean(axis=(1, 2)).any()


def test_a_held_out_picture_gives_no_crop(photographs):
    crops = read_crops(photographs, CROPS, 1)
    known = {window.tobytes() for picture in crops.held_out for window in windows(picture, 16)}
    assert not any(window.tobytes() in known for crop in crops.train for window in windows(crop, 16))


def windows(pixels: NDArray[np.uint8], side: int) -> list[NDArray[np.uint8]]:
    places = range(pixels.shape[0] - side + 1)
    return [pixels[top : top + side, left : left + side] for top in places for left in places]


def test_the_pick_follows_from_the_seed_alone(photographs):
    first, again, other = (read_crops(photographs, CROPS, seed) for seed in (0, 0, 1))
    assert np.array_equal(first.train, again.train) and first.digest == again.digest
    assert first.digest != other.digest


def test_a_batch_follows_from_its_seeds_alone():
    crops = np.stack([np.asarray(picture(seed, 40, 40)) for seed in range(3)])
    first, again, other = (draw_batch(crops, 32, 5, (0, step)) for step in (7, 7, 8))
    assert first.shape == (5, 3, 32, 32) and first.dtype == np.float32
    assert np.array_equal(first, again) and not np.array_equal(first, other)
    assert -1 <= first.min() < -0.5 and 0.5 < first.max() <= 1


def test_a_set_without_enough_photographs_is_named(photographs):
    few = CROPS.model_copy(update={"held_out": 10})
    with pytest.raises(
        BuildError, match=r"holds 10 photographs of split train .* at least 64 px; 10 are held"
    ):
        read_crops(photographs, few, 0)


def test_training_lowers_the_error_on_pictures_never_seen(photographs, trained):
    import torch

    held_out = read_crops(photographs, CROPS, QUICK.seed).held_out
    pixels = torch.from_numpy(held_out.transpose(0, 3, 1, 2).astype(np.float32) / 255)
    torch.manual_seed(QUICK.seed)
    with torch.no_grad():
        before, after = (
            float((network(pixels) - pixels).abs().mean())
            for network in (build_autoencoder(SMALL), trained_network(trained))
        )
    assert after < 0.7 * before


def test_the_linear_part_starts_alone(photographs, tmp_path):
    import torch

    trainer = Trainer(QUICK, read_crops(photographs, CROPS, 0), tmp_path / "a.pt")
    start = {name: weight.clone() for name, weight in trainer.network.state_dict().items()}
    seen = []

    def watch(progress):
        now = trainer.network.state_dict()
        changed = [name for name, weight in now.items() if not torch.equal(weight, start[name])]
        deep = any(not name.startswith("linear") for name in changed)
        seen.append((progress.step, deep))

    trainer.run(watch)
    assert [step for step, *_ in seen] == list(range(1, 81))
    assert [step for step, deep in seen if deep] == list(range(61, 81))


def test_an_interrupted_training_ends_with_the_same_bits(photographs, trained, tmp_path, monkeypatch):
    """The interruption comes some steps after a checkpoint."""
    monkeypatch.setattr(autoencoder_trainer, "CHECKPOINT_EVERY", 8)
    out, steps = tmp_path / "a.onnx", []

    def stop_at(last):
        def stop(progress):
            steps.append(progress.step)
            if progress.step == last:
                raise KeyboardInterrupt

        return stop

    for last in (79, 80):
        with pytest.raises(KeyboardInterrupt):
            train_autoencoder(photographs, out, QUICK, stop_at(last))
        assert not out.exists()
    assert steps == [*range(1, 80), *range(73, 81)]
    once, resumed = (
        tensors(path) for path in (trained.with_name("last.pt"), out.with_suffix(".checkpoint.pt"))
    )
    assert once.keys() == resumed.keys() and len(once) > 100
    assert all(once[name] == resumed[name] for name in once)


def tensors(checkpoint: Path) -> dict[str, bytes]:
    """Everything in a checkpoint as bytes: weights, and the optimiser's moments and counts."""
    import torch

    flat: dict[str, bytes] = {}

    def walk(name: str, value: Any) -> None:
        if isinstance(value, dict | list):
            for key, part in value.items() if isinstance(value, dict) else enumerate(value):
                walk(f"{name}/{key}", part)
        else:
            flat[name] = value.numpy().tobytes() if torch.is_tensor(value) else repr(value).encode()

    walk("", torch.load(checkpoint))
    return flat


def test_of_texture_the_strength_counts_and_not_where_it_runs(photographs, tmp_path):
    import torch

    trainer = Trainer(QUICK, read_crops(photographs, CROPS, 0), tmp_path / "a.pt")
    texture = torch.from_numpy(noise(64, 64))
    moved, weaker, blurred = (
        float(trainer._texture_error(other, texture))
        for other in (
            texture.roll((3, 5), (2, 3)),
            texture * 0.8,
            texture.mean((2, 3), True).expand(texture.shape),
        )
    )
    assert moved < 0.2 * blurred
    assert weaker == pytest.approx(0.2 * blurred, rel=1e-3)


def test_a_checkpoint_of_another_training_is_refused(photographs, tmp_path):
    crops = read_crops(photographs, CROPS, QUICK.seed)
    checkpoint = tmp_path / "a.checkpoint.pt"
    Trainer(QUICK, crops, checkpoint)._save()
    assert Trainer(QUICK, crops, checkpoint).step == 0
    other = QUICK.model_copy(update={"rate": 1e-4})
    with pytest.raises(BuildError, match=r"a\.checkpoint\.pt belongs to another training; delete it"):
        Trainer(other, crops, checkpoint)


def test_the_exported_file_agrees_with_torch_at_any_size(trained):
    import torch

    network = trained_network(trained)
    for height, width in ((8, 8), (64, 104), (200, 16)):
        pixels = noise(height, width)
        with torch.no_grad():
            expected = network(torch.from_numpy(pixels)).numpy()
        rebuilt = run_exported(trained, pixels)
        assert rebuilt.shape == pixels.shape and rebuilt.std() > 0.005
        assert np.abs(rebuilt - expected).max() < 1e-4
    assert check_export(network, trained) < 1e-4


@pytest.mark.parametrize("part", ["linear_encoder", "linear_decoder", "encoder", "decoder"])
def test_a_file_that_differs_from_torch_is_refused(trained, part):
    import torch

    network = trained_network(trained)
    with torch.no_grad():
        for weight in network.get_submodule(part).parameters():
            weight.mul_(1.05)
    with pytest.raises(BuildError, match=r"small\.onnx differs from torch by .*; at most 0\.0001 is allowed"):
        check_export(network, trained)


def test_the_trained_file_is_a_reconstructor(trained):
    image = picture(50, 72, 64)
    twin = reconstruct(image, "conv-vae", str(trained))
    assert twin.size == (72, 64)
    assert twin.tobytes() == reconstruct(image, "conv-vae", str(trained)).tobytes() != image.tobytes()


def test_the_facts_stand_beside_the_file(trained, photographs):
    facts = json.loads(trained.with_suffix(".json").read_text("utf-8"))
    assert facts["file"] == "small.onnx" and facts["bytes"] == trained.stat().st_size
    assert Training.model_validate(facts["training"]) == QUICK
    assert facts["data"]["photographs"] == 6 and facts["data"]["held_out"] == 2
    assert facts["data"]["digest"] == read_crops(photographs, CROPS, QUICK.seed).digest
    assert set(facts["quality"]) == {"psnr_db", "psnr_db_worst_tenth", "detail", "grid"}
    assert str(photographs) not in trained.with_suffix(".json").read_text("utf-8")
    assert b"site-packages" not in trained.read_bytes(), "no path of this machine in the file"


def test_training_leaves_the_callers_torch_as_it_was(photographs, tmp_path):
    import torch

    def stop(progress):
        assert torch.get_num_threads() == 1
        raise KeyboardInterrupt

    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        torch.manual_seed(5)
        state = torch.get_rng_state()
        with pytest.raises(KeyboardInterrupt):
            train_autoencoder(photographs, tmp_path / "a.onnx", QUICK, stop)
        assert torch.equal(torch.get_rng_state(), state) and torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(threads)


def save_pooled(path: Path, side: int, stride: int) -> Path:
    """An ONNX file that averages over squares: with a stride it leaves a grid, without one a blur."""
    import onnx
    from onnx import TensorProto, helper

    pad = (side - 1) // 2 if stride == 1 else 0
    nodes = [
        helper.make_node(
            "AveragePool",
            ["pixels"],
            ["means"],
            kernel_shape=[side] * 2,
            strides=[stride] * 2,
            pads=[pad] * 4,
        ),
        helper.make_node("Resize", ["means", "", "scales"], ["reconstruction"], mode="nearest"),
    ]
    scales = helper.make_tensor("scales", TensorProto.FLOAT, [4], [1, 1, stride, stride])
    ends = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 3, None, None])
        for name in ("pixels", "reconstruction")
    ]
    graph = helper.make_graph(nodes, "pooled", ends[:1], ends[1:], [scales])
    opset = [helper.make_opsetid("", 18)]
    onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=9), str(path))
    return path


def test_the_measure_tells_blur_and_grid_from_a_perfect_copy(tmp_path):
    rng = np.random.default_rng(0)
    pictures = rng.integers(0, 256, (3, 64, 64, 3), dtype=np.uint8)
    copy, blurred, cells = (
        measure(save_pooled(tmp_path / f"{side}-{stride}.onnx", side, stride), pictures)
        for side, stride in ((1, 1), (3, 1), (8, 8))
    )
    assert copy["psnr_db"] > 100 and copy["detail"] == 1 and copy["grid"] == 1
    assert (
        blurred["psnr_db"] < 20 and blurred["detail"] < 0.6 and blurred["grid"] == pytest.approx(1, abs=0.1)
    )
    assert cells["grid"] == pytest.approx(63 / 7, rel=0.1), "all differences lie on the grid's edges"


@pytest.mark.parametrize(
    ("out", "changes", "sentence"),
    [
        ("a.pt", {}, r"a\.pt must end in \.onnx"),
        ("a.onnx", {"window_px": 56}, "windows of 56 px do not fit crops of 48 px"),
    ],
)
def test_what_cannot_be_trained_is_named(photographs, tmp_path, out, changes, sentence):
    with pytest.raises(BuildError, match=sentence):
        train_autoencoder(photographs, tmp_path / out, QUICK.model_copy(update=changes))


def test_without_torch_the_sentence_says_what_installs_it(photographs, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(MissingExtra, match=r"the package torch, .*pip install 'omniaid\[train\]'"):
        train_autoencoder(photographs, tmp_path / "a.onnx", QUICK)


@pytest.mark.slow
def test_the_command_takes_settings_over_and_flags_win(photographs, trained, tmp_path):
    app = typer.Typer()
    app.command()(train_autoencoder_command)
    out = tmp_path / "a.onnx"
    like = ["--like", str(trained.with_suffix(".json"))]
    result = CliRunner().invoke(app, [str(photographs), "--out", str(out), *like, "--steps", "1"])
    assert result.exit_code == 0, result.output
    assert f"{out}: {out.stat().st_size} bytes; on 2 held-out photographs" in result.stdout
    assert read_training(out.with_suffix(".json")) == QUICK.model_copy(update={"steps": 1})


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ('{"training": {"batch": 0}}', r"training\.batch: .* greater than or equal to 1 \(given: 0\)"),
        ('{"training": {"shape": {"depth": 3}}}', r"training\.shape\.depth: Extra inputs .* \(given: 3\)"),
        ('{"sha256": ""}', "is no JSON file with the facts of a training"),
        ("steps: 3", "is no JSON file with the facts of a training"),
        ("[1]", "is no JSON file with the facts of a training"),
        (None, r"a\.json cannot be read: No such file"),
    ],
)
def test_facts_that_hold_no_settings_are_named(tmp_path, content, sentence):
    if content is not None:
        (tmp_path / "a.json").write_text(content, "utf-8")
    with pytest.raises(BuildError, match=sentence) as caught:
        read_training(tmp_path / "a.json")
    assert str(caught.value).startswith(str(tmp_path / "a.json"))
