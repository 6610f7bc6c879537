"""One picture for a person to look at, with its numbers and what it can and cannot show."""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

LONGEST_SIDE_PX = 1600


@dataclass(frozen=True)
class Exhibit:
    """One forensic view. It is no verdict and enters no score.

    Attributes:
        name: e.g. "error_level".
        image: RGB or grey, at most 1,600 px on its longer side.
        caption: what is seen and what it does not prove.
        numbers: measured values, JSON-able.
    """

    name: str
    image: Image.Image
    caption: str
    numbers: dict[str, float | int | str | list[float] | None] = field(default_factory=dict)


def grey(image: Image.Image) -> NDArray[np.float64]:
    """Luminance, (H, W), 0..255."""
    return np.asarray(image.convert("L"), dtype=np.float64)


def to_image(values: NDArray[np.float64]) -> Image.Image:
    """Values clipped to 0..255 as a picture, reduced where it is too large to show."""
    shown = Image.fromarray(values.clip(0, 255).astype(np.uint8))
    factor = -(-max(shown.size) // LONGEST_SIDE_PX)
    return shown.reduce(factor) if factor > 1 else shown


def draw_curve(values: NDArray[np.float64], width: int = 640, height: int = 240) -> Image.Image:
    """A line through `values`, scaled to the picture, dark on white."""
    canvas = Image.new("L", (width, height), 255)
    if len(values) > 1:
        low, high = float(values.min()), float(values.max())
        scaled = (values - low) / ((high - low) or 1.0)
        x = np.linspace(8, width - 8, len(values))
        points = [
            (float(at), float(height - 8 - value * (height - 16)))
            for at, value in zip(x, scaled, strict=True)
        ]
        ImageDraw.Draw(canvas).line(points, fill=0, width=2)
    return canvas
