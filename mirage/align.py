"""Alignment: real and AI pictures leave with one and the same distribution of sizes and encodings.

Sources differ in size, codec, quality and metadata, so a detector could tell their pictures apart
without looking at them. `align` draws all of these anew from one distribution, whatever the label,
which is no input. `mirage.bias.audit` measures what is left.
"""

import io
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, Self

import numpy as np
from PIL import Image
from pydantic import Field, field_validator, model_validator

from mirage.declarations import Part
from mirage.errors import MirageError

Codec = Literal["jpeg", "webp", "lossless"]
FILTERS = ("bilinear", "bicubic", "lanczos", "box", "hamming")


class TooSmall(MirageError):
    """A picture cannot be aligned without enlarging it; becomes a row with a reason."""


class Alignment(Part):
    """The distribution that every picture's size and encoding is drawn from.

    The defaults were chosen by measurement. A wide range of qualities is enough for the lossy files:
    choosing each quality so that the file meets a drawn number of bytes only moves what the content
    gives away from the bytes to the tables. Files without loss are stored without compression, since
    their compressed size would measure the content: it told two sets of the same kind of object apart
    with an AUC of 0.77.
    """

    long_sides_px: tuple[int, ...] = Field(
        default=(192, 224, 256, 320, 384, 448, 512, 640, 768),
        min_length=1,
        description="drawn evenly from those that fit; a picture must fit the smallest, at any aspect",
    )
    aspects: dict[str, float] = Field(
        default={"1:1": 0.4, "4:3": 0.2, "3:4": 0.2, "3:2": 0.1, "2:3": 0.1},
        description="width:height -> share",
    )
    native: float = Field(default=0.5, ge=0, le=1, description="share cut out at full size, not shrunk")
    least_part: float = Field(
        default=0.2,
        gt=0,
        le=1,
        description="of the largest part that fits, by its sides; less of a large photograph is bare sky",
    )
    codecs: dict[Codec, float] = Field(
        default={"jpeg": 0.4, "webp": 0.3, "lossless": 0.3},
        description="share of each; lossless is PNG without compression, 3 bytes per pixel",
    )
    jpeg_quality: tuple[int, int] = Field(default=(40, 98), description="inclusive")
    webp_quality: tuple[int, int] = Field(default=(40, 98), description="inclusive")
    full_chroma: float = Field(default=0.3, ge=0, le=1, description="share of JPEGs with 4:4:4, not 4:2:0")
    optimised: float = Field(
        default=0.5, ge=0, le=1, description="share of JPEGs with Huffman codes of their own"
    )
    webp_method: tuple[int, int] = Field(
        default=(0, 2), description="inclusive; 0 is the fastest encoder, 6 the best"
    )

    @field_validator("aspects", "codecs")
    @classmethod
    def _shares_sum_to_one(cls, shares: dict[str, float]) -> dict[str, float]:
        if min(shares.values(), default=0) < 0 or abs(sum(shares.values()) - 1) > 1e-9:
            raise ValueError(f"the shares must be positive and sum to 1, not {sum(shares.values()):g}")
        return shares

    @field_validator("aspects")
    @classmethod
    def _aspects_are_ratios(cls, aspects: dict[str, float]) -> dict[str, float]:
        for name in aspects:
            sides = name.split(":")
            if len(sides) != 2 or not all(side.isdecimal() and int(side) for side in sides):
                raise ValueError(f"aspect {name!r} is not width:height, such as 4:3")
        return aspects

    @model_validator(mode="after")
    def _ranges_are_valid(self) -> Self:
        if min(self.long_sides_px) < 32:
            raise ValueError(f"long_sides_px holds {min(self.long_sides_px)}; the least is 32")
        ranges = {"jpeg_quality": (1, 100), "webp_quality": (1, 100), "webp_method": (0, 6)}
        for name, (least, most) in ranges.items():
            low, high = getattr(self, name)
            if not least <= low <= high <= most:
                raise ValueError(f"{name} is {low}..{high}; it must be a range within {least}..{most}")
        return self

    @property
    def floor_px(self) -> int:
        """The shorter side, in pixels, from which a picture can be aligned whatever aspect is drawn."""
        return min(self.long_sides_px)


@dataclass(frozen=True)
class Aligned:
    """A picture ready to store.

    Attributes:
        data: the file's bytes, without metadata.
        extension: of the file, no dot.
        width: in pixels.
        height: in pixels.
        transforms: what was done, in order: "crop WIDTHxHEIGHT+LEFT+TOP", "resize WIDTHxHEIGHT FILTER",
            then one of "jpeg qQUALITY SUBSAMPLING" (perhaps with "optimised"),
            "webp qQUALITY methodMETHOD", "png uncompressed".
    """

    data: bytes
    extension: str
    width: int
    height: int
    transforms: tuple[str, ...]


DEFAULT_ALIGNMENT = Alignment()


def align(image: Image.Image, rng: np.random.Generator, config: Alignment = DEFAULT_ALIGNMENT) -> Aligned:
    """The picture cut, perhaps shrunk, and encoded as drawn; never enlarged, never distorted.

    Args:
        image: RGB, upright.
        rng: seeded from the file's content, so that it always gets the same alignment. Two
            pictures of one size with equal seeds are treated alike, as twins must be.
        config: the distribution.

    Raises:
        TooSmall: the picture's shorter side is below `config.floor_px`.
    """
    if min(image.size) < config.floor_px:
        raise TooSmall(
            f"{image.width} x {image.height} px; "
            f"alignment needs at least {config.floor_px} px on the shorter side"
        )
    size = _draw_size(image.size, rng, config)
    box, scaling = _draw_box(image.size, size, rng, config)
    left, top, right, bottom = box
    transforms = [f"crop {right - left}x{bottom - top}+{left}+{top}"] if box != (0, 0, *image.size) else []
    picture = image.crop(box)
    if picture.size != size:
        picture = picture.resize(size, Image.Resampling[scaling.upper()])
        transforms.append(f"resize {size[0]}x{size[1]} {scaling}")
    picture.info = {}  # Pillow would write comments and profiles found here into the new file
    codec = str(rng.choice(list(config.codecs), p=list(config.codecs.values())))
    data, extension, words = ENCODERS[codec](picture, rng, config)
    return Aligned(data, extension, *size, (*transforms, words))


def _draw_size(native: tuple[int, int], rng: np.random.Generator, config: Alignment) -> tuple[int, int]:
    """Width and height of the stored picture: a shared aspect, and a shared side that fits."""
    aspect = str(rng.choice(list(config.aspects), p=list(config.aspects.values())))
    across, down = (int(side) for side in aspect.split(":"))
    longest = max(across, down)
    fits = int(min(native[0] * longest / across, native[1] * longest / down))
    # Sorted, so that the order in a recipe does not matter.
    side = int(rng.choice(sorted(side for side in config.long_sides_px if side <= fits)))
    return max(1, round(side * across / longest)), max(1, round(side * down / longest))


def _draw_box(
    native: tuple[int, int], size: tuple[int, int], rng: np.random.Generator, config: Alignment
) -> tuple[tuple[int, int, int, int], str]:
    """The part of the picture to keep (left, top, right, bottom), and the filter that shrinks it.

    A random factor between "as large as the result" and "as large as fits" blurs what the bytes
    per pixel say: the same picture gives smooth or busy files depending on it.
    """
    largest = min(native[0] / size[0], native[1] / size[1])
    keep_pixels, place = rng.random() < config.native, rng.random(3)
    scaling = str(rng.choice(FILTERS))
    factor = max(1.0 if keep_pixels else largest ** place[0], config.least_part * largest)
    width, height = (min(whole, round(side * factor)) for whole, side in zip(native, size, strict=True))
    left, top = int(place[1] * (native[0] - width + 1)), int(place[2] * (native[1] - height + 1))
    return (left, top, left + width, top + height), scaling


def _jpeg(image: Image.Image, rng: np.random.Generator, config: Alignment) -> tuple[bytes, str, str]:
    quality = _integer(rng, config.jpeg_quality)
    subsampling = "4:4:4" if rng.random() < config.full_chroma else "4:2:0"
    optimised = bool(rng.random() < config.optimised)
    data = _save(image, "JPEG", quality=quality, subsampling=subsampling, optimize=optimised)
    return data, "jpg", f"jpeg q{quality} {subsampling}" + " optimised" * optimised


def _webp(image: Image.Image, rng: np.random.Generator, config: Alignment) -> tuple[bytes, str, str]:
    quality, method = _integer(rng, config.webp_quality), _integer(rng, config.webp_method)
    return _save(image, "WEBP", quality=quality, method=method), "webp", f"webp q{quality} method{method}"


def _lossless(image: Image.Image, rng: np.random.Generator, config: Alignment) -> tuple[bytes, str, str]:
    return _save(image, "PNG", compress_level=0), "png", "png uncompressed"


ENCODERS: dict[str, Callable[[Image.Image, np.random.Generator, Alignment], tuple[bytes, str, str]]] = {
    "jpeg": _jpeg,
    "webp": _webp,
    "lossless": _lossless,
}


def _integer(rng: np.random.Generator, span: tuple[int, int]) -> int:
    return int(rng.integers(span[0], span[1], endpoint=True))


def _save(image: Image.Image, codec: str, **options: int | str) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, codec, **options)
    return buffer.getvalue()
