"""Quantisation tables of a JPEG, and the quality setting that they come from."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from detector.evidence.containers import walk
from detector.evidence.forensics.exhibits import Exhibit, to_image

# Source: ITU-T T.81, table K.1, in zigzag order, as the libjpeg quality scale uses it.
STANDARD_LUMINANCE = np.array(
    [16, 11, 12, 14, 12, 10, 16, 14, 13, 14, 18, 17, 16, 19, 24, 40,
     26, 24, 22, 22, 24, 49, 35, 37, 29, 40, 58, 51, 61, 60, 57, 51,
     56, 55, 64, 72, 92, 78, 64, 68, 87, 69, 55, 56, 80, 109, 81, 87,
     95, 98, 103, 104, 103, 62, 77, 113, 121, 112, 100, 120, 92, 101, 103, 99]
)  # fmt: skip


class Quality(NamedTuple):
    """A guess at the quality setting: `exact` when the table is libjpeg's own for it."""

    value: int
    exact: bool


def read_tables(data: bytes) -> list[NDArray[np.int64]]:
    """The quantisation tables of a JPEG in zigzag order, (64,) each; empty for other files."""
    layout = walk(data)
    tables: list[NDArray[np.int64]] = []
    if layout is None or layout.container != "JPEG":
        return tables
    for part in layout.parts:
        payload = part.payload(data) if part.name == "DQT" else b""
        position = 0
        while position < len(payload) and len(tables) < 8:
            width = 2 if payload[position] >> 4 else 1
            raw = payload[position + 1 : position + 1 + 64 * width]
            if len(raw) < 64 * width:
                break
            tables.append(np.frombuffer(raw, ">u2" if width == 2 else "u1").astype(np.int64))
            position += 1 + 64 * width
    return tables


def estimate_quality(table: NDArray[np.int64]) -> Quality:
    """The libjpeg quality whose luminance table is nearest to `table` (64,), in zigzag order."""
    distances = [int(np.abs(standard_table(quality) - table).sum()) for quality in range(1, 101)]
    best = int(np.argmin(distances))
    return Quality(best + 1, distances[best] == 0)


def standard_table(quality: int) -> NDArray[np.int64]:
    """libjpeg's luminance table for a quality of 1..100, in zigzag order."""
    scale = 5000 // quality if quality < 50 else 200 - 2 * quality
    return ((STANDARD_LUMINANCE * scale + 50) // 100).clip(1, 255)


def jpeg_tables(data: bytes) -> Exhibit | None:
    """The luminance table as a picture of 8 x 8 fields with the quality estimate; None for no JPEG."""
    tables = read_tables(data)
    if not tables:
        return None
    quality = estimate_quality(tables[0])
    square = np.zeros(64)
    square[ZIGZAG] = tables[0]
    shown = np.kron(square.reshape(8, 8) / max(tables[0].max(), 1) * 255, np.ones((24, 24)))
    origin = (
        "libjpeg's own for that quality"
        if quality.exact
        else "not libjpeg's: cameras and editors have their own"
    )
    return Exhibit(
        name="jpeg_tables",
        image=to_image(shown).convert("L"),
        caption=f"Luminance quantisation table, about quality {quality.value}; the table is {origin}.",
        numbers={
            "quality": quality.value,
            "exact": str(quality.exact).lower(),
            "tables": len(tables),
            "luminance": [float(value) for value in tables[0]],
        },
    )


def _zigzag() -> NDArray[np.int64]:
    """Row-major index of each zigzag position."""
    places = sorted(
        ((row, column) for row in range(8) for column in range(8)),
        key=lambda place: (sum(place), place[0] if sum(place) % 2 else place[1]),
    )
    return np.array([row * 8 + column for row, column in places])


ZIGZAG = _zigzag()
