"""The ablation command; torch is imported when it runs, never before."""

from pathlib import Path
from typing import Annotated

import typer

from detector.errors import DetectorError
from detector.progress import draw_progress


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
    try:
        from detector.ablation import read_ablations, run_ablations
    except ImportError as error:
        raise DetectorError(f"training needs {error.name}; run: pip install 'omniaid[train]'") from error

    ablations, base = read_ablations(recipe)
    with draw_progress() as show:
        run_ablations(ablations, base, data, out, show)
    print(out / "ablations.md")
