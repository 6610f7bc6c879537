"""Perceptual fingerprints: what stays of a picture after re-encoding, resizing and mild edits."""

from dataclasses import dataclass

from PIL import Image

from mirage.extras import need

COARSE_SIDE, FINE_SIDE = 8, 16
SMALL_SIDE_PX = 128


@dataclass(frozen=True)
class Fingerprint:
    """Two DCT hashes of one picture.

    Attributes:
        coarse: 64 bits as 16 hex digits; finds candidates.
        fine: 256 bits as 64 hex digits; confirms them.
    """

    coarse: str
    fine: str


def fingerprint(image: Image.Image) -> Fingerprint:
    """The picture's fingerprint.

    Source: the pHash of the library ImageHash (Zauner 2010). Differs: the picture is reduced to 128 px
    first, which costs a twentieth of reducing a photograph with Lanczos and changes a bit in a hundred.
    """
    hashes = need("imagehash")
    small = image.convert("RGB").resize(
        (SMALL_SIDE_PX, SMALL_SIDE_PX), Image.Resampling.BOX, reducing_gap=2.0
    )
    grey = small.convert("L")
    return Fingerprint(str(hashes.phash(grey, COARSE_SIDE)), str(hashes.phash(grey, FINE_SIDE)))


def distance(left: str, right: str) -> int:
    """The number of bits in which two hashes of equal length differ."""
    return (int(left, 16) ^ int(right, 16)).bit_count()
