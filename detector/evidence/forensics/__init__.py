"""Classical forensics as pictures for a person: exhibits without a verdict."""

from PIL import Image

from detector.evidence.forensics.double_compression import double_compression
from detector.evidence.forensics.error_level import error_level
from detector.evidence.forensics.exhibits import Exhibit
from detector.evidence.forensics.jpeg_tables import estimate_quality, jpeg_tables, read_tables
from detector.evidence.forensics.noise import noise_residual
from detector.evidence.forensics.resampling import resampling
from detector.evidence.forensics.spectrum import spectrum

__all__ = ["Exhibit", "make_exhibits"]


def make_exhibits(data: bytes, image: Image.Image) -> list[Exhibit]:
    """Every exhibit of one picture.

    Args:
        data: the file as it arrived.
        image: its pixels as RGB; best as stored, for a turned picture has lost its 8 x 8 grid.
    """
    tables = read_tables(data)
    present = estimate_quality(tables[0]).value if tables else None
    exhibits = [
        error_level(image),
        noise_residual(image),
        spectrum(image),
        resampling(image),
        double_compression(image, present),
    ]
    shown = jpeg_tables(data)
    return [*exhibits, shown] if shown else exhibits
