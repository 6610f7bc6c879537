"""Pieces: the pictures that a source's rules cut from one decoded file."""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from PIL import Image

from mirage.declarations import Rules
from mirage.decode import Picture
from mirage.perceptual import Fingerprint
from mirage.reconstruct import reconstruct

ONE_COLOUR_SPREAD = 8  # the noise a lossy codec leaves on a flat area


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
        stored_sha256: of `data`.
        fingerprint: of its pixels before alignment; None for reconstructions.
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
    stored_sha256: str | None = None
    fingerprint: Fingerprint | None = None
    extension: str = ""
    width: int | None = None
    height: int | None = None
    format: str | None = None
    transforms: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


def cut(
    blank: Piece, picture: Picture, sha256: str, rules: Rules, model: str | None = None
) -> Iterator[tuple[Piece, Image.Image]]:
    """Each piece with its pixels, in a fixed order.

    Args:
        blank: what all pieces have in common.
        picture: the decoded file.
        sha256: of the file; decides which cells of a grid are kept.
        rules: of the source.
        model: of the reconstructor, ready to load.
    """
    image, transforms = _crop(picture.image, rules)
    blank = replace(blank, transforms=transforms)
    if rules.grid:
        yield from _cut_grid(blank, image, sha256, rules)
    elif rules.reconstruct:
        yield from _make_twins(blank, image, rules, model)
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


def _make_twins(
    blank: Piece, image: Image.Image, rules: Rules, model: str | None
) -> Iterator[tuple[Piece, Image.Image]]:
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
    if is_one_colour(real):
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
    yield rebuilt, reconstruct(real, wanted.method, model)


def is_one_colour(image: Image.Image) -> bool:
    """Whether all pixels of the picture are as good as equal."""
    # A few pixels settle nearly every picture; only a suspect is looked at whole.
    few = image.resize((16, 16), Image.Resampling.NEAREST)
    return _is_flat(few) and _is_flat(image)


def _is_flat(image: Image.Image) -> bool:
    pixels = np.asarray(image).reshape(-1, 3)
    return bool((pixels.max(axis=0) - pixels.min(axis=0) <= ONE_COLOUR_SPREAD).all())
