"""Bars: verdicts on the pictures of each generator and of each real source."""

from collections.abc import Sequence

from detector.evaluation.bootstrap import Estimate
from detector.evaluation.canvas import CLASS_COLOURS, GREY, NAMES, UNCERTAIN, Axes, Figure, make_figure, tidy
from detector.evaluation.frame import AI, REAL, Frame
from detector.evaluation.report import Report, Row, Table

MOST_BARS, MOST_LETTERS = 40, 34


def plot_generators(report: Report, frame: Frame) -> Figure | None:
    """Verdicts on each generator's pictures, and its AUROC with the interval."""
    rows = _bars(report, report.table("generators"), "auroc")
    if not rows:
        return None
    figure, panels = make_figure(1.0 + 0.26 * len(rows), 2 if frame.judged else 1)
    if frame.judged:
        _stack(panels[0], rows, AI, ("found", "flagged_ai"), ("missed", "cleared_ai"))
    right = panels[-1]
    values = [row.values["auroc"] for row in rows]
    places = [place for place, one in enumerate(values) if one.value is not None]
    right.barh(places, [values[place].value for place in places], 0.62, color=CLASS_COLOURS[AI], alpha=0.55)
    _whiskers(right, values)
    right.axvline(0.5, color=GREY, linewidth=0.8, linestyle=":")
    right.set_xlim(0, 1)
    right.set_xlabel("AUROC against all real pictures", fontsize=9, color=GREY)
    _name_rows(panels[0], rows, AI)
    if frame.judged:
        right.set_yticks([])
        right.set_ylim(len(rows) - 0.4, -0.6)
    tidy(right, grid="x")
    return figure


def plot_real_sources(report: Report, frame: Frame) -> Figure | None:
    """Verdicts on each real source's pictures."""
    rows = _bars(report, report.table("real_sources"), "flagged_real", -1)
    if not rows or not frame.judged:
        return None
    figure, (axes,) = make_figure(1.0 + 0.24 * len(rows))
    _stack(axes, rows, REAL, ("false alarms", "flagged_real"), ("cleared", "cleared_real"))
    _name_rows(axes, rows, REAL)
    return figure


def _bars(report: Report, table: Table | None, measure: str, worst: int = 1) -> list[Row]:
    """The rows under the reference transform, the lowest value first; the highest with `worst` -1."""
    rows = [row for row in (table.rows if table else ()) if row.transform == report.reference]

    def place(row: Row) -> tuple[float, str]:
        value = row.values[measure].value
        return (2.0 if value is None else worst * value, row.name)

    return sorted(rows, key=place)[:MOST_BARS]


def _stack(axes: Axes, rows: Sequence[Row], label: int, ai: tuple[str, str], real: tuple[str, str]) -> None:
    """Bars of the verdicts ai, uncertain and real on the pictures of one class."""
    places = range(len(rows))
    flagged = [row.values[ai[1]].value or 0.0 for row in rows]
    cleared = [row.values[real[1]].value or 0.0 for row in rows]
    rest = [1 - a - r for a, r in zip(flagged, cleared, strict=True)]
    starts = [a + u for a, u in zip(flagged, rest, strict=True)]
    axes.barh(places, flagged, 0.62, color=CLASS_COLOURS[AI], label=f"verdict ai ({ai[0]})")
    axes.barh(places, rest, 0.62, flagged, color=UNCERTAIN, label="uncertain")
    axes.barh(places, cleared, 0.62, starts, color=CLASS_COLOURS[REAL], label=f"verdict real ({real[0]})")
    axes.set_xlim(0, 1)
    axes.set_xlabel(f"share of the {NAMES[label]} pictures", fontsize=9, color=GREY)
    tidy(axes, grid="x")
    axes.figure.legend(loc="outside upper right", frameon=False, fontsize=9, ncols=3)


def _name_rows(axes: Axes, rows: Sequence[Row], label: int) -> None:
    names = [f"{_shorten(row.name)} ({row.pictures[NAMES[label].lower()]})" for row in rows]
    # Names come from strangers: a dollar sign in one must not start a formula.
    axes.set_yticks(range(len(rows)), names, fontsize=8, parse_math=False)
    axes.set_ylim(len(rows) - 0.4, -0.6)


def _whiskers(axes: Axes, values: Sequence[Estimate]) -> None:
    for place, one in enumerate(values):
        if one.low is not None and one.high is not None:
            dashes = (0, (2, 1.5)) if one.caveat else "-"
            axes.plot([one.low, one.high], [place, place], color="black", linewidth=1.2, linestyle=dashes)
            axes.plot([one.low, one.high], [place, place], "|", color="black", markersize=6)


def _shorten(name: str) -> str:
    return f"{name[: MOST_LETTERS - 1]}…" if len(name) > MOST_LETTERS else name
