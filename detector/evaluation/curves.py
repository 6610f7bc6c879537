"""Curves: ROC, reliability, histograms of scores, and robustness."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from detector.evaluation.bootstrap import Estimate
from detector.evaluation.canvas import (
    CLASS_COLOURS,
    GREY,
    NAMES,
    PALE,
    Axes,
    Figure,
    make_figure,
    take_reference,
    tidy,
)
from detector.evaluation.frame import AI, REAL, Frame
from detector.evaluation.measures import ECE_BINS, Weighted
from detector.evaluation.report import Report
from mirage.transforms import TIERS

MOST_CURVES = 4
# Neither class's colour; told apart by dashes as well.
STYLES = (
    ("#000000", "-"),
    ("#009E73", (0, (5, 2))),
    ("#CC79A7", (0, (1.5, 1.5))),
    ("#8C6D00", (0, (6, 2, 1, 2))),
)
LADDERS: dict[str, tuple[tuple[str, str], ...]] = {
    "JPEG quality": tuple((f"jpeg-{q}", f"{q}") for q in (95, 90, 70, 50, 30)),
    "WebP quality": (("webp-80", "80"), ("webp-50", "50")),
    "scale": (("resize-0.5", "½"), ("resize-0.25", "¼")),
    "blur, px": (("blur-0.5", "0.5"), ("blur-1", "1"), ("blur-2", "2")),
    "noise": (("noise-0.02", "0.02"), ("noise-0.05", "0.05"), ("noise-0.1", "0.1")),
    "social network, messenger": (("web", "web"), ("hard", "hard")),
    "other": (("crop-0.8", "crop"), ("screenshot", "screenshot"), ("double-jpeg", "double\nJPEG")),
}  # fmt: skip
UNORDERED = "other"  # its steps are no ladder, so nothing joins them
CURVES = {
    "auroc": ("AUROC", "black", "-"),
    "flagged_ai": ("AI found", CLASS_COLOURS[AI], (0, (4, 1.5))),
    "flagged_real": ("false alarms", CLASS_COLOURS[REAL], (0, (1.5, 1.5))),
}


def plot_roc(report: Report, frame: Frame) -> Figure | None:
    """ROC curves of the tiers, or of the first transforms."""
    names = [name for name in TIERS if name in report.transforms] or list(report.transforms)
    figure, (axes,) = make_figure(4.4, width=4.8)
    axes.plot([0, 1], [0, 1], color=PALE, linewidth=1)
    drawn = 0
    for name, (colour, dashes) in zip(names[:MOST_CURVES], STYLES, strict=False):
        part = frame.take(frame.transform == name)
        if part.of(REAL).any() and part.of(AI).any():
            curve = Weighted(part, np.ones((1, len(part)))).curve
            axes.plot(curve.false_rate[0], curve.true_rate[0], color=colour, linestyle=dashes, label=name)
            drawn += 1
    if not drawn:
        return None
    for rate in (0.01, 0.05):
        axes.axvline(rate, color=GREY, linewidth=0.8, linestyle=":", zorder=0)
    axes.set_aspect("equal")
    axes.set_xlim(0, 1)
    axes.set_ylim(0, 1.01)
    axes.set_xlabel("false-positive rate (real pictures)", fontsize=9, color=GREY)
    axes.set_ylabel("true-positive rate (AI pictures)", fontsize=9, color=GREY)
    tidy(axes)
    axes.legend(loc="lower right", frameon=False, fontsize=9)
    return figure


def plot_reliability(report: Report, frame: Frame) -> Figure | None:
    """Stated against observed share of AI under the reference transform, and the pictures of each bin."""
    part = take_reference(report, frame)
    if not len(part) or not part.calibrated:
        return None
    figure, (axes, below) = make_figure(4.6, 1, rows=2, heights=(3, 1))
    edges = np.linspace(0, 1, ECE_BINS + 1)
    bins = np.minimum((part.probability * ECE_BINS).astype(int), ECE_BINS - 1)
    filled = np.unique(bins)
    stated = [part.probability[bins == place].mean() for place in filled]
    observed = [part.label[bins == place].mean() for place in filled]
    axes.plot([0, 1], [0, 1], color=PALE, linewidth=1)
    axes.plot(stated, observed, "o-", color="black", markersize=5, linewidth=1)
    axes.set_ylabel("observed share of AI", fontsize=9, color=GREY)
    for label in (REAL, AI):
        counts = np.histogram(part.probability[part.of(label)], edges)[0]
        places = edges[:-1] + 0.026 + 0.048 * label
        below.bar(places, counts, 0.044, color=CLASS_COLOURS[label], label=NAMES[label])
    below.set_xlabel("stated probability of AI", fontsize=9, color=GREY)
    below.set_ylabel("pictures", fontsize=9, color=GREY)
    for each in (axes, below):
        each.set_xlim(0, 1)
        tidy(each)
    below.legend(loc="upper center", frameon=False, fontsize=9, ncols=2)
    return figure


def plot_scores(report: Report, frame: Frame) -> Figure | None:
    """Histograms of the probability, or of the score where there is none, by class."""
    part = take_reference(report, frame)
    if not len(part):
        return None
    values = part.probability if part.calibrated else part.score
    figure, (axes,) = make_figure(2.9)
    edges = np.linspace(0, 1, 21) if part.calibrated else np.histogram_bin_edges(values, 20)
    for label in (REAL, AI):
        own = values[part.of(label)]
        if len(own):
            shares = 100 * np.histogram(own, edges)[0] / len(own)
            dashes = "-" if label == REAL else (0, (3, 1.5))
            colour = CLASS_COLOURS[label]
            axes.stairs(shares, edges, fill=True, alpha=0.15, color=colour)
            axes.stairs(shares, edges, color=colour, linewidth=1.8, linestyle=dashes, label=NAMES[label])
    if report.origin is not None and part.calibrated:
        for name, place in (("real", report.origin.threshold_real), ("ai", report.origin.threshold_ai)):
            axes.axvline(place, color=GREY, linewidth=1, linestyle=":")
            axes.text(place, axes.get_ylim()[1], f" {name}", fontsize=8, color=GREY, va="top")
    axes.set_xlabel("probability of AI" if part.calibrated else "score", fontsize=9, color=GREY)
    axes.set_ylabel("% of the class", fontsize=9, color=GREY)
    tidy(axes)
    figure.legend(loc="outside upper right", frameon=False, fontsize=9, ncols=2)
    return figure


def plot_robustness(report: Report, frame: Frame) -> Figure | None:
    """One panel for each kind of degradation, from none to severe."""
    table = report.table("overall")
    rows = {row.transform: row for row in table.rows} if table else {}
    panels = {
        title: [(report.reference, "none"), *(step for step in steps if step[0] in rows)]
        for title, steps in LADDERS.items()
        if any(name in rows for name, _ in steps)
    }
    if not panels or report.reference not in rows:
        return None
    columns = min(3, len(panels))
    lines = -(-len(panels) // columns)
    figure, axes = make_figure(0.4 + 2.3 * lines, columns, rows=lines)
    for each, (title, steps) in zip(axes, panels.items(), strict=False):
        chosen = [rows[name] for name, _ in steps]
        for measure, (label, colour, dashes) in CURVES.items():
            line = "none" if title == UNORDERED else dashes
            _plot_curve(each, [row.values[measure] for row in chosen], label, colour, line)
        each.set_xticks(range(len(steps)), [text for _, text in steps])
        each.set_ylim(-0.02, 1.02)
        each.set_title(title, fontsize=9, loc="left")
        tidy(each)
        each.set_xlim(-0.3, len(steps) - 0.7)
    for each in axes[len(panels) :]:
        each.set_visible(False)
    handles, names = axes[0].get_legend_handles_labels()
    figure.legend(handles, names, loc="outside upper right", frameon=False, fontsize=9, ncols=3)
    return figure


def _plot_curve(axes: Axes, estimates: Sequence[Estimate], label: str, colour: str, dashes: Any) -> None:
    known = [(place, one) for place, one in enumerate(estimates) if one.value is not None]
    if not known:
        return
    axes.plot(
        [place for place, _ in known],
        [one.value for _, one in known],
        color=colour,
        linestyle=dashes,
        marker="o",
        markersize=3.5,
        linewidth=1.5,
        label=label,
    )
    banded = [(place, one) for place, one in known if one.low is not None]
    if dashes == "none":
        for place, one in banded:
            axes.plot([place, place], [one.low, one.high], color=colour, linewidth=4, alpha=0.2)
        return
    axes.fill_between(
        [place for place, _ in banded],
        [one.low for _, one in banded],
        [one.high for _, one in banded],
        color=colour,
        alpha=0.1,
        linewidth=0,
    )
