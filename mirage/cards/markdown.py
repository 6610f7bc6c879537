"""Markdown pieces: text from strangers made harmless, and tables."""

import re

from mirage.cards.tables import Cell, Table

SPECIAL = re.compile(r"([\\`*_{}\[\]<>|#~$!&])")


def escape(text: str) -> str:
    """The text on one line, with every character that could start markup taken literally."""
    return SPECIAL.sub(r"\\\1", " ".join(text.split()))


def link(text: str, address: str) -> str:
    """A link; the address must hold neither spaces nor brackets, or the text is returned alone."""
    return f"[{escape(text)}]({address})" if re.fullmatch(r"[^\s()<>\[\]]+", address) else escape(text)


def render(table: Table) -> str:
    """The table in Markdown; names are escaped, numbers stand at the right."""
    rows = [[escape(cell) if isinstance(cell, str) else f"{cell:,}" for cell in row] for row in table.rows]
    return render_ready(table.columns, rows, table.numeric)


def render_ready(columns: tuple[str, ...], rows: list[list[str]], numeric: int = 0) -> str:
    """A table of cells that are Markdown already; the last `numeric` columns stand at the right."""
    rule = ["---"] * (len(columns) - numeric) + ["---:"] * numeric
    lines = (" | ".join(cells) for cells in ([*columns], rule, *rows))
    return "".join(f"| {line} |\n" for line in lines)


__all__ = ["Cell", "escape", "link", "render", "render_ready"]
