"""The commands that need torch; it is imported when one of them runs, never before."""

from pathlib import Path
from typing import Annotated

import typer

from detector.errors import DetectorError


def register(app: typer.Typer) -> None:
    """Add the training commands to `app`."""
    app.command("train")(train)


def train(
    recipe: Annotated[Path, typer.Argument(help="Training recipe (YAML).")],
    data: Annotated[Path, typer.Option(help="Data set built by `omniaid mirage build`.")],
    out: Annotated[
        Path, typer.Option(help="Run folder: features, checkpoint, metrics, predictions, model, card.")
    ],
) -> None:
    """Train a detector in two stages, calibrate it, and export it with its card.

    The same command continues an interrupted run.
    """
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    try:
        from detector.pipeline import train_model
        from detector.recipe import read_recipe
    except ImportError as error:
        raise DetectorError(f"training needs {error.name}; run: pip install 'omniaid[train]'") from error

    settings = read_recipe(recipe)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True)) as progress:
        tasks: dict[str, int] = {}

        def show(step: str, done: int, total: int) -> None:
            if step not in tasks:
                tasks[step] = progress.add_task(step, total=total)
            progress.update(tasks[step], completed=done)  # type: ignore[arg-type]

        path = train_model(settings, data, out, show)
    print(path)
