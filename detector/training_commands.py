"""The commands that need torch; it is imported when one of them runs, never before."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from detector.errors import DetectorError
from detector.progress import Progress, draw_progress

if TYPE_CHECKING:
    from detector.recipe import TrainRecipe

    Training = Callable[[TrainRecipe, Path, Path, Progress], Path | None]


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
    try:
        from detector.recipe import read_recipe

        settings = read_recipe(recipe)
        train_as_told = MODES[settings.mode]()
    except ImportError as error:
        raise DetectorError(f"training needs {error.name}; run: pip install 'omniaid[train]'") from error

    with draw_progress() as show:
        path = train_as_told(settings, data, out, show)
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
