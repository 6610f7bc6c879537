"""The gallery: one HTML page beside the card on which a person can look at a data set."""

import base64
import hashlib
import html
import json
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from string import Template
from typing import Any

from mirage.cards.counts import Counts
from mirage.cards.plots import Plot
from mirage.cards.reasons import CONFLICT, classify, other_side
from mirage.cards.tables import TABLES, Table, outcome
from mirage.cards.thumbnails import Row
from mirage.manifest import read_manifest

ASSETS = Path(__file__).resolve().parent / "assets"
MOST_ROWS = 20_000  # of each list; a page with more is slow to open
PICTURE_COLUMNS = (
    *("split", "label", "domain", "generator", "source", "path", "key", "prompt", "family", "released"),
    *("licence", "group", "repo", "revision", "url", "piece", "pair", "format", "stored_format"),
    *("width", "height", "bytes", "transforms", "warnings", "note", "shard", "sha256", "thumbnail"),
)
REJECTED_COLUMNS = ("kind", "source", "path", "reason")
REPEATED_COLUMNS = (*REJECTED_COLUMNS, "label", "other_source", "other_path", "other_label")
CONTROL = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")


def write_gallery(
    folder: Path,
    page: Path,
    counts: Counts,
    shown: Sequence[Row],
    thumbnails: dict[str, str],
    plots: Sequence[Plot] = (),
) -> None:
    """Write the page; it needs no server and asks for nothing outside its own folder.

    Args:
        folder: of the data set.
        page: the HTML file to write; plots and the folder `thumbnails` stand beside it.
        counts: of the data set.
        shown: rows of the pictures that can be looked at; none leaves an empty list.
        thumbnails: file names in the folder `thumbnails` by key.
        plots: shown above the tables.
    """
    rejected, repeated = _not_kept(folder, shown)
    style, script = ((ASSETS / f"gallery.{kind}").read_text("utf-8") for kind in ("css", "js"))
    data = {
        "pictures": _pack(
            PICTURE_COLUMNS, (row | {"thumbnail": thumbnails.get(row["key"])} for row in shown)
        ),
        "rejected": _pack(REJECTED_COLUMNS, rejected),
        "repeated": _pack(REPEATED_COLUMNS, repeated),
    }
    text = Template((ASSETS / "gallery.html").read_text("utf-8")).substitute(
        name=_text(folder.resolve().name),
        outcome=_text(outcome(counts)),
        policy=_text(_policy(style, script)),
        style=style,
        script=script,
        shown=_said(len(shown), counts.kept, "kept pictures, evenly from all sources")
        if shown
        else "Pictures are left out of this page.",
        rejected=_said(len(rejected), counts.rejected, "rejected files and pieces"),
        repeated=_said(len(repeated), counts.duplicate, "repeated pictures, those of two classes first"),
        counts="\n".join([*(_figure(plot) for plot in plots), *_tables(counts)]),
        data=_for_script(data),
    )
    page.write_text(text, "utf-8")


def _not_kept(folder: Path, shown: Iterable[Row]) -> tuple[list[Row], list[Row]]:
    """The rejected and the repeated rows, each with the kind of its reason."""
    labels = {(row["source"], row["path"]): row["label"] for row in shown}
    rejected: list[Row] = []
    repeated: list[Row] = []
    for row in read_manifest(folder):
        reason = row.get("reason") or ""
        if row["status"] == "rejected":
            rejected.append(row | {"kind": classify(reason)})
        elif row["status"] == "duplicate":
            repeated.append(row | {"kind": classify(reason)} | _other(row, reason, labels))
    repeated.sort(key=lambda row: row["kind"] != CONFLICT)
    return rejected[:MOST_ROWS], repeated[:MOST_ROWS]


def _other(row: Row, reason: str, labels: dict[tuple[str, str], str]) -> Row:
    """What is known of the kept picture that a row repeats."""
    other = other_side(reason)
    if other is None:
        return {"other_source": "", "other_path": "", "other_label": ""}
    opposite = {"real": "ai", "ai": "real"}.get(row["label"], "")
    label = opposite if classify(reason) == CONFLICT else labels.get(other, row["label"])
    return {"other_source": other.source, "other_path": other.path, "other_label": label}


def _pack(columns: tuple[str, ...], rows: Iterable[Row]) -> dict[str, Any]:
    """Rows as arrays, because names repeated in each would double the page."""
    return {"columns": columns, "rows": [[row.get(name) for name in columns] for row in rows]}


def _for_script(data: Any) -> str:
    """The data as JSON that cannot end the script element it stands in."""
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _policy(style: str, script: str) -> str:
    """A content policy: nothing runs but the page's own script, nothing is fetched but pictures."""
    hashes = {
        name: base64.b64encode(hashlib.sha256(content.encode("utf-8")).digest()).decode("ascii")
        for name, content in (("style", style), ("script", script))
    }
    sources = " ".join(f"{name}-src 'sha256-{digest}';" for name, digest in hashes.items())
    return f"default-src 'none'; img-src 'self' file:; {sources} base-uri 'none'; form-action 'none'"


def _text(text: str) -> str:
    return html.escape(CONTROL.sub("\ufffd", text))


def _said(shown: int, there: int, what: str) -> str:
    rest = "" if shown == there else " The manifest has them all."
    return _text(f"{shown:,} of {there:,} {what}.{rest}")


def _figure(plot: Plot) -> str:
    return (
        f"<figure><figcaption>{_text(plot.title)}</figcaption>"
        f'<img src="{_text(plot.path.name)}" alt="{_text(plot.text)}" loading="lazy"></figure>'
    )


def _tables(counts: Counts) -> list[str]:
    tables = [table(counts) for table in TABLES]
    return [
        f'<div tabindex="0" role="region" aria-label="{_text(table.title)}">{_table(table)}</div>'
        for table in tables
        if table.rows
    ]


def _table(table: Table) -> str:
    first_number = len(table.columns) - table.numeric
    kinds = ["" if place < first_number else ' class="number"' for place in range(len(table.columns))]
    head = "".join(
        f'<th scope="col"{kind}>{_text(name)}</th>' for kind, name in zip(kinds, table.columns, strict=True)
    )
    lines = []
    for row in table.rows:
        cells = (f"{cell:,}" if isinstance(cell, int) else _text(cell) for cell in row)
        lines.append("".join(f"<td{kind}>{cell}</td>" for kind, cell in zip(kinds, cells, strict=True)))
    body = "".join(f"<tr>{line}</tr>\n" for line in lines)
    caption = f"<caption>{_text(table.title)}</caption>"
    return f"<table>{caption}<thead><tr>{head}</tr></thead>\n<tbody>{body}</tbody></table>"
