"""The one decoder: bytes of any common picture format to upright RGB pixels, within declared limits."""

import io
import re
import struct
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from PIL import Image, ImageCms
from pydantic import BaseModel, ConfigDict, Field

from mirage.errors import UnreadableImage

MIB = 2**20
LFS_POINTER = b"version https://git-lfs.github.com/spec/"
HEIF_BRANDS = frozenset(b"heic heix heim heis hevc hevx hevm hevs mif1 msf1".split())
ORIENTATION_TAG = 0x0112
JPEG_END = re.compile(rb"\xff[^\x00\xd0-\xd7\xff]")  # a marker that is neither stuffing, restart nor fill

# Formats Pillow decodes in-process and recognises by their first bytes. EPS and WMF start other
# programs, TGA and XBM accept almost any bytes, so they are left out.
FORMATS = (
    *("JPEG", "PNG", "WEBP", "AVIF", "GIF", "BMP", "TIFF", "JPEG2000", "PPM"),
    *("ICO", "ICNS", "DIB", "PSD", "QOI", "DDS", "SGI", "PCX"),
)


class Limits(BaseModel):
    """What a picture may cost and how small it may be."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    max_bytes: int = Field(default=100 * MIB, ge=1)
    max_pixels: int = Field(default=100_000_000, ge=1, description="checked from the header, before decoding")
    min_side_px: int = Field(default=32, ge=1)


@dataclass(frozen=True)
class Picture:
    """One decoded picture.

    Attributes:
        image: RGB, orientation applied, ICC profile converted to sRGB, transparency over white.
        format: of the container, e.g. "JPEG".
        width: in pixels, after orientation.
        height: in pixels, after orientation.
        warnings: one sentence each.
    """

    image: Image.Image
    format: str
    width: int
    height: int
    warnings: tuple[str, ...] = ()


DEFAULT_LIMITS = Limits()


def decode(data: bytes, limits: Limits = DEFAULT_LIMITS) -> Picture:
    """The picture in `data`: first frame, upright, 8-bit RGB in sRGB, transparency over white.

    Raises:
        UnreadableImage: the bytes are empty, no picture, cut short, or outside the limits.
    """
    _check_bytes(data, limits)
    try:
        opened = _open(data)
    except UnreadableImage:
        raise
    except Exception as error:
        # Pillow's readers raise almost any exception on damaged bytes.
        raise UnreadableImage(f"the picture's header is damaged: {_sentence(error)}") from error
    _check_size(opened, limits)
    warnings: list[str] = []
    try:
        opened.load()
        image = _upright(_to_rgb(opened, warnings), opened, warnings)
        format_name = "HEIC" if opened.format == "HEIF" else opened.format or "unknown"
        warnings += _frame_warnings(opened)
    except Exception as error:
        raise UnreadableImage(f"the picture is damaged or cut short: {_sentence(error)}") from error
    warnings += END_CHECKS.get(format_name, lambda _: [])(data)
    return Picture(image, format_name, image.width, image.height, tuple(warnings))


def _check_bytes(data: bytes, limits: Limits) -> None:
    if not data:
        raise UnreadableImage("the file is empty (0 bytes)")
    if len(data) > limits.max_bytes:
        raise UnreadableImage(f"the file has {len(data):,} bytes; at most {limits.max_bytes:,} are read")
    if data.startswith(LFS_POINTER):
        raise UnreadableImage("the file is a Git LFS pointer, not the picture itself")


def _check_size(image: Image.Image, limits: Limits) -> None:
    width, height = image.size
    if width * height > limits.max_pixels:
        raise UnreadableImage(
            f"the picture claims {width} x {height} = {width * height:,} pixels; "
            f"at most {limits.max_pixels:,} are decoded"
        )
    if min(width, height) < limits.min_side_px:
        raise UnreadableImage(
            f"the picture is {width} x {height} px; its shorter side must be at least {limits.min_side_px} px"
        )


def _sentence(error: Exception) -> str:
    text = " ".join(str(error).split()).rstrip(".") or type(error).__name__
    return text[:200]


def _open(data: bytes) -> Image.Image:
    """The lazily opened picture, by its first bytes.

    Pillow's own `Image.open` is not used: it would apply its process-wide bomb limit, whose
    message names neither the size nor our limit, and try formats that are not wanted here.
    """
    if data[4:8] == b"ftyp" and data[8:12] in HEIF_BRANDS and b"avif" not in data[8:64]:
        return _open_heif(data)
    Image.init()
    reasons = []
    for name in FORMATS:
        if name not in Image.OPEN:
            continue
        factory, accept = Image.OPEN[name]
        if accept is None or not _accepted(accept, data[:16]):
            continue
        try:
            return factory(io.BytesIO(data), "")
        except (SyntaxError, IndexError, TypeError, struct.error, OSError) as error:
            reasons.append(f"{name}: {_sentence(error)}")
    if reasons:
        raise UnreadableImage(f"the picture's header is damaged ({'; '.join(reasons)})")
    raise UnreadableImage(f"the bytes are not a picture of a supported format ({', '.join(FORMATS)}, HEIC)")


def _accepted(accept: Callable[[bytes], bool | str], prefix: bytes) -> bool:
    answer = accept(prefix)
    if isinstance(answer, str):
        raise UnreadableImage(f"this installation of Pillow cannot decode the format ({answer})")
    return bool(answer)


def _open_heif(data: bytes) -> Image.Image:
    try:
        from pillow_heif import HeifImageFile
    except ImportError as error:
        raise UnreadableImage(
            "the file is HEIC, which needs the package pillow-heif (pip install pillow-heif)"
        ) from error
    image: Image.Image = HeifImageFile(io.BytesIO(data))
    return image


def _to_rgb(image: Image.Image, warnings: list[str]) -> Image.Image:
    """8-bit RGB pixels: wide modes scaled, profile converted, transparency over white."""
    profile = image.info.get("icc_profile")
    image = _eight_bit(image)
    alpha = None
    if image.has_transparency_data:
        image = image.convert("RGBA")
        alpha = image.getchannel("A")
    if image.mode not in ("RGB", "L", "CMYK"):
        image = image.convert("RGB")
    rgb = _to_srgb(image, profile, warnings) if profile else image.convert("RGB")
    if alpha is None:
        return rgb
    white = Image.new("RGB", rgb.size, "white")
    white.paste(rgb, mask=alpha)
    return white


def _eight_bit(image: Image.Image) -> Image.Image:
    """The picture with one byte per channel; integer and float greys are scaled to 0..255."""
    if image.mode not in ("I", "F") and not image.mode.startswith("I;"):
        return image
    values = np.nan_to_num(np.asarray(image, dtype=np.float64))
    top = 65535.0 if image.mode.startswith("I;") else _full_scale(float(values.max(initial=0.0)), image.mode)
    return Image.fromarray((values / top * 255).round().clip(0, 255).astype(np.uint8))


def _full_scale(largest: float, mode: str) -> float:
    """The value that means white, guessed from the largest one: the file does not say."""
    scales = (1.0, 255.0, 65535.0, 2.0**32 - 1) if mode == "F" else (255.0, 65535.0, 2.0**32 - 1)
    return next((scale for scale in scales if largest <= scale), max(largest, 1.0))


def _to_srgb(image: Image.Image, profile: bytes, warnings: list[str]) -> Image.Image:
    try:
        transform = _srgb_transform(bytes(profile), image.mode)
        converted = transform.apply(image) if transform else image.convert("RGB")
    except (ImageCms.PyCMSError, OSError, ValueError):
        warnings.append("the colour profile cannot be used and was ignored")
        return image.convert("RGB")
    return converted


@lru_cache(maxsize=16)
def _srgb_transform(profile: bytes, mode: str) -> ImageCms.ImageCmsTransform | None:
    """The transform to sRGB, or None when the profile is sRGB already and pixels must stay as they are."""
    source = ImageCms.ImageCmsProfile(io.BytesIO(profile))
    if mode == "RGB" and "srgb" in (source.profile.profile_description or "").lower():
        return None
    # A grey file made RGB (by its transparency) no longer fits its grey profile: buildTransform raises.
    return ImageCms.buildTransform(source, ImageCms.createProfile("sRGB"), mode, "RGB")


TURNS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}


def _upright(rgb: Image.Image, opened: Image.Image, warnings: list[str]) -> Image.Image:
    """`rgb` turned as the EXIF orientation of `opened` says (read after load: TIFF turns itself)."""
    try:
        turn = TURNS.get(opened.getexif().get(ORIENTATION_TAG, 1))
    except Exception:
        # Broken EXIF must not cost the picture, and Pillow raises almost anything on it.
        warnings.append("the EXIF data is damaged; the orientation is unknown")
        return rgb
    return rgb.transpose(turn) if turn is not None else rgb


def _frame_warnings(image: Image.Image) -> list[str]:
    if image.format in ("GIF", "PNG", "WEBP", "AVIF", "TIFF") and getattr(image, "is_animated", False):
        return ["the file holds several frames or pages; only the first is used"]
    return []


def _png_end(data: bytes) -> list[str]:
    position = 8
    while position + 12 <= len(data):
        length, kind = struct.unpack(">I4s", data[position : position + 8])
        position += 12 + length
        if kind == b"IEND":
            return _trailing(len(data) - position, "PNG")
    return ["the PNG has no end chunk; it may be cut short"]


def _jpeg_end(data: bytes) -> list[str]:
    position = 2
    while match := JPEG_END.search(data, position):
        marker = data[match.start() + 1]
        if marker == 0xD9:
            return _trailing(len(data) - match.end(), "JPEG")
        length = data[match.end() : match.end() + 2]
        position = match.end() + (int.from_bytes(length, "big") if marker not in (0x01, 0xD8) else 0)
    return ["the JPEG has no end marker; it may be cut short"]


def _trailing(count: int, format_name: str) -> list[str]:
    return [f"{count:,} bytes after the end of the {format_name} were ignored"] if count > 0 else []


END_CHECKS: dict[str, Callable[[bytes], list[str]]] = {"PNG": _png_end, "JPEG": _jpeg_end}
