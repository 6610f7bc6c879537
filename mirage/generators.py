"""Picture generators: a name, a count and a seed give AI pictures whose origin is certain.

A generator is one row of `GENERATORS`: a loader that opens the networks of an installed package
and returns a painter, a function from a random number generator to one RGB picture.
"""

from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from mirage.errors import BuildError

Painter = Callable[[np.random.Generator], Image.Image]

STYLE_DIM = 512
MEAN_STYLE_DRAWS = 4096
# Below 0.5 all faces look alike; above 0.9 many are broken and give themselves away at a glance.
TRUNCATION_RANGE = (0.5, 0.9)
SIDE_RANGE_PX = (64, 1024)
FACE_INSTALL = "pip install 'omniaid[generate]' && pip install --no-deps random-face==2021.7.21.1"


def generate(
    name: str, count: int, seed: int, *, start: int = 0, side_px: int = 1024, threads: int = 1
) -> Iterator[tuple[str, Image.Image]]:
    """Pairs of a stable id and a square RGB picture, made one at a time as they are asked for.

    Picture i depends on `name`, `seed` and i alone: a larger count begins with the same pictures.

    Args:
        name: a key of `GENERATORS`.
        count: pictures to make, 0 or more.
        seed: 0 or more.
        start: index of the first picture, 0 or more; the earlier ones are not made.
        side_px: side of the pictures; below the network's own size they are reduced with Lanczos.
        threads: CPU threads of the network, 1 or more; they change no more than rounding.

    Raises:
        BuildError: an argument is out of range, or the generator's package is not installed.
    """
    if name not in GENERATORS:
        raise BuildError(
            f"generator {name!r} does not exist; choose one of: {', '.join(sorted(GENERATORS))}."
        )
    _require("count", count, 0)
    _require("seed", seed, 0)
    _require("start", start, 0)
    _require("threads", threads, 1)
    _require("side_px", side_px, *SIDE_RANGE_PX)
    paint = GENERATORS[name](threads)
    return _pictures(name, paint, range(start, start + count), seed, side_px)


def _require(argument: str, value: int, least: int, most: int | None = None) -> None:
    if value < least or (most is not None and value > most):
        allowed = f"{least} or more" if most is None else f"{least} to {most}"
        raise BuildError(f"{argument} of a generator is {value}; it must be {allowed}.")


def _pictures(
    name: str, paint: Painter, indices: range, seed: int, side_px: int
) -> Iterator[tuple[str, Image.Image]]:
    for index in indices:
        picture = paint(np.random.default_rng([seed, index]))
        if picture.width != side_px:
            picture = picture.resize((side_px, side_px), Image.Resampling.LANCZOS)
        yield picture_name(name, seed, index), picture


def picture_name(name: str, seed: int, index: int) -> str:
    """The stable id of a generator's picture."""
    return f"{name}-{seed}-{index:06d}"


def load_mobile_stylegan(threads: int) -> Painter:
    """Painter of 1024-px faces from the networks that ship in the package random-face.

    Each face draws its style, its truncation (uniform over `TRUNCATION_RANGE`) and its noise.

    Source: Belousov 2021, MobileStyleGAN, arXiv 2104.04767; networks of random-face 2021.7.21.1.
    Differs: the package bakes one noise pattern into the synthesis network, so all its faces share
    a fixed texture that a detector could learn instead of the generator; here the noise is drawn
    anew with the same standard deviation per layer. The truncation varies; the package fixes 0.5.
    """
    data = _face_networks()
    import openvino

    core = openvino.Core()
    # Without the hint, some processors compute in bfloat16 and give other pictures.
    config = {"INFERENCE_NUM_THREADS": threads, "INFERENCE_PRECISION_HINT": "f32", "NUM_STREAMS": 1}
    mapping_network = core.read_model(data / "MappingNetwork.xml")
    mapping_network.reshape([-1, STYLE_DIM])
    synthesis_network = core.read_model(data / "SynthesisNetwork.xml")
    noise_scales = _free_noise(synthesis_network)
    mapping = core.compile_model(mapping_network, "CPU", config)
    synthesis = core.compile_model(synthesis_network, "CPU", config)

    draws = np.random.default_rng(0).standard_normal((MEAN_STYLE_DRAWS, STYLE_DIM), dtype=np.float32)
    mean_style = mapping(draws)["style"].mean(axis=0, keepdims=True)

    def paint(rng: np.random.Generator) -> Image.Image:
        style = mapping(rng.standard_normal((1, STYLE_DIM), dtype=np.float32))["style"]
        truncation = np.float32(rng.uniform(*TRUNCATION_RANGE))
        inputs = {"style": mean_style + truncation * (style - mean_style)}
        for layer, (side, scale) in noise_scales.items():
            inputs[layer] = scale * rng.standard_normal((1, 1, side, side), dtype=np.float32)
        return _picture(synthesis(inputs)["img"][0])

    return paint


def _face_networks() -> Path:
    """Folder of the packaged networks, found without importing the package (it pulls in a GUI)."""
    spec = find_spec("random_face")
    data = Path(spec.origin).parent / "data" if spec and spec.origin else None
    if find_spec("openvino") is None or data is None or not (data / "SynthesisNetwork.bin").is_file():
        raise BuildError(f"generator 'mobile-stylegan' is not installed; install it with: {FACE_INSTALL}")
    return data


def _free_noise(network: Any) -> dict[str, tuple[int, np.float32]]:
    """Noise inputs (name -> side in px, standard deviation) that replace the network's constants."""
    from openvino import opset13

    scales: dict[str, tuple[int, np.float32]] = {}
    inputs = []
    for node in network.get_ordered_ops():
        shape = list(node.get_output_shape(0)) if node.get_type_name() == "Constant" else []
        if len(shape) != 4 or shape[:2] != [1, 1] or shape[2] != shape[3] or shape[2] < 4:
            continue
        name = f"noise_{len(scales)}"
        free = opset13.parameter(shape, np.float32, name=name)
        scales[name] = (shape[2], np.float32(node.data.std()))
        node.output(0).replace(free.output(0))
        free.output(0).set_names({name})
        inputs.append(free)
    network.add_parameters(inputs)
    network.validate_nodes_and_infer_types()
    return scales


def _picture(pixels: np.ndarray) -> Image.Image:
    """RGB picture from (3, H, W) float32 in about -1..1."""
    levels = np.clip((pixels + 1.0) * 127.5 + 0.5, 0, 255).astype(np.uint8)
    return Image.fromarray(np.ascontiguousarray(levels.transpose(1, 2, 0)))


GENERATORS: dict[str, Callable[[int], Painter]] = {"mobile-stylegan": load_mobile_stylegan}
