"""What the report says to people: sections of text and tables, rendered as Markdown and as a page."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from detector.evaluation.bootstrap import Estimate
from detector.evaluation.comparisons import FLIPS
from detector.evaluation.measures import MEASURES
from detector.evaluation.report import Report, Row, Table

NOTHING = "–"
MOST_SHOWN = 6
GENERATOR_COLUMNS = (
    *("auroc", "average_precision", "balanced_accuracy_at_half", "tpr_at_5_percent_fpr"),
    *("right_ai_at_half", "flagged_ai", "cleared_ai"),
)
# Which measures people see; the CSV files have them all.
SHOWN: dict[str, tuple[str, ...]] = {
    "overall": (
        *("auroc", "average_precision", "equal_error_rate", "tpr_at_1_percent_fpr", "tpr_at_5_percent_fpr"),
        *("accuracy_at_half", "balanced_accuracy_at_half", "flagged_real", "flagged_ai", "decided"),
        *("right_when_decided", "ece", "brier"),
    ),
    "generators": GENERATOR_COLUMNS,
    "held_out_generators": GENERATOR_COLUMNS,
    "families": GENERATOR_COLUMNS,
    "real_sources": ("flagged_real", "cleared_real", "right_real_at_half", "auroc", "tpr_at_5_percent_fpr"),
    "domains": (
        "auroc",
        "average_precision",
        "balanced_accuracy_at_half",
        "flagged_real",
        "flagged_ai",
        "decided",
    ),
    "subsets": (
        "accuracy_at_half",
        "balanced_accuracy_at_half",
        "average_precision",
        "auroc",
        "equal_error_rate",
    ),
    "macro": (
        *("auroc", "average_precision", "balanced_accuracy_at_half", "tpr_at_5_percent_fpr"),
        *("flagged_real", "flagged_ai"),
    ),
    "flips": tuple(FLIPS),
    "baselines": (
        *("auroc", "average_precision", "tpr_at_5_percent_fpr", "balanced_accuracy_at_half"),
        *("flagged_real", "flagged_ai", "ece", "brier"),
    ),
}
SHOWN["differences"] = SHOWN["baselines"]
FLIP_TITLES = {
    "changed": "changed",
    "swapped": "ai ↔ real",
    "became_uncertain": "became uncertain",
    "became_decided": "became decided",
    "shift": "mean |Δp|",
}
ORDER = (
    *("overall", "macro", "generators", "held_out_generators", "families", "domains", "real_sources"),
    *("subsets", "flips", "baselines", "differences"),
)
# In these a row for every transform stands in one table; of the others the reference comes first.
TOGETHER = frozenset(("overall", "flips", "baselines", "differences"))
PLOTS_OF = {
    "overall": ("robustness", "roc", "reliability", "scores"),
    "generators": ("generators",),
    "real_sources": ("real_sources",),
}

REMARKS = {
    "undefined": f"{NOTHING} undefined",
    "no_interval": "Without an interval",
    "caveat": "To be read with care",
}


class Grid(NamedTuple):
    """A table of text.

    Attributes:
        title: the transform, or nothing.
        columns: names; the last `numeric` of them stand at the right.
        folded: whether a page hides it until it is asked for.
    """

    title: str
    columns: tuple[str, ...]
    rows: list[list[str]]
    numeric: int
    folded: bool = False


class Section(NamedTuple):
    """A heading, sentences, plots by name, tables, and remarks below them."""

    title: str
    text: list[str]
    plots: tuple[str, ...]
    grids: list[Grid]
    remarks: list[str]


def compose(report: Report) -> list[Section]:
    """The report in sections."""
    tables = [table for name in ORDER if (table := report.table(name)) is not None]
    return [
        _introduction(report),
        *(_section(table, report) for table in tables),
        _gaps(report),
        _method(report),
    ]


def describe(one: Estimate, signed: bool = False) -> str:
    """A value with its interval, in three digits."""
    sign = "+" if signed else ""
    if one.value is None:
        return NOTHING
    if one.low is None or one.high is None:
        return f"{one.value:{sign}.3f}"
    return f"{one.value:{sign}.3f} [{one.low:{sign}.3f}, {one.high:{sign}.3f}]"


def title_of(measure: str) -> str:
    """The column title of a measure."""
    return FLIP_TITLES[measure] if measure in FLIPS else MEASURES[measure].title


def _introduction(report: Report) -> Section:
    counts = report.counts
    model = report.origin.model if report.origin else None
    text = [
        f"Model {model.name} {model.version} (sha256 {model.sha256[:12]}…)."
        if model
        else "Model: not known.",
        f"{counts.pictures:,} pictures, {counts.real:,} real and {counts.ai:,} AI, under "
        f"{len(report.transforms)} transforms: {', '.join(report.transforms)}.",
        f"{counts.errors:,} of {counts.rows:,} rows could not be read; they are counted here, listed below, "
        "and never replaced.",
        *report.notes,
    ]
    return Section("What was measured", text, (), [], [])


def _section(table: Table, report: Report) -> Section:
    shown = SHOWN[table.name]
    if table.name in TOGETHER:
        grids = [_grid("", table, table.rows, shown)]
    else:
        first = [name for name in report.transforms if name == report.reference]
        names = first + [name for name in report.transforms if name != report.reference]
        by_name = {name: [row for row in table.rows if row.transform == name] for name in names}
        grids = [
            _grid(name, table, by_name[name], shown, folded=place > 0)
            for place, name in enumerate(names)
            if by_name[name]
        ]
    return Section(table.title, [table.text], PLOTS_OF.get(table.name, ()), grids, _remarks(table, shown))


def _grid(
    title: str, table: Table, rows: Sequence[Row], shown: tuple[str, ...], *, folded: bool = False
) -> Grid:
    facts = [name for name in (rows[0].facts if rows else ()) if any(row.facts[name] for row in rows)]
    transform = () if title else ("transform",)
    named = ("",) if len({row.name for row in rows}) > 1 or title else ()
    columns = (*transform, *named, *facts, "real", "AI", *(title_of(name) for name in shown))
    lines = [
        [
            *(() if title else (row.transform,)),
            *((row.name,) if named else ()),
            *(row.facts[name] for name in facts),
            f"{row.pictures['real']:,}",
            f"{row.pictures['ai']:,}",
            *(describe(row.values[name], table.name == "differences") for name in shown),
        ]
        for row in rows
    ]
    return Grid(title, columns, lines, 2 + len(shown), folded)


def _remarks(table: Table, shown: tuple[str, ...]) -> list[str]:
    """Why values and intervals are missing, and what they leave out: each reason once, with its places."""
    places: dict[tuple[str, str], list[str]] = {}
    for row in table.rows:
        for name in shown:
            for kind, words in REMARKS.items():
                if reason := getattr(row.values[name], kind):
                    places.setdefault((words, reason), []).append(f"{title_of(name)} of {row.name}")
    return [f"{words}, {reason}: {_shorten(names)}." for (words, reason), names in places.items()]


def _shorten(names: Iterable[str]) -> str:
    unique = list(dict.fromkeys(names))
    more = len(unique) - MOST_SHOWN
    return ", ".join(unique[:MOST_SHOWN]) + (f" and {more} more" if more > 0 else "")


def _gaps(report: Report) -> Section:
    text = [f"Table {gap.table.replace('_', ' ')}: left out, {gap.why}." for gap in report.missing]
    rows = [[failure.key, failure.transform, failure.error] for failure in report.failures]
    more = report.counts.errors - len(rows)
    grids = [Grid("", ("picture", "transform", "why"), rows, 0)] if rows else []
    remarks = [f"{more:,} more rows could not be read; predictions.parquet has them all."] if more > 0 else []
    return Section("What is missing", text or ["Every table could be filled."], (), grids, remarks)


def _method(report: Report) -> Section:
    plan = report.plan
    text = [
        f"Intervals hold the middle {plan.level:.0%} of {plan.rounds:,} bootstrap resamples "
        f"(seed {plan.seed}). Each draws whole sources of each class with replacement, never single "
        "pictures; a class with a single source stays as it is.",
        "A generator, a family or a held-out generator is measured against all real pictures, a real source "
        "against all AI pictures.",
        "Both classes go through every transform alike. Verdicts are `uncertain` between the thresholds and "
        "for pictures that are too small after the transform.",
        *(f"{measure.title}: {measure.text}." for measure in MEASURES.values()),
        *(f"{FLIP_TITLES[name]}: {text}." for name, text in FLIPS.items()),
        "Versions: " + ", ".join(f"{name} {number}" for name, number in report.versions.items()) + ".",
    ]
    return Section("How it was measured", text, (), [], [])
