"""Tables of a data set's counts, the same ones for the terminal, the card and the page."""

from collections.abc import Callable
from dataclasses import dataclass

from rich.box import SIMPLE
from rich.console import Group as Stack
from rich.console import RenderableType
from rich.table import Table as TerminalTable
from rich.text import Text

from mirage.cards.counts import EDGES, LABELS, SPLITS, Counts

NAMES = {"real": "real", "ai": "AI"}
UNKNOWN = "not told"
Cell = str | int


@dataclass(frozen=True)
class Table:
    """A titled table; numbers are integers or ready-made text.

    Attributes:
        title: a few words.
        columns: headings.
        rows: cells in the order of the columns.
        numeric: how many of the last columns hold numbers.
    """

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    numeric: int


def split_table(counts: Counts) -> Table:
    """Kept pictures by split and class, with a line of sums."""
    kept = counts.by("split", "label")
    rows = [_summed(split, [kept.get((split, label), 0) for label in LABELS]) for split in splits_of(counts)]
    sums = _summed("all", [counts.by("label").get((label,), 0) for label in LABELS])
    return Table("Pictures by split", ("split", "real", "AI", "together"), (*rows, sums), 3)


def _summed(name: str, numbers: list[int]) -> tuple[Cell, ...]:
    return (name, *numbers, sum(numbers))


def domain_table(counts: Counts) -> Table:
    """Kept pictures of each domain by split and class."""
    kept = counts.by("domain", "split", "label")
    cells = [(split, label) for split in splits_of(counts) for label in LABELS]
    rows: tuple[tuple[Cell, ...], ...] = tuple(
        (domain or UNKNOWN, *(kept.get((domain, *cell), 0) for cell in cells))
        for (domain,) in counts.by("domain")
    )
    columns = ("domain", *(f"{split} {NAMES[label]}" for split, label in cells))
    return Table("Pictures by domain", columns, rows, len(cells))


def generator_table(counts: Counts, label: str) -> Table:
    """Kept pictures of each generator (of real pictures: each kind) by split."""
    dated, splits = label == "ai", splits_of(counts)
    rows: list[tuple[Cell, ...]] = []
    for made in counts.generators:
        if made.label == label:
            known = (made.family, made.released) if dated else ()
            numbers = (made.splits.get(split, 0) for split in splits)
            rows.append((made.generator or UNKNOWN, *known, *numbers))
    head = ("generator", "family", "released") if dated else ("kind",)
    title = "AI pictures by generator" if dated else "Real pictures by kind"
    return Table(title, (*head, *splits), tuple(rows), len(splits))


def field_table(counts: Counts, field: str, title: str, heading: str) -> Table:
    """Kept pictures by one field of `Group` and class, most first."""
    kept, totals = counts.by(field, "label"), counts.by(field)
    names = sorted((name for (name,) in totals), key=lambda name: (-totals[name,], name))
    rows: tuple[tuple[Cell, ...], ...] = tuple(
        (name or UNKNOWN, *(kept.get((name, label), 0) for label in LABELS)) for name in names
    )
    return Table(title, (heading, "real", "AI"), rows, 2)


def spread_table(counts: Counts) -> Table:
    """Least, 5 %, median, 95 % and most of each measure, by class."""
    spreads = [
        spread for measure in EDGES for _, spread in sorted(counts.spread(measure).items(), reverse=True)
    ]
    rows = tuple(
        (
            spread.measure,
            NAMES.get(spread.label, spread.label),
            *(f"{value:g}" for value in (spread.least, spread.low, spread.median, spread.high, spread.most)),
        )
        for spread in spreads
    )
    columns = ("measure", "class", "least", "5 %", "median", "95 %", "most")
    return Table("Sizes and quality", columns, rows, 5)


def reason_table(counts: Counts) -> Table:
    """Rejected and repeated pictures by kind of reason."""
    rejected = [("rejected", reason, number) for reason, number in counts.rejected_by.items()]
    repeated = [("duplicate", reason, number) for reason, number in counts.duplicate_by.items()]
    return Table("Not kept", ("outcome", "reason", "pictures"), (*rejected, *repeated), 1)


def splits_of(counts: Counts) -> tuple[str, ...]:
    """The splits that hold pictures, in their usual order."""
    found = {split for (split,) in counts.by("split")}
    return (*(split for split in SPLITS if split in found), *sorted(found - set(SPLITS)))


TABLES: tuple[Callable[[Counts], Table], ...] = (
    split_table,
    domain_table,
    lambda counts: generator_table(counts, "ai"),
    lambda counts: generator_table(counts, "real"),
    lambda counts: field_table(counts, "stored_format", "Stored formats", "format"),
    lambda counts: field_table(counts, "kind", "Kinds of source", "kind"),
    spread_table,
    reason_table,
)


def stats_table(counts: Counts) -> RenderableType:
    """All tables for a terminal, and the sum that must come out even."""
    tables = [table(counts) for table in TABLES]
    return Stack(*(_for_terminal(table) for table in tables if table.rows), Text(outcome(counts)))


def outcome(counts: Counts) -> str:
    """The numbers of all pictures by outcome, one line."""
    return (
        f"seen {counts.seen} = kept {counts.kept} + rejected {counts.rejected} + duplicate {counts.duplicate}"
    )


def _for_terminal(table: Table) -> TerminalTable:
    shown = TerminalTable(title=table.title, title_justify="left", title_style="bold", box=SIMPLE)
    first_number = len(table.columns) - table.numeric
    for place, name in enumerate(table.columns):
        shown.add_column(name, justify="right" if place >= first_number else "left")
    for row in table.rows:
        # Text, because names come from strangers and could hold markup.
        shown.add_row(*(Text(f"{cell:,}" if isinstance(cell, int) else cell) for cell in row))
    return shown
