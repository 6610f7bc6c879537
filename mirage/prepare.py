"""From one file's bytes to the pictures worth storing: decode, validate, cut, align, encode."""

import hashlib
import io
from dataclasses import dataclass, replace

import numpy as np
from PIL import Image

from mirage.align import Alignment, TooSmall, align
from mirage.declarations import Rules
from mirage.decode import Limits, decode
from mirage.errors import UnreadableImage
from mirage.facts import Facts
from mirage.perceptual import fingerprint
from mirage.pieces import Piece, cut, is_one_colour
from mirage.sources import Candidate
from mirage.transforms import resize_long_side

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
class Prepared:
    """All pieces of one file.

    Attributes:
        path: of the file within its source.
        sha256: of its bytes; None when there were none.
        pieces: in a fixed order, at least one.
        failed: whether another try may go better: no bytes came, or the decoder crashed or hung.
    """

    path: str
    sha256: str | None
    pieces: tuple[Piece, ...]
    failed: bool = False


@dataclass(frozen=True)
class Preparation:
    """What a worker needs to know of the recipe to prepare a source's files.

    Attributes:
        rules: of the source.
        limits: of the decoder.
        min_side_px: smaller pictures are rejected.
        max_side_px: longer pictures are shrunk.
        align: of this split's pictures; None leaves them as they are.
        seed: of every draw, together with the file's hash.
        model: of the reconstructor, ready to load.
    """

    rules: Rules
    limits: Limits
    min_side_px: int
    max_side_px: int
    align: Alignment | None
    seed: int
    model: str | None


def failure(path: str, facts: Facts, sentence: str, data: bytes | None = None) -> Prepared:
    """A file of which nothing can be said but why; another try may go better."""
    sha256 = hashlib.sha256(data).hexdigest() if data else None
    return Prepared(path, sha256, (blank_piece(facts, sentence),), failed=True)


def blank_piece(facts: Facts, reason: str | None = None) -> Piece:
    """The piece with what was known before decoding."""
    return Piece("", facts.label, facts.generator, facts.domain, reason)


def prepare(candidate: Candidate, facts: Facts, plan: Preparation) -> Prepared:
    """The file's pieces in a fixed order; an unreadable file gives one piece with a reason."""
    if candidate.data is None:
        return failure(candidate.path, facts, candidate.error or "no content")
    blank = blank_piece(facts)
    sha256 = hashlib.sha256(candidate.data).hexdigest()
    try:
        picture = decode(candidate.data, plan.limits)
    except UnreadableImage as error:
        return Prepared(candidate.path, sha256, (replace(blank, reason=str(error)),))
    blank = replace(blank, format=picture.format, warnings=picture.warnings)
    pieces = tuple(
        _sealed(_finish(piece, image, candidate.data, sha256, plan))
        for piece, image in cut(blank, picture, sha256, plan.rules, plan.model)
    )
    return Prepared(candidate.path, sha256, pieces)


def _sealed(piece: Piece) -> Piece:
    return piece if piece.reason else replace(piece, stored_sha256=hashlib.sha256(piece.data).hexdigest())


def _finish(piece: Piece, image: Image.Image, original: bytes, sha256: str, plan: Preparation) -> Piece:
    """The piece with its stored bytes: the original ones when nothing changed a pixel."""
    piece = replace(piece, width=image.width, height=image.height)
    reason = piece.reason or _fault(image, plan)
    if reason:
        return replace(piece, reason=reason)
    if piece.name != "ai":
        piece = replace(piece, fingerprint=fingerprint(image))
    if plan.align is not None:
        return _aligned(piece, image, sha256, plan.align, plan.seed)
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


def _fault(image: Image.Image, plan: Preparation) -> str | None:
    """Why the picture is not worth storing."""
    if min(image.size) < plan.min_side_px:
        return f"{image.width} x {image.height} px; the shorter side must be at least {plan.min_side_px} px"
    if plan.rules.reject_one_colour and is_one_colour(image):
        return "the picture is all one colour"
    if plan.rules.min_contrast and (contrast := _contrast(image)) < plan.rules.min_contrast:
        return f"contrast {contrast:.1f} is below {plan.rules.min_contrast:g}"
    return None


def _aligned(piece: Piece, image: Image.Image, sha256: str, config: Alignment, seed: int) -> Piece:
    # Twins share one draw, so that size and codec cannot tell them apart; cells of a grid do not.
    cell = "" if piece.domain == "artifact" else piece.name
    digest = hashlib.sha256(f"{seed}\0{sha256}\0{cell}".encode()).digest()
    try:
        aligned = align(image, np.random.default_rng(int.from_bytes(digest[:8], "big")), config)
    except TooSmall as error:
        return replace(piece, reason=str(error))
    return replace(
        piece,
        data=aligned.data,
        extension=aligned.extension,
        width=aligned.width,
        height=aligned.height,
        transforms=(*piece.transforms, *aligned.transforms),
    )


def _lossless(image: Image.Image) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, "WEBP", lossless=True, quality=0, method=0)
    return buffer.getvalue()


def _contrast(image: Image.Image) -> float:
    """Standard deviation of the picture's 16 x 16 coarse greys, 0..128."""
    return float(np.asarray(image.convert("L").resize((16, 16), Image.Resampling.BOX), np.float64).std())
