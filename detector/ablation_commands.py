"""The ablation command; torch is imported when it runs, never before."""

from pathlib import Path
from typing import Annotated

import typer

from detector.errors import DetectorError


def register(app: typer.Typer) -> None:
    """Add the ablation command to `app`."""
    app.command("ablate")(ablate)


def ablate(
    recipe: Annotated[Path, typer.Argument(help="YAML: a training recipe and its variants.")],
    data: Annotated[Path, typer.Option(help="Data set built by `omniaid mirage build`.")],
    out: Annotated[Path, typer.Option(help="Run folder of the training recipe; its features are used.")],
) -> None:
    """Train the variants of a recipe on the same features, and compare each with the linear probe.

    The same command continues an interrupted comparison.
    """
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

    try:
        from detector.ablation import read_ablations, run_ablations
    except ImportError as error:
        raise DetectorError(f"training needs {error.name}; run: pip install 'omniaid[train]'") from error

    ablations, base = read_ablations(recipe)
    tasks: dict[str, TaskID] = {}
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True)) as progress:

        def show(step: str, done: int, total: int) -> None:
            if step not in tasks:
                tasks[step] = progress.add_task(step, total=total)
            progress.update(tasks[step], completed=done)

        run_ablations(ablations, base, data, out, show)
    print(out / "ablations.md")
