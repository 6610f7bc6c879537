"""Degradations a picture meets on its way through the web: named, explicit, seeded where random.

One table serves training (`random_chain`, the same mixture for real and AI pictures) and
evaluation (`TRANSFORMS`, one fixed degradation per row of a robustness table).
"""

import io
from collections.abc import Callable
from typing import Self

import numpy as np
from PIL import Image, ImageFilter
from pydantic import BaseModel, ConfigDict, Field, model_validator

Filter = Image.Resampling
FILTERS = (Filter.BILINEAR, Filter.BICUBIC, Filter.LANCZOS, Filter.BOX, Filter.HAMMING)
MIN_SIDE_PX = 32


def jpeg(image: Image.Image, quality: int, subsampling: str = "4:2:0") -> Image.Image:
    """The picture after one JPEG encoding."""
    return _through(image, "JPEG", quality=quality, subsampling=subsampling)


def webp(image: Image.Image, quality: int, method: int = 4) -> Image.Image:
    """The picture after one lossy WebP encoding; `method` 0 is the fastest encoder, 6 the best."""
    return _through(image, "WEBP", quality=quality, method=method)


def _through(image: Image.Image, codec: str, **options: int | str) -> Image.Image:
    buffer = io.BytesIO()
    image.save(buffer, codec, **options)
    with Image.open(buffer) as decoded:
        return decoded.convert("RGB")


def resize(image: Image.Image, scale: float, resample: Filter = Filter.BICUBIC) -> Image.Image:
    """The picture scaled by a factor, both sides at least one pixel."""
    size = (max(1, round(image.width * scale)), max(1, round(image.height * scale)))
    return image if size == image.size else image.resize(size, resample)


def resize_long_side(image: Image.Image, side_px: int, resample: Filter = Filter.LANCZOS) -> Image.Image:
    """The picture shrunk to a longer side of at most `side_px`; smaller ones stay as they are."""
    longest = max(image.size)
    return image if longest <= side_px else resize(image, side_px / longest, resample)


def crop(image: Image.Image, share: float) -> Image.Image:
    """The centre of the picture, `share` of each side."""
    width, height = max(1, round(image.width * share)), max(1, round(image.height * share))
    left, top = (image.width - width) // 2, (image.height - height) // 2
    return image.crop((left, top, left + width, top + height))


def blur(image: Image.Image, radius_px: float) -> Image.Image:
    """The picture under a Gaussian blur with standard deviation `radius_px`."""
    return image.filter(ImageFilter.GaussianBlur(radius_px))


def noise(image: Image.Image, deviation: float, seed: int = 0) -> Image.Image:
    """The picture with seeded Gaussian noise; `deviation` is a share of the full range."""
    pixels = np.asarray(image, dtype=np.float32)
    added = np.random.default_rng(seed).standard_normal(pixels.shape, dtype=np.float32) * (deviation * 255)
    return Image.fromarray((pixels + added).round().clip(0, 255).astype(np.uint8))


def double_jpeg(image: Image.Image, first: int, second: int) -> Image.Image:
    """The picture after two JPEG encodings on the same block grid."""
    return jpeg(jpeg(image, first), second)


def screenshot(image: Image.Image, scale: float = 0.83) -> Image.Image:
    """The picture as shown on a screen at another size and saved without loss."""
    return resize(image, scale, Filter.BILINEAR)


def clean(image: Image.Image) -> Image.Image:
    """The picture as it is."""
    return image


def web(image: Image.Image) -> Image.Image:
    """The picture as a large social network hands it on: long side 768 px, JPEG q60."""
    return jpeg(resize_long_side(image, 768), 60)


def hard(image: Image.Image) -> Image.Image:
    """The picture as a messenger hands it on: long side 512 px, JPEG q40."""
    return jpeg(resize_long_side(image, 512), 40)


Transform = Callable[[Image.Image], Image.Image]

TIERS: dict[str, Transform] = {"clean": clean, "web": web, "hard": hard}

TRANSFORMS: dict[str, Transform] = {
    **TIERS,
    "jpeg-95": lambda image: jpeg(image, 95),
    "jpeg-90": lambda image: jpeg(image, 90),
    "jpeg-70": lambda image: jpeg(image, 70),
    "jpeg-50": lambda image: jpeg(image, 50),
    "jpeg-30": lambda image: jpeg(image, 30),
    "webp-80": lambda image: webp(image, 80),
    "webp-50": lambda image: webp(image, 50),
    "resize-0.5": lambda image: resize(image, 0.5),
    "resize-0.25": lambda image: resize(image, 0.25),
    "blur-0.5": lambda image: blur(image, 0.5),
    "blur-1": lambda image: blur(image, 1.0),
    "blur-2": lambda image: blur(image, 2.0),
    "noise-0.02": lambda image: noise(image, 0.02),
    "noise-0.05": lambda image: noise(image, 0.05),
    "noise-0.1": lambda image: noise(image, 0.1),
    "crop-0.8": lambda image: crop(image, 0.8),
    "screenshot": screenshot,
    "double-jpeg": lambda image: double_jpeg(image, 75, 90),
}


class ChainConfig(BaseModel):
    """The training mixture: how often each tier occurs, and its ranges (inclusive)."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    clean: float = Field(default=0.30, ge=0, le=1, description="share left nearly untouched")
    mid: float = Field(default=0.30, ge=0, le=1, description="share resized and recompressed once")
    web: float = Field(default=0.22, ge=0, le=1)
    hard: float = Field(default=0.18, ge=0, le=1)
    lossless: float = Field(default=0.4, ge=0, le=1, description="share of `clean` with no encoding at all")
    webp: float = Field(default=0.25, ge=0, le=1, description="share of `mid` encoded as WebP, not JPEG")
    full_chroma: float = Field(default=0.25, ge=0, le=1, description="share of JPEGs with 4:4:4, not 4:2:0")
    clean_quality: tuple[int, int] = (90, 97)
    mid_quality: tuple[int, int] = (60, 95)
    mid_scale: tuple[float, float] = (0.5, 1.0)
    web_side_px: int = 768
    web_quality: int = 60
    hard_side_px: int = 512
    hard_quality: int = 40
    webp_method: int = Field(default=0, ge=0, le=6, description="0 keeps a training step cheap")

    @model_validator(mode="after")
    def _shares_sum_to_one(self) -> Self:
        total = self.clean + self.mid + self.web + self.hard
        if abs(total - 1) > 1e-9:
            raise ValueError(f"clean + mid + web + hard is {total:g}; it must be 1")
        return self


CHAIN = ChainConfig()


def random_chain(image: Image.Image, rng: np.random.Generator, config: ChainConfig = CHAIN) -> Image.Image:
    """The picture after one random draw from the training mixture.

    Args:
        image: RGB.
        rng: seeded per sample, so that the same sample and seed give the same pixels.
        config: shares of the tiers and their ranges.
    """
    names = tuple(CHAIN_TIERS)
    shares = np.array([getattr(config, name) for name in names])
    tier = names[int(rng.choice(len(names), p=shares / shares.sum()))]
    return CHAIN_TIERS[tier](image, rng, config)


def _clean(image: Image.Image, rng: np.random.Generator, config: ChainConfig) -> Image.Image:
    if rng.random() < config.lossless:
        return image
    return _random_jpeg(image, rng, config, _integer(rng, config.clean_quality))


def _mid(image: Image.Image, rng: np.random.Generator, config: ChainConfig) -> Image.Image:
    low, high = config.mid_scale
    scale = max(rng.uniform(low, high), min(1.0, MIN_SIDE_PX / min(image.size)))
    image = resize(image, scale, _filter(rng))
    quality = _integer(rng, config.mid_quality)
    if rng.random() < config.webp:
        return webp(image, quality, config.webp_method)
    return _random_jpeg(image, rng, config, quality)


def _web(image: Image.Image, rng: np.random.Generator, config: ChainConfig) -> Image.Image:
    image = resize_long_side(image, config.web_side_px, _filter(rng))
    return jpeg(image, config.web_quality)


def _hard(image: Image.Image, rng: np.random.Generator, config: ChainConfig) -> Image.Image:
    image = resize_long_side(image, config.hard_side_px, _filter(rng))
    return jpeg(image, config.hard_quality)


CHAIN_TIERS: dict[str, Callable[[Image.Image, np.random.Generator, ChainConfig], Image.Image]] = {
    "clean": _clean,
    "mid": _mid,
    "web": _web,
    "hard": _hard,
}


def _random_jpeg(
    image: Image.Image, rng: np.random.Generator, config: ChainConfig, quality: int
) -> Image.Image:
    return jpeg(image, quality, "4:4:4" if rng.random() < config.full_chroma else "4:2:0")


def _integer(rng: np.random.Generator, span: tuple[int, int]) -> int:
    return int(rng.integers(span[0], span[1], endpoint=True))


def _filter(rng: np.random.Generator) -> Filter:
    return FILTERS[int(rng.integers(len(FILTERS)))]
