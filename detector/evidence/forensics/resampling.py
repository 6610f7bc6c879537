"""Traces of enlarging: interpolation makes the second difference periodic."""

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from detector.evidence.forensics.exhibits import Exhibit, draw_curve, grey

SIDE_PX = 2048
# A peak this many times the median of its neighbourhood is reported.
LEAST_PEAK = 6.0
NEIGHBOURS = 24


def resampling(image: Image.Image) -> Exhibit:
    """The spectrum of the mean second difference along rows and columns, with the strongest peaks.

    Source: A. C. Gallagher, Detection of linear and cubic interpolation in JPEG compressed images, 2005.
    """
    luminance = grey(image)[:SIDE_PX, :SIDE_PX]
    across, down = difference_spectrum(luminance), difference_spectrum(luminance.T)
    peaks = {"across": find_peaks(across), "down": find_peaks(down)}
    shown = " and ".join(
        f"{name} at {', '.join(f'{value:.3f}' for value in values)}"
        for name, values in peaks.items()
        if values
    )
    return Exhibit(
        name="resampling",
        image=draw_curve(np.log1p(across)),
        caption=(
            f"Periodicity of the second difference: {'peaks ' + shown if shown else 'no peak'} (cycles per "
            "pixel; those of JPEG blocks are left out). Peaks speak for enlarging, which every viewer does."
        ),
        numbers={name: [round(value, 4) for value in values] for name, values in peaks.items()},
    )


def difference_spectrum(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Magnitudes at 0..0.5 cycles per pixel of the mean absolute second difference along rows."""
    if values.shape[1] < 64:
        return np.zeros(2)
    second = np.abs(2 * values[:, 1:-1] - values[:, :-2] - values[:, 2:]).mean(axis=0)
    smooth = np.convolve(second, np.ones(15) / 15, mode="same")
    return np.abs(np.fft.rfft((second - smooth) * np.hanning(len(second))))


def find_peaks(spectrum: NDArray[np.float64]) -> list[float]:
    """Up to four frequencies that stand out, strongest first, without those of 8-pixel blocks."""
    count = len(spectrum)
    found: list[tuple[float, float]] = []
    for index in range(NEIGHBOURS, count - 1):
        around = spectrum[max(0, index - NEIGHBOURS) : index + NEIGHBOURS + 1]
        frequency = index / (2 * (count - 1))
        near_block = abs(frequency * 8 - round(frequency * 8)) < 0.06
        if near_block or spectrum[index] < around.max():
            continue
        strength = spectrum[index] / max(float(np.median(around)), 1e-9)
        if strength >= LEAST_PEAK:
            found.append((strength, frequency))
    return [frequency for _, frequency in sorted(found, reverse=True)[:4]]
