"""Fourier spectrum: periodic patterns that upsampling in generators and in cameras leaves."""

from itertools import pairwise

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from detector.evidence.forensics.exhibits import Exhibit, grey, to_image

SIDE_PX = 1024
PEAK_FACTOR = 6.0


def spectrum(image: Image.Image) -> Exhibit:
    """The logarithm of the centre's power spectrum, zero frequency in the middle."""
    window = _centre(grey(image))
    taper = np.outer(np.hanning(window.shape[0]), np.hanning(window.shape[1]))
    power = np.fft.fftshift(np.abs(np.fft.fft2((window - window.mean()) * taper)) ** 2)
    log = np.log1p(power)
    low, high = np.percentile(log, (1, 99.9))
    slope, peaks = _radial(power)
    return Exhibit(
        name="spectrum",
        image=to_image((log - low) / max(float(high - low), 1e-9) * 255),
        caption=(
            "Fourier spectrum of the centre. A regular lattice of bright dots away from the middle comes "
            "from periodic upsampling; screens, fabrics and JPEG blocks make dots as well."
        ),
        numbers={"radial_slope": round(slope, 4), "bright_dots": peaks},
    )


def _centre(values: NDArray[np.float64]) -> NDArray[np.float64]:
    height, width = (min(side, SIDE_PX) for side in values.shape)
    top, left = (values.shape[0] - height) // 2, (values.shape[1] - width) // 2
    return values[top : top + height, left : left + width]


def _radial(power: NDArray[np.float64]) -> tuple[float, int]:
    """Slope of log power over log frequency, and how many places stand far above their ring's median."""
    height, width = power.shape
    y, x = np.ogrid[:height, :width]
    radius = np.hypot((y - height // 2) / height, (x - width // 2) / width)
    rings = np.minimum((radius * 128).astype(int), 90)
    order = np.argsort(rings, axis=None)
    bounds = np.searchsorted(rings.ravel()[order], np.arange(92))
    flat = power.ravel()[order]
    medians = np.array([np.median(flat[a:b]) if b > a else 0.0 for a, b in pairwise(bounds)])
    used = np.arange(4, 60)
    used = used[medians[used] > 0]
    slope = float(np.polyfit(np.log(used / 128), np.log(medians[used]), 1)[0]) if len(used) > 8 else 0.0
    # Power in a ring is roughly exponential: e^6 times its median almost never happens by chance.
    dots = (power > medians[rings] * np.exp(PEAK_FACTOR)) & (rings > 16)
    return slope, int(dots.sum())
