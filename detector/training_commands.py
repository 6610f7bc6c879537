"""The commands that need torch; it is imported when one of them runs, never before."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from detector.errors import DetectorError

if TYPE_CHECKING:
    from detector.recipe import TrainRecipe

    Training = Callable[[TrainRecipe, Path, Path, Callable[[str, int, int], None]], Path | None]


def register(app: typer.Typer) -> None:
    """Add the training commands to `app`."""
    app.command("train")(train)


def train(
    recipe: Annotated[Path, typer.Argument(help="Training recipe (YAML).")],
    data: Annotated[Path, typer.Option(help="Data set built by `omniaid mirage build`.")],
    out: Annotated[
        Path, typer.Option(help="Run folder: checkpoint, metrics, predictions, and what the mode adds.")
    ],
) -> None:
    """Train a detector: a recipe with `mode: cached` in two stages on features that are computed once.

    It is then calibrated and exported with its card. With `mode: streamed` training is on the pixels
    themselves, also on many devices (`torchrun --nproc-per-node N $(which omniaid) train ...`), and ends
    with a checkpoint folder. The same command continues an interrupted run.
    """
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

    try:
        from detector.recipe import read_recipe

        settings = read_recipe(recipe)
        train_as_told = MODES[settings.mode]()
    except ImportError as error:
        raise DetectorError(f"training needs {error.name}; run: pip install 'omniaid[train]'") from error

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    progress = Progress(*columns, console=Console(stderr=True))
    tasks: dict[str, TaskID] = {}

    def show(step: str, done: int, total: int) -> None:
        # Of several processes only the main one tells its progress, so only it draws any.
        progress.start()
        if step not in tasks:
            tasks[step] = progress.add_task(step, total=total)
        progress.update(tasks[step], completed=done)

    try:
        path = train_as_told(settings, data, out, show)
    finally:
        progress.stop()
    if path is not None:
        print(path)


def _cached() -> "Training":
    from detector.pipeline import train_model

    return train_model


def _streamed() -> "Training":
    from detector.training.run import train_streamed

    return train_streamed


# What each mode of a recipe imports when it is chosen.
MODES: dict[str, Callable[[], "Training"]] = {"cached": _cached, "streamed": _streamed}
