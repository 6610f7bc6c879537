"""Noise residual: what a median filter takes away."""

import numpy as np
from PIL import Image, ImageFilter

from detector.evidence.forensics.exhibits import Exhibit, grey, to_image

GAIN = 12.0
TILE = 32


def noise_residual(image: Image.Image) -> Exhibit:
    """The luminance less its 3 x 3 median, around mid-grey, twelve times enlarged."""
    luminance = image.convert("L")
    residual = grey(luminance) - grey(luminance.filter(ImageFilter.MedianFilter(3)))
    levels = _tile_levels(residual)
    return Exhibit(
        name="noise_residual",
        image=to_image(128 + residual * GAIN),
        caption=(
            "Noise residual. A sensor leaves grain everywhere; smooth islands can come from denoising, "
            "retouching, strong compression or generation alike."
        ),
        numbers={
            "standard_deviation": round(float(residual.std()), 4),
            "tile_p10": round(float(np.percentile(levels, 10)), 4),
            "tile_p90": round(float(np.percentile(levels, 90)), 4),
        },
    )


def _tile_levels(residual: np.ndarray) -> np.ndarray:
    """Standard deviation of the residual in each tile of 32 x 32 px."""
    rows, columns = max(residual.shape[0] // TILE, 1), max(residual.shape[1] // TILE, 1)
    cut = residual[: rows * TILE, : columns * TILE]
    if cut.shape != (rows * TILE, columns * TILE):
        return np.array([residual.std()])
    return cut.reshape(rows, TILE, columns, TILE).std(axis=(1, 3)).ravel()
