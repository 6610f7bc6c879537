"""Plots of a data set's counts, drawn for the width of a card and for colour-blind eyes."""

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

from mirage.cards.counts import EDGES, LABELS, Counts, GeneratorCounts, Spread
from mirage.cards.tables import NAMES, UNKNOWN, splits_of
from mirage.extras import need

# Two colours of Okabe and Ito's palette; each class has the same one in every plot.
COLOURS = {"real": "#0072B2", "ai": "#D55E00"}
# Dashes on top, so that equal outlines show both colours.
LINES: dict[str, dict[str, Any]] = {
    "real": {"linewidth": 2.0},
    "ai": {"linewidth": 1.6, "linestyle": (0, (3, 1.5))},
}
SPLIT_MARKS = {"train": ("o", "#117755"), "calibration": ("D", "#AA4499"), "devtest": ("s", "#222222")}
GREY, PALE = "#555555", "#DDDDDD"
WIDTH_INCHES, DPI = 7.5, 160
MOST_GENERATORS = 30
MOST_LETTERS = 38
TICKS = {
    "megapixels": {0.001: "0.001", 0.01: "0.01", 0.1: "0.1", 1.0: "1", 10.0: "10", 100.0: "100"},
    "aspect": {0.25: "1:4", 0.5: "1:2", 1.0: "1:1", 2.0: "2:1", 4.0: "4:1"},
    "bytes per pixel": {0.01: "0.01", 0.1: "0.1", 1.0: "1", 10.0: "10"},
    "JPEG quality": {20.0: "20", 40.0: "40", 60.0: "60", 80.0: "80", 100.0: "100"},
}
Axes = Any  # matplotlib's, which is loaded only where a plot is drawn
Figure = Any


@dataclass(frozen=True)
class Plot:
    """One drawn plot.

    Attributes:
        path: of the PNG file.
        title: a few words.
        text: what it shows, for those who cannot see it.
    """

    path: Path
    title: str
    text: str


def draw(counts: Counts, folder: Path) -> tuple[Plot, ...]:
    """The plots of `counts`, written into `folder` as PNG files; one without data is left out.

    Raises:
        MissingExtra: matplotlib is not installed.
    """
    need("matplotlib")
    folder.mkdir(parents=True, exist_ok=True)
    drawn = []
    for name, (title, text, plot) in PLOTS.items():
        figure = plot(counts)
        if figure is None:
            continue
        path = folder / f"{name}.png"
        with warnings.catch_warnings():
            # A letter that the font lacks becomes a box; the tables hold the full name.
            warnings.filterwarnings("ignore", message="Glyph .* missing from font")
            # Without the version of the drawing library equal plots are equal files.
            figure.savefig(path, dpi=DPI, metadata={"Software": None})
        drawn.append(Plot(path, title, text))
    return tuple(drawn)


def plot_splits(counts: Counts) -> Figure | None:
    """Bars of both classes for each split."""
    kept = counts.by("split", "label")
    return _paired_bars({split: _both(kept, split) for split in splits_of(counts)})


def plot_domains(counts: Counts) -> Figure | None:
    """Bars of both classes for each domain, most pictures first."""
    kept, totals = counts.by("domain", "label"), counts.by("domain")
    names = sorted((name for (name,) in totals), key=lambda name: (-totals[name,], name))
    return _paired_bars({name or UNKNOWN: _both(kept, name) for name in names})


def _both(kept: dict[tuple[str, ...], int], name: str) -> dict[str, int]:
    return {label: kept.get((name, label), 0) for label in LABELS}


def _paired_bars(rows: dict[str, dict[str, int]]) -> Figure | None:
    if not rows:
        return None
    figure, (axes,) = _figure(0.9 + 0.5 * len(rows))
    for place, label in enumerate(LABELS):
        heights = [row + 0.2 - 0.4 * (1 - place) for row in range(len(rows))]
        numbers = [row[label] for row in rows.values()]
        bars = axes.barh(heights, numbers, 0.36, color=COLOURS[label], label=NAMES[label])
        axes.bar_label(bars, [f"{number:,}" for number in numbers], padding=3, fontsize=9, color=GREY)
    _name_rows(axes, list(rows), range(len(rows)))
    _tidy_bars(axes)
    _legend(figure)
    return figure


def plot_generators(counts: Counts) -> Figure | None:
    """One bar for each generator and each kind of real picture, the AI ones above."""
    rows = [made for label in sorted(LABELS) for made in _leading(counts, label)]
    if not rows:
        return None
    figure, (axes,) = _figure(0.9 + 0.23 * len(rows))
    places: list[float] = []
    for label in sorted({entry.label for entry in rows}):  # AI above real
        made = [entry for entry in rows if entry.label == label]
        start = len(places) + (0.6 if places else 0)  # a gap between the classes
        places += [start + place for place in range(len(made))]
        kept = [entry.kept for entry in made]
        bars = axes.barh(places[-len(made) :], kept, 0.7, color=COLOURS[label], label=NAMES[label])
        axes.bar_label(bars, [f"{number:,}" for number in kept], padding=3, fontsize=8, color=GREY)
    _name_rows(axes, [entry.generator or UNKNOWN for entry in rows], places, fontsize=8)
    _tidy_bars(axes)
    _legend(figure)
    return figure


def _leading(counts: Counts, label: str) -> list[GeneratorCounts]:
    """The generators with most pictures, and one entry for all others."""
    made = [entry for entry in counts.generators if entry.label == label]
    rest = made[MOST_GENERATORS:]
    if len(rest) < 2:
        return made
    others = {"generator": f"{len(rest)} others", "kept": sum(entry.kept for entry in rest)}
    return [*made[:MOST_GENERATORS], rest[0].model_copy(update=others)]


def plot_sizes(counts: Counts) -> Figure | None:
    """Histograms of pixels and proportions by class."""
    return _histograms(counts, {"megapixels": "megapixels", "aspect": "width : height"})


def plot_qualities(counts: Counts) -> Figure | None:
    """Histograms of bytes per pixel and JPEG quality by class."""
    names = {"bytes per pixel": "bytes per pixel", "JPEG quality": "quality of the JPEG pictures"}
    return _histograms(counts, names)


def _histograms(counts: Counts, names: dict[str, str]) -> Figure | None:
    names = {measure: name for measure, name in names.items() if counts.spread(measure)}
    if not names:
        return None
    figure, panels = _figure(2.6, len(names))
    for axes, (measure, name) in zip(panels, names.items(), strict=True):
        spreads = counts.spread(measure)
        for label in [label for label in LABELS if label in spreads]:
            spread = spreads[label]
            shares = [100 * number / spread.pictures for number in spread.histogram]
            axes.stairs(shares, EDGES[measure], fill=True, alpha=0.15, color=COLOURS[label])
            axes.stairs(shares, EDGES[measure], **LINES[label], color=COLOURS[label], label=NAMES[label])
        _tidy_histogram(axes, measure, name, spreads)
    panels[0].set_ylabel("% of the class", fontsize=9, color=GREY)
    _legend(figure)
    return figure


def plot_timeline(counts: Counts) -> Figure | None:
    """One line for each dated generator: when it was released, and the splits it stands in."""
    dated = [made for made in counts.generators if made.label == "ai" and made.released]
    if not dated:
        return None
    dated.sort(key=lambda made: (made.released, made.generator))
    figure, (axes,) = _figure(0.9 + 0.23 * len(dated))
    for split, (mark, colour) in SPLIT_MARKS.items():
        rows = [row for row, made in enumerate(dated) if split in made.splits]
        dates = [date.fromisoformat(dated[row].released) for row in rows]
        places = [row + _offset(list(dated[row].splits), split) for row in rows]
        if rows:
            axes.plot(dates, places, mark, color=colour, markersize=5.5, label=split)
    axes.grid(axis="both", color=PALE, linewidth=0.6)
    _name_rows(axes, [made.generator for made in dated], range(len(dated)), fontsize=8)
    _bare(axes)
    _legend(figure)
    return figure


def _offset(splits: list[str], split: str) -> float:
    """How far a mark stands from its line, so that a generator's marks stand side by side."""
    return 0.4 * (splits.index(split) - (len(splits) - 1) / 2)


def _figure(height: float, panels: int = 1) -> tuple[Figure, list[Axes]]:
    # A figure of its own, not pyplot's: nothing stays behind in the process.
    figure = need("matplotlib.figure").Figure((WIDTH_INCHES, height), layout="constrained")
    need("matplotlib.backends.backend_agg").FigureCanvasAgg(figure)
    return figure, list(figure.subplots(1, panels, squeeze=False)[0])


def _legend(figure: Figure) -> None:
    shown: dict[str, Any] = {}
    for axes in figure.axes:
        handles, names = axes.get_legend_handles_labels()
        shown = dict(zip(names, handles, strict=True)) | shown
    figure.legend(shown.values(), shown.keys(), loc="outside upper right", frameon=False, fontsize=9, ncols=3)


def _name_rows(axes: Axes, names: list[str], places: Sequence[float], fontsize: int = 9) -> None:
    short = [f"{name[: MOST_LETTERS - 1]}…" if len(name) > MOST_LETTERS else name for name in names]
    # Names come from strangers: a dollar sign in one must not start a formula.
    axes.set_yticks(places, short, fontsize=fontsize, parse_math=False)
    axes.set_ylim(max(places) + 0.6, -0.6)


def _tidy_bars(axes: Axes) -> None:
    axes.margins(x=0.1)
    axes.set_xticks([])
    _bare(axes)
    axes.spines["bottom"].set_visible(False)


def _tidy_histogram(axes: Axes, measure: str, name: str, spreads: dict[str, Spread]) -> None:
    edges = EDGES[measure]
    filled = [any(column) for column in zip(*(spread.histogram for spread in spreads.values()), strict=True)]
    if measure != "JPEG quality":
        axes.set_xscale("log")
    first, last = filled.index(True), len(filled) - filled[::-1].index(True)
    axes.set_xlim(edges[max(first - 1, 0)], edges[min(last + 1, len(edges) - 1)])
    low, high = axes.get_xlim()
    ticks = {value: text for value, text in TICKS[measure].items() if low <= value <= high}
    axes.set_xticks(list(ticks), list(ticks.values()))
    axes.minorticks_off()
    axes.locator_params(axis="y", nbins=5)
    axes.set_ylim(bottom=0)
    axes.grid(axis="y", color=PALE, linewidth=0.6)
    axes.set_title(name, fontsize=10, loc="left", color="black")
    _bare(axes)


def _bare(axes: Axes) -> None:
    axes.set_axisbelow(True)
    axes.tick_params(length=0, labelsize=8, pad=5)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.spines["bottom"].set_color(PALE)


# File name -> title, what it shows, how it is drawn.
PLOTS: dict[str, tuple[str, str, Callable[[Counts], Figure | None]]] = {
    "splits": ("Pictures by split", "Bars: real and AI pictures in each split.", plot_splits),
    "domains": ("Pictures by domain", "Bars: real and AI pictures in each domain.", plot_domains),
    "generators": (
        "Pictures by generator",
        "Bars: AI pictures of each generator, then real pictures of each kind.",
        plot_generators,
    ),
    "sizes": (
        "Sizes",
        "Histograms of megapixels and of width over height, real against AI, in percent of each class.",
        plot_sizes,
    ),
    "quality": (
        "Bytes per pixel and JPEG quality",
        "Histograms of bytes per pixel and JPEG quality, real against AI, in percent of each class.",
        plot_qualities,
    ),
    "timeline": (
        "Release dates of the generators",
        "Marks: when each generator was released, and which splits its pictures stand in.",
        plot_timeline,
    ),
}
