"""The report on disk: JSON, one CSV file per table, Markdown, plots, and one page that needs nothing else."""

import base64
import csv
import hashlib
import html
import io
import re
from collections.abc import Sequence
from pathlib import Path

from detector.evaluation.plots import Plot, draw
from detector.evaluation.report import Report, Table
from detector.evaluation.run import Evaluation
from detector.evaluation.sections import Grid, Section, compose
from mirage.cards.markdown import escape, render_ready
from mirage.shards import write_atomically

CONTROL = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")
STYLE = """
:root { color-scheme: light dark; --line: #8884; --soft: #8881; }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 76rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.6rem; } h2 { font-size: 1.2rem; margin-top: 2.5rem; }
table { border-collapse: collapse; font-size: 13px; font-variant-numeric: tabular-nums; }
caption { text-align: left; font-weight: 600; padding: .4rem 0; }
th, td { padding: .25rem .6rem; border-bottom: 1px solid var(--line); text-align: left; vertical-align: top; }
th.number, td.number { text-align: right; white-space: nowrap; }
tbody tr:hover { background: var(--soft); }
.wide { overflow-x: auto; margin: 1rem 0; }
figure { margin: 1.5rem 0; } img { max-width: 100%; background: white; }
figcaption, .remarks { font-size: 13px; opacity: .8; }
summary { cursor: pointer; padding: .3rem 0; }
"""


def write_report(evaluation: Evaluation, folder: Path) -> None:
    """Write report.json, report.md, report.html, tables/*.csv and plots/*.png into `folder`."""
    report = evaluation.report
    plots = draw(report, evaluation.frame)
    sections = compose(report)
    for kind in ("tables", "plots"):
        (folder / kind).mkdir(parents=True, exist_ok=True)
    for table in report.tables:
        write_atomically(folder / "tables" / f"{table.name}.csv", render_csv(table).encode("utf-8"))
    for plot in plots:
        write_atomically(folder / "plots" / f"{plot.name}.png", plot.png)
    _remove_others(folder / "tables", {f"{table.name}.csv" for table in report.tables})
    _remove_others(folder / "plots", {f"{plot.name}.png" for plot in plots})
    write_atomically(folder / "report.json", (report.model_dump_json(indent=1) + "\n").encode("utf-8"))
    write_atomically(folder / "report.md", render_markdown(report, sections, plots).encode("utf-8"))
    write_atomically(folder / "report.html", render_page(report, sections, plots).encode("utf-8"))


def _remove_others(folder: Path, names: set[str]) -> None:
    """Keep tables and plots of an earlier report from standing beside this one."""
    for path in folder.iterdir():
        if path.suffix in (".csv", ".png") and path.name not in names:
            path.unlink()


def render_csv(table: Table) -> str:
    """Every row with every measure: its value, the ends of its interval, and remarks."""
    facts = list(table.rows[0].facts) if table.rows else []
    head = ["transform", "name", *facts, "real_pictures", "ai_pictures", "real_sources", "ai_sources"]
    columns = [f"{name}{end}" for name in table.measures for end in ("", "_low", "_high", "_remark")]
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow([*head, *columns])
    for row in table.rows:
        line: list[object] = [row.transform, row.name, *(row.facts[name] for name in facts)]
        line += [row.pictures["real"], row.pictures["ai"], row.sources["real"], row.sources["ai"]]
        for name in table.measures:
            one = row.values[name]
            remarks = (one.undefined, one.no_interval, one.over, one.caveat)
            line += [one.value, one.low, one.high, "; ".join(filter(None, remarks))]
        writer.writerow(line)
    return buffer.getvalue()


def render_markdown(report: Report, sections: Sequence[Section], plots: Sequence[Plot]) -> str:
    """The report for a repository: tables under the reference transform, the rest in the CSV files."""
    drawn = {plot.name: plot for plot in plots}
    parts = [f"# Evaluation of {escape(report.name)}\n"]
    for section in sections:
        parts.append(f"## {section.title}\n")
        parts.append("".join(f"- {escape(line)}\n" for line in section.text))
        for grid in section.grids:
            if not grid.folded:
                title = f"Under {escape(grid.title)}:\n\n" if grid.title else ""
                rows = [[escape(cell) for cell in row] for row in grid.rows]
                parts.append(title + render_ready(grid.columns, rows, grid.numeric))
        folded = [grid.title for grid in section.grids if grid.folded]
        if folded:
            parts.append(f"Under {', '.join(folded)}: see the folder `tables`.\n")
        if section.remarks:
            parts.append("".join(f"- {escape(line)}\n" for line in section.remarks))
        parts += [
            f"![{escape(drawn[name].text)}](plots/{name}.png)\n" for name in section.plots if name in drawn
        ]
    return "\n".join(parts)


def render_page(report: Report, sections: Sequence[Section], plots: Sequence[Plot]) -> str:
    """One HTML page with the plots inside it; it asks for nothing and runs nothing."""
    drawn = {plot.name: plot for plot in plots}
    digest = base64.b64encode(hashlib.sha256(STYLE.encode("utf-8")).digest()).decode("ascii")
    policy = (
        f"default-src 'none'; img-src data:; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"
    )
    title = _text(f"Evaluation of {report.name}")
    body = "\n".join(_page_section(section, drawn) for section in sections)
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{title}</title>\n<style>{STYLE}</style></head>\n"
        f"<body><main><h1>{title}</h1>\n{body}\n</main></body></html>\n"
    )


def _page_section(section: Section, drawn: dict[str, Plot]) -> str:
    lines = "".join(f"<li>{_text(line)}</li>" for line in section.text)
    remarks = "".join(f"<li>{_text(line)}</li>" for line in section.remarks)
    return "\n".join(
        [
            f"<section><h2>{_text(section.title)}</h2>",
            f"<ul>{lines}</ul>",
            *(_page_grid(grid, section.title) for grid in section.grids),
            f'<ul class="remarks">{remarks}</ul>' if remarks else "",
            *(_page_plot(drawn[name]) for name in section.plots if name in drawn),
            "</section>",
        ]
    )


def _page_plot(plot: Plot) -> str:
    data = base64.b64encode(plot.png).decode("ascii")
    return (
        f'<figure><img src="data:image/png;base64,{data}" alt="{_text(f"{plot.title}. {plot.text}")}">'
        f"<figcaption><b>{_text(plot.title)}</b>: {_text(plot.text)}</figcaption></figure>"
    )


def _page_grid(grid: Grid, section: str) -> str:
    first_number = len(grid.columns) - grid.numeric
    kinds = ["" if place < first_number else ' class="number"' for place in range(len(grid.columns))]
    head = "".join(
        f'<th scope="col"{kind}>{_text(name)}</th>' for kind, name in zip(kinds, grid.columns, strict=True)
    )
    rows = "".join(
        "<tr>"
        + "".join(f"<td{kind}>{_text(cell)}</td>" for kind, cell in zip(kinds, row, strict=True))
        + "</tr>\n"
        for row in grid.rows
    )
    label = f"{section}, {grid.title}" if grid.title else section
    caption = f"<caption>{_text(grid.title)}</caption>" if grid.title and not grid.folded else ""
    table = (
        f'<div class="wide" tabindex="0" role="region" aria-label="{_text(label)}"><table>{caption}'
        f"<thead><tr>{head}</tr></thead>\n<tbody>{rows}</tbody></table></div>"
    )
    return f"<details><summary>{_text(grid.title)}</summary>{table}</details>" if grid.folded else table


def _text(text: str) -> str:
    return html.escape(CONTROL.sub("\ufffd", text))
