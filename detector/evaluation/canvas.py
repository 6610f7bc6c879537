"""The ground that plots are drawn on: figures of their own, colours, and quiet axes."""

import io
import warnings
from collections.abc import Sequence
from typing import Any

from detector.evaluation.frame import AI, REAL, Frame
from detector.evaluation.report import Report
from mirage.extras import need

WIDTH_INCHES, DPI = 8.0, 120
NAMES = {REAL: "real", AI: "AI"}
# Two colours of Okabe and Ito's palette; each class has the same one in every plot, as in data cards.
CLASS_COLOURS = {REAL: "#0072B2", AI: "#D55E00"}
GREY, PALE, UNCERTAIN = "#555555", "#DDDDDD", "#D9D9D9"
Axes = Any  # matplotlib's, which is loaded only where a plot is drawn
Figure = Any


def make_figure(
    height: float,
    columns: int = 1,
    *,
    rows: int = 1,
    heights: Sequence[float] | None = None,
    width: float = WIDTH_INCHES,
) -> tuple[Figure, list[Axes]]:
    """A figure with a grid of axes, in inches."""
    # A figure of its own, not pyplot's: nothing stays behind in the process.
    figure = need("matplotlib.figure").Figure((width, height), layout="constrained")
    need("matplotlib.backends.backend_agg").FigureCanvasAgg(figure)
    return figure, list(figure.subplots(rows, columns, squeeze=False, height_ratios=heights).flat)


def tidy(axes: Axes, grid: str = "both") -> None:
    """Leave only what is needed to read the axes."""
    axes.set_axisbelow(True)
    axes.grid(axis=grid, color=PALE, linewidth=0.5)
    axes.tick_params(length=0, labelsize=8, pad=4)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.spines["bottom"].set_color(PALE)


def take_reference(report: Report, frame: Frame) -> Frame:
    """The predictions under the report's reference transform."""
    return frame.take(frame.transform == report.reference)


def encode_png(figure: Figure) -> bytes:
    """The figure as PNG; equal figures are equal bytes."""
    buffer = io.BytesIO()
    with warnings.catch_warnings():
        # A letter that the font lacks becomes a box; the tables hold the full name.
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        # Without the version of the drawing library equal plots are equal files.
        figure.savefig(buffer, format="png", dpi=DPI, metadata={"Software": None})
    return buffer.getvalue()
