"""Strict walkers over picture containers: which bytes are which part, and what belongs to none."""

from collections.abc import Callable

from detector.evidence.containers import bmff, gif, jpeg, png, riff, tiff
from detector.evidence.containers.parts import Layout, Part

__all__ = ["Layout", "Part", "walk"]


def _is_webp(data: bytes) -> bool:
    return data[:4] == b"RIFF" and data[8:12] == b"WEBP"


def _is_heif(data: bytes) -> bool:
    return data[4:8] == b"ftyp" and any(data[at : at + 4] in bmff.BRANDS for at in range(8, 64, 4))


SNIFFERS: tuple[tuple[Callable[[bytes], bool], Callable[[bytes, int], Layout]], ...] = (
    (lambda data: data[:3] == b"\xff\xd8\xff", jpeg.walk),
    (lambda data: data.startswith(png.SIGNATURE), png.walk),
    (_is_webp, riff.walk),
    (_is_heif, bmff.walk),
    (lambda data: data[:6] in (b"GIF87a", b"GIF89a"), gif.walk),
    (lambda data: data[:4] in (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+"), tiff.walk),
)


def walk(data: bytes, max_parts: int = 20_000) -> Layout | None:
    """The layout of the container that `data` begins with, or None for any other."""
    head = data[:64]
    for matches, walker in SNIFFERS:
        if matches(head):
            return walker(data, max_parts)
    return None
