"""Makes every picture of this folder anew: `python examples/make.py [FOLDER]`.

Needs `pip install 'omniaid[generate]' scikit-image` and `pip install --no-deps random-face==2021.7.21.1`.
Real and AI pictures leave through the same `finish` (centre crop, Lanczos reduction, one codec
setting, no metadata), so that neither size nor codec tells the class.
"""

import sys
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import Any, NamedTuple

import skimage.data
from PIL import Image, ImageOps

from mirage.generators import generate
from mirage.reconstruct import reconstruct

FACE_SEED = 10_000  # no training recipe uses it
MAX_BYTES = 150_000
ENCODERS: dict[str, dict[str, Any]] = {
    ".jpg": {"format": "JPEG", "quality": 90},
    ".png": {"format": "PNG", "optimize": True},
    ".webp": {"format": "WEBP", "quality": 90, "method": 6},
}


class Example(NamedTuple):
    """One file of the folder: how its picture is made, and its size in px (width, height)."""

    name: str
    make: Callable[[], Image.Image]
    size: tuple[int, int]


def photograph(name: str) -> Callable[[], Image.Image]:
    """Maker of a photograph that ships in the scikit-image wheel."""
    return lambda: Image.fromarray(getattr(skimage.data, name)()).convert("RGB")


def face(index: int) -> Callable[[], Image.Image]:
    """Maker of face `index` of `FACE_SEED` (MobileStyleGAN, 1024 px)."""
    return lambda: next(generate("mobile-stylegan", 1, FACE_SEED, start=index))[1]


def upscaled(name: str) -> Callable[[], Image.Image]:
    """Maker of a photograph reduced to a quarter and enlarged again by Real-ESRGAN x4 (on the CPU)."""
    return lambda: reconstruct(photograph(name)(), "realesrgan-x4")


EXAMPLES = (
    Example("astronaut.webp", photograph("astronaut"), (480, 480)),
    Example("camera.png", photograph("camera"), (400, 400)),
    Example("cat.jpg", photograph("chelsea"), (400, 300)),
    Example("coffee.jpg", photograph("coffee"), (512, 384)),
    Example("galaxies.webp", photograph("hubble_deep_field"), (512, 384)),
    Example("retina.jpg", photograph("retina"), (480, 480)),
    Example("rocket.png", photograph("rocket"), (400, 300)),
    Example("coffee-upscaled.jpg", upscaled("coffee"), (512, 384)),
    Example("face-beard.webp", face(2), (480, 480)),
    Example("face-smiling.png", face(8), (240, 400)),
    Example("face-glasses.jpg", face(15), (480, 480)),
    Example("face-outdoors.webp", face(16), (512, 384)),
    Example("face-young.png", face(17), (240, 400)),
)


def finish(picture: Image.Image, size: tuple[int, int], path: Path) -> None:
    """Crops the picture to the size's shape, reduces it and writes it; never enlarges."""
    if picture.width < size[0] or picture.height < size[1]:
        raise SystemExit(f"{path.name}: the source is {picture.size}, smaller than {size}")
    encoded = BytesIO()
    ImageOps.fit(picture, size, Image.Resampling.LANCZOS).save(encoded, **ENCODERS[path.suffix])
    if len(encoded.getvalue()) > MAX_BYTES:
        raise SystemExit(f"{path.name} has {len(encoded.getvalue())} bytes; at most {MAX_BYTES} are allowed")
    path.write_bytes(encoded.getvalue())


if __name__ == "__main__":
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent
    folder.mkdir(parents=True, exist_ok=True)
    for example in EXAMPLES:
        finish(example.make(), example.size, folder / example.name)
        print(folder / example.name)
