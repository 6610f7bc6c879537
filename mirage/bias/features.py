"""Numbers for a learner from the container facts of a picture, the same ones in the same order always."""

from collections.abc import Callable

import numpy as np

from mirage.bias.headers import CONTAINERS, MODES, SUBSAMPLINGS, Header

FIRST_COEFFICIENTS = 4


def _sum(table: tuple[int, ...]) -> float:
    return float(sum(table)) if table else np.nan


def _code(names: tuple[str, ...], name: str | None) -> float:
    return np.nan if name is None else float(names.index(name))


def _number(value: float | None) -> float:
    return np.nan if value is None else float(value)


def _coefficients() -> dict[str, Callable[[Header], float]]:
    """Features for the first steps of both tables, where encoders differ most."""

    def step(table: str, place: int) -> Callable[[Header], float]:
        return lambda header: float((getattr(header, f"{table}_table") or [np.nan] * (place + 1))[place])

    places = range(FIRST_COEFFICIENTS)
    return {f"{table}_{place}": step(table, place) for table in ("luma", "chroma") for place in places}


FEATURES: dict[str, Callable[[Header], float]] = {
    "format": lambda header: _code(CONTAINERS, header.format),
    "width": lambda header: float(header.width),
    "height": lambda header: float(header.height),
    "aspect": lambda header: header.aspect,
    "file_bytes": lambda header: float(header.file_bytes),
    "bytes_per_pixel": lambda header: header.bytes_per_pixel,
    "quality": lambda header: _number(header.quality),
    "luma_sum": lambda header: _sum(header.luma_table),
    "chroma_sum": lambda header: _sum(header.chroma_table),
    **_coefficients(),
    "subsampling": lambda header: _code(SUBSAMPLINGS, header.subsampling),
    "progressive": lambda header: float(header.progressive),
    "lossless": lambda header: _number(header.lossless),
    "exif": lambda header: float(header.exif),
    "icc": lambda header: float(header.icc),
    "text": lambda header: float(header.text),
    "mode": lambda header: _code(MODES, header.mode),
    "depth": lambda header: _number(header.depth),
}
FEATURE_NAMES = tuple(FEATURES)
CATEGORIES = ("format", "subsampling", "mode")  # features whose numbers are names, not amounts


def feature_vector(header: Header) -> np.ndarray:
    """(F,) float64: the values of `FEATURES` in order, NaN where the format has no such fact."""
    return np.array([value(header) for value in FEATURES.values()])
