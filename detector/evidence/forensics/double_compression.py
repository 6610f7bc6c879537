"""JPEG ghosts: a quality at which compressing once more changes surprisingly little was used before."""

import io

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from detector.evidence.forensics.exhibits import Exhibit, draw_curve

QUALITIES = np.arange(40, 99)
SIDE_PX = 512
REACH = 5
# How far below its surroundings the curve must dip.
LEAST_DIP = 0.12


def double_compression(image: Image.Image, present_quality: int | None = None) -> Exhibit:
    """The change by compressing once more at each quality, and the earlier qualities that it betrays.

    Args:
        image: RGB as stored; its 8 x 8 grid must begin at the first pixel.
        present_quality: of the file itself, whose own dip is expected and not reported.

    Source: H. Farid, Exposing digital forgeries from JPEG ghosts, 2009.
    Differs: one curve over the whole crop instead of a map, for a file saved twice as a whole.
    """
    crop = image.crop((0, 0, min(image.width, SIDE_PX), min(image.height, SIDE_PX)))
    curve = ghost_curve(crop)
    dips = [
        quality
        for quality in find_dips(curve)
        if present_quality is None or abs(quality - present_quality) > 3
    ]
    earlier = [quality for quality in dips if present_quality is None or quality < present_quality]
    words = (
        f"dips at quality {', '.join(map(str, earlier))}" if earlier else "no dip below the present quality"
    )
    return Exhibit(
        name="double_compression",
        image=draw_curve(np.log(curve + 1e-6)),
        caption=(
            f"Change by compressing once more, over quality {QUALITIES[0]} to {QUALITIES[-1]}: {words}. A "
            "dip speaks for an earlier save; most pictures on the web were saved more than once."
        ),
        numbers={
            "earlier_qualities": [float(quality) for quality in earlier],
            "present_quality": present_quality,
        },
    )


def ghost_curve(image: Image.Image) -> NDArray[np.float64]:
    """Mean squared change at each of QUALITIES, (Q,), on luminance alone."""
    luminance = image.convert("L")
    original = np.asarray(luminance, dtype=np.float64)
    curve = []
    for quality in QUALITIES:
        buffer = io.BytesIO()
        luminance.save(buffer, "JPEG", quality=int(quality))
        curve.append(float(((np.asarray(Image.open(buffer), dtype=np.float64) - original) ** 2).mean()))
    return np.array(curve)


def find_dips(curve: NDArray[np.float64]) -> list[int]:
    """Qualities where the curve lies well below the line through its surroundings."""
    found = []
    for index in range(REACH, len(curve) - REACH):
        if curve[index] > curve[index - 2 : index + 3].min():
            continue
        expected = (curve[index - REACH] + curve[index + REACH]) / 2
        if expected > 0 and 1 - curve[index] / expected >= LEAST_DIP:
            found.append(int(QUALITIES[index]))
    return found
