"""The `omniaid mirage autoencoder` command; torch is imported when it runs, never before."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from mirage.autoencoder_trainer import Progress


def train_autoencoder_command(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A finished data set.")],
    out: Annotated[
        Path,
        typer.Option(
            metavar="FILE", help="The ONNX file; its facts go beside it. An unfinished run goes on."
        ),
    ],
    steps: Annotated[
        int | None, typer.Option(min=1, help="Of the whole network, after the linear part's own.")
    ] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="Of the pick, the weights and every step.")] = None,
    like: Annotated[
        Path | None,
        typer.Option(metavar="JSON", help="Facts of an earlier training, whose settings are taken over."),
    ] = None,
) -> None:
    """Train a small autoencoder on DIR's real photographs, for `reconstruct: {method: conv-vae}`."""
    from mirage.autoencoder import read_training, train_autoencoder
    from mirage.autoencoder_trainer import Training

    given = {name: value for name, value in (("steps", steps), ("seed", seed)) if value is not None}
    training = (read_training(like) if like else Training()).model_copy(update=given)
    with _progress() as on_progress:
        facts = train_autoencoder(folder, out, training, on_progress)
    quality = facts["quality"]
    typer.echo(
        f"{out}: {facts['bytes']} bytes; on {facts['data']['held_out']} held-out photographs "
        f"{quality['psnr_db']} dB, detail {quality['detail']}, grid {quality['grid']}"
    )


@contextmanager
def _progress() -> Iterator[Callable[["Progress"], None]]:
    """A bar over the steps with the last step's error."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    columns = (
        TextColumn("error {task.fields[error]:.4f}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
    )
    with Bar(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task("train", total=None, error=1.0)

        def show(progress: "Progress") -> None:
            error = progress.losses["error"]
            bar.update(task, completed=progress.step, total=progress.steps, error=error)

        yield show
