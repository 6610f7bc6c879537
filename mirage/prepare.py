"""From one file's bytes to the pictures worth storing: decode, validate, apply the source's rules."""

import hashlib
import io
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from PIL import Image

from mirage.decode import Limits, Picture, decode
from mirage.errors import UnreadableImage
from mirage.recipe import Recipe, Rules, SourceBase
from mirage.reconstruct import reconstruct
from mirage.sources import Candidate
from mirage.transforms import resize_long_side

ONE_COLOUR_SPREAD = 8  # the noise a lossy codec leaves on a flat area
KEPT_AS_THEY_ARE = {
    "JPEG": "jpg",
    "MPO": "jpg",
    "PNG": "png",
    "WEBP": "webp",
    "GIF": "gif",
    "BMP": "bmp",
    "TIFF": "tif",
    "AVIF": "avif",
    "HEIC": "heic",
    "JPEG2000": "jp2",
}


@dataclass(frozen=True)
class Piece:
    """One picture cut from a file, ready to store, or the reason why it is not.

    Attributes:
        name: of the piece within its file; empty for the whole file.
        reason: why it is rejected, one sentence; None when it is ready.
        label: real or ai.
        generator: that made it, or the kind of a real picture.
        domain: of its content, or `artifact`.
        data: the stored file's bytes.
        extension: of the stored file, no dot.
        width: in pixels, as stored and upright.
        height: in pixels, as stored and upright.
        format: of the file it came from.
        transforms: what changed its pixels, in order.
        warnings: of the decoder.
    """

    name: str
    label: str
    generator: str
    domain: str
    reason: str | None = None
    data: bytes = b""
    extension: str = ""
    width: int | None = None
    height: int | None = None
    format: str | None = None
    transforms: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True)
class Prepared:
    """All pieces of one file. `sha256` is None when there were no bytes."""

    path: str
    sha256: str | None
    pieces: tuple[Piece, ...]


@dataclass(frozen=True)
class Preparation:
    """What a worker needs to know of the recipe to prepare a source's files."""

    label: str
    generator: str
    domain: str
    rules: Rules
    limits: Limits
    min_side_px: int
    max_side_px: int


def preparation(source: SourceBase, recipe: Recipe) -> Preparation:
    """The part of the recipe that decides how a source's files are prepared."""
    min_side_px = source.rules.min_side_px or recipe.min_side_px
    limits = recipe.limits.model_copy(update={"min_side_px": min(recipe.limits.min_side_px, min_side_px)})
    return Preparation(
        source.label,
        source.generator,
        source.domain,
        source.rules,
        limits,
        min_side_px,
        recipe.max_side_px,
    )


def prepare(candidate: Candidate, plan: Preparation) -> Prepared:
    """The file's pieces in a fixed order; an unreadable file gives one piece with a reason."""
    blank = Piece("", plan.label, plan.generator, plan.domain)
    if candidate.data is None:
        return Prepared(candidate.path, None, (replace(blank, reason=candidate.error or "no content"),))
    sha256 = hashlib.sha256(candidate.data).hexdigest()
    try:
        picture = decode(candidate.data, plan.limits)
    except UnreadableImage as error:
        return Prepared(candidate.path, sha256, (replace(blank, reason=str(error)),))
    blank = replace(blank, format=picture.format, warnings=picture.warnings)
    pieces = tuple(
        _finish(piece, image, candidate.data, plan) for piece, image in _cut(blank, picture, sha256, plan)
    )
    return Prepared(candidate.path, sha256, pieces)


def _cut(
    blank: Piece, picture: Picture, sha256: str, plan: Preparation
) -> Iterator[tuple[Piece, Image.Image]]:
    image, transforms = _crop(picture.image, plan.rules)
    blank = replace(blank, transforms=transforms)
    if plan.rules.grid:
        yield from _cut_grid(blank, image, sha256, plan.rules)
    elif plan.rules.reconstruct:
        yield from _make_twins(blank, image, plan.rules)
    else:
        yield blank, image


def _crop(image: Image.Image, rules: Rules) -> tuple[Image.Image, tuple[str, ...]]:
    transforms: tuple[str, ...] = ()
    if rules.crop:
        left, top, right, bottom = rules.crop
        width, height = image.size
        image = image.crop(
            (round(left * width), round(top * height), round(right * width), round(bottom * height))
        )
        transforms += (f"crop {left:g} {top:g} {right:g} {bottom:g}",)
    if 0 < rules.crop_bottom_px < image.height:
        image = image.crop((0, 0, image.width, image.height - rules.crop_bottom_px))
        transforms += (f"crop-bottom {rules.crop_bottom_px} px",)
    return image, transforms


def _cut_grid(
    blank: Piece, image: Image.Image, sha256: str, rules: Rules
) -> Iterator[tuple[Piece, Image.Image]]:
    columns, rows = rules.grid or (1, 1)
    if image.width % columns or image.height % rows:
        reason = f"{image.width} x {image.height} px is no exact grid of {columns} x {rows}"
        yield replace(blank, reason=reason), image
        return
    width, height = image.width // columns, image.height // rows
    cells = {f"r{row}c{column}": (column, row) for row in range(rows) for column in range(columns)}
    by_hash = sorted(cells, key=lambda name: hashlib.sha256(f"{sha256}{name}".encode()).digest())
    for name in sorted(by_hash[: rules.keep_pieces]):
        column, row = cells[name]
        box = (column * width, row * height, (column + 1) * width, (row + 1) * height)
        cut = f"grid {columns}x{rows} {name}"
        yield replace(blank, name=name, transforms=(*blank.transforms, cut)), image.crop(box)


def _make_twins(blank: Piece, image: Image.Image, rules: Rules) -> Iterator[tuple[Piece, Image.Image]]:
    wanted = rules.reconstruct
    if wanted is None:
        return
    side = wanted.crop_px
    if min(image.size) < side:
        yield (
            replace(blank, reason=f"{image.width} x {image.height} px is too small for a {side}-px twin"),
            image,
        )
        return
    left, top = (image.width - side) // 2, (image.height - side) // 2
    real = image.crop((left, top, left + side, top + side))
    transforms = (*blank.transforms, f"centre-crop {side} px")
    if _is_one_colour(real):
        yield replace(blank, reason="the crop is all one colour", transforms=transforms), real
        return
    twin = replace(blank, name="real", domain="artifact", transforms=transforms)
    yield twin, real
    rebuilt = replace(
        twin,
        name="ai",
        label="ai",
        generator=wanted.method,
        transforms=(*transforms, f"reconstruct {wanted.method}"),
    )
    yield rebuilt, reconstruct(real, wanted.method)


def _finish(piece: Piece, image: Image.Image, original: bytes, plan: Preparation) -> Piece:
    """The piece with its stored bytes: the original ones when nothing changed a pixel."""
    piece = replace(piece, width=image.width, height=image.height)
    if piece.reason:
        return piece
    if min(image.size) < plan.min_side_px:
        reason = f"{image.width} x {image.height} px; the shorter side must be at least {plan.min_side_px} px"
        return replace(piece, reason=reason)
    if plan.rules.reject_one_colour and _is_one_colour(image):
        return replace(piece, reason="the picture is all one colour")
    if plan.rules.min_contrast and (contrast := _contrast(image)) < plan.rules.min_contrast:
        return replace(piece, reason=f"contrast {contrast:.1f} is below {plan.rules.min_contrast:g}")
    transforms = piece.transforms
    if max(image.size) > plan.max_side_px:
        before = f"{image.width}x{image.height}"
        image = resize_long_side(image, plan.max_side_px)
        transforms = (*transforms, f"resize {before} to {image.width}x{image.height} lanczos")
    if not transforms and piece.format in KEPT_AS_THEY_ARE:
        return replace(piece, data=original, extension=KEPT_AS_THEY_ARE[piece.format])
    return replace(
        piece,
        data=_lossless(image),
        extension="webp",
        width=image.width,
        height=image.height,
        transforms=(*transforms, "stored as lossless WebP"),
    )


def _lossless(image: Image.Image) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, "WEBP", lossless=True, quality=0, method=0)
    return buffer.getvalue()


def _is_one_colour(image: Image.Image) -> bool:
    # A few pixels settle nearly every picture; only a suspect is looked at whole.
    few = image.resize((16, 16), Image.Resampling.NEAREST)
    return _is_flat(few) and _is_flat(image)


def _is_flat(image: Image.Image) -> bool:
    pixels = np.asarray(image).reshape(-1, 3)
    return bool((pixels.max(axis=0) - pixels.min(axis=0) <= ONE_COLOUR_SPREAD).all())


def _contrast(image: Image.Image) -> float:
    """Standard deviation of the picture's 16 x 16 coarse greys, 0..128."""
    return float(np.asarray(image.convert("L").resize((16, 16), Image.Resampling.BOX), np.float64).std())
