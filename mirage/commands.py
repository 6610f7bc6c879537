"""The `omniaid mirage` commands."""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

app = typer.Typer(help="Build image data sets from declared sources.", no_args_is_help=True)


@app.callback()
def mirage() -> None:
    """Build image data sets from declared sources."""


@app.command("build")
def build_command(
    recipe: Annotated[Path, typer.Argument(help="YAML recipe.")],
    out: Annotated[Path, typer.Option(help="Folder for shards and manifest; an unfinished build goes on.")],
    mirrors: Annotated[
        Path | None, typer.Option(help="Folder with bare clones: owner+name/repo, ...")
    ] = None,
    workers: Annotated[int, typer.Option(min=1, help="Processes that decode.")] = 2,
    skip_missing: Annotated[
        bool, typer.Option("--skip-missing", help="Warn about sources that are not here, and go on.")
    ] = False,
) -> None:
    """Build a data set: decode, validate, deduplicate, write WebDataset shards and a manifest."""
    from mirage.build import build

    errors = Console(stderr=True)
    with _progress(errors) as on_progress:
        summary = build(
            recipe,
            out,
            mirrors=mirrors,
            workers=workers,
            skip_missing=skip_missing,
            on_progress=on_progress,
        )
    for sentence in summary.skipped:
        errors.print(f"skipped: {sentence}", markup=False, soft_wrap=True)
    for sentence in summary.conflicts:
        errors.print(sentence, markup=False, soft_wrap=True)
    counts = summary.counts
    typer.echo(
        f"seen {counts['seen']} = kept {counts['kept']} + rejected {counts['rejected']} "
        f"+ duplicate {counts['duplicate']}"
    )


@contextmanager
def _progress(console: Console) -> Iterator[Callable[[str, int, int], None]]:
    """A bar over sources with a running count of files."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("sources, {task.fields[files]} files"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console) as progress:
        task = progress.add_task("build", total=None, files=0)
        files = 0

        def show(source: str, place: int, total: int) -> None:
            nonlocal files
            files += 1
            progress.update(task, description=source, completed=place, total=total, files=files)

        yield show


@app.command("stats")
def stats_command(folder: Annotated[Path, typer.Argument(help="A finished data set.")]) -> None:
    """Show how many pictures a data set holds, by split, label, generator and domain."""
    from mirage.manifest import read_manifest

    kept: Counter[tuple[str, str, str, str]] = Counter()
    statuses: Counter[str] = Counter()
    for row in read_manifest(folder):
        statuses[row["status"]] += 1
        if row["status"] == "kept":
            kept[row["split"], row["label"], row["domain"], row["generator"]] += 1
    table = Table("split", "label", "domain", "generator", "pictures")
    for group, count in sorted(kept.items()):
        table.add_row(*group, str(count))
    Console().print(table)
    typer.echo(
        f"seen {statuses.total()}: " + ", ".join(f"{name} {n}" for name, n in sorted(statuses.items()))
    )
