"""The page on disk: Markdown with plots beside it."""

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from detector.card import ModelCard
from detector.evaluation.canvas import encode_png
from detector.evaluation.plots import Plot, draw
from detector.evaluation.run import Evaluation, Settings, evaluate_predictions
from detector.evaluation.sections import Section, compose
from detector.model_page.coverage import plot_coverage
from detector.model_page.facts import (
    describe_comparison,
    describe_data,
    describe_limits,
    describe_metrics,
    describe_model,
    describe_scope,
)
from mirage.cards.markdown import escape, render_ready
from mirage.shards import write_atomically

PAGE, PLOTS = "README.md", "plots"
COVERAGE = "coverage"
INTRODUCTION = (
    "A verdict of this model is a statistical estimate from the pixels, not proof. Read what it was measured "
    "on, and what it fails on, before you rely on it."
)


class Material(NamedTuple):
    """What a page is made from besides the card; all of it may be missing.

    Attributes:
        predictions: of the model, e.g. on devtest sources: intervals, curves and plots.
        data: the built data set, for licences.
        baselines: other detectors' predictions of the same pictures, by name.
        settings: of the evaluation.
    """

    predictions: Path | None = None
    data: Path | None = None
    baselines: Mapping[str, Path] = {}
    settings: Settings = Settings()


def write_page(card: ModelCard, material: Material, folder: Path) -> Path:
    """The path of README.md in `folder`, with its plots beside it.

    Raises:
        EvaluationError: the predictions cannot be used.
        MissingExtra: plots are wanted and matplotlib is not installed.
    """
    evaluation = None
    if material.predictions is not None:
        evaluation = evaluate_predictions(
            material.predictions, material.settings, card=card, baselines=material.baselines
        )
    plots = () if evaluation is None else _draw(evaluation)
    (folder / PLOTS).mkdir(parents=True, exist_ok=True)
    for plot in plots:
        write_atomically(folder / PLOTS / f"{plot.name}.png", plot.png)
    text = render(card, arrange(card, material, evaluation), plots)
    write_atomically(folder / PAGE, text.encode("utf-8"))
    return folder / PAGE


def arrange(card: ModelCard, material: Material, evaluation: Evaluation | None) -> list[Section]:
    """The sections of the page, in order."""
    measured = [describe_metrics(card)]
    if evaluation is not None:
        coverage = Section(
            "Risk and coverage",
            ["How often it is wrong when it may leave out the pictures that it is least sure of."],
            (COVERAGE,),
            [],
            [],
        )
        measured = [*compose(evaluation.report), coverage]
    comparison = describe_comparison(card)
    return [
        describe_model(card),
        describe_limits(card),
        describe_scope(card),
        *([comparison] if comparison else []),
        *measured,
        describe_data(card, material.data),
    ]


def render(card: ModelCard, sections: list[Section], plots: tuple[Plot, ...]) -> str:
    """The page in Markdown."""
    drawn = {plot.name: plot for plot in plots}
    parts = [f"# {escape(f'{card.name} {card.version}')}\n", f"{INTRODUCTION}\n"]
    return "\n".join([*parts, *(_render_section(section, drawn) for section in sections)])


def _render_section(section: Section, drawn: dict[str, Plot]) -> str:
    parts = [f"## {escape(section.title)}\n", "".join(f"- {escape(line)}\n" for line in section.text)]
    for grid in section.grids:
        rows = [[escape(cell) for cell in row] for row in grid.rows]
        table = render_ready(tuple(escape(name) for name in grid.columns), rows, grid.numeric)
        if grid.title:
            # A page of many tables is read when what is secondary can stay shut.
            table = f"<details><summary>{escape(grid.title)}</summary>\n\n{table}\n</details>\n"
        parts.append(table)
    if section.remarks:
        parts.append("".join(f"- {escape(line)}\n" for line in section.remarks))
    parts += [
        f"![{escape(drawn[name].text)}]({PLOTS}/{name}.png)\n" for name in section.plots if name in drawn
    ]
    return "\n".join(parts)


def _draw(evaluation: Evaluation) -> tuple[Plot, ...]:
    plots = draw(evaluation.report, evaluation.frame)
    figure = plot_coverage(evaluation.frame)
    if figure is None:
        return plots
    text = "Lines: share of wrong answers against the share of pictures answered, the surest first."
    return (*plots, Plot(COVERAGE, "Risk and coverage", text, encode_png(figure)))
