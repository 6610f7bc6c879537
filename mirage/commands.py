"""The `omniaid mirage` commands."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from mirage.autoencoder_commands import train_autoencoder_command

app = typer.Typer(help="Build image data sets from declared sources.", no_args_is_help=True)
app.command("autoencoder")(train_autoencoder_command)

Folder = Annotated[Path, typer.Argument(help="A finished data set.")]
Workers = Annotated[int, typer.Option(min=0, help="Processes that decode; 0 works in this one.")]


class Format(StrEnum):
    """How numbers are printed."""

    table = "table"
    json = "json"


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
    engine: Annotated[str, typer.Option(help="What runs the workers: local or ray.")] = "local",
    workers: Workers = 2,
    address: Annotated[str | None, typer.Option(help="Of a running Ray cluster.")] = None,
    skip_missing: Annotated[
        bool, typer.Option("--skip-missing", help="Warn about sources that are not here, and go on.")
    ] = False,
    resume: Annotated[
        bool, typer.Option("--resume/--no-resume", help="Go on with what --out holds; else it must be empty.")
    ] = True,
    retry_failed: Annotated[
        bool, typer.Option("--retry-failed", help="Try again what failed for reasons that may have passed.")
    ] = False,
    allow_bias: Annotated[
        bool, typer.Option("--allow-bias", help="Accept a set whose file headers tell real from AI.")
    ] = False,
) -> None:
    """Build a data set: decode, validate, deduplicate, align, write WebDataset shards, audit.

    Exit code 1: the set is complete, but headers alone tell real from AI.
    """
    from mirage.build import BiasError, build

    errors = Console(stderr=True)
    try:
        with _progress(errors, "build", "sources") as on_progress:
            summary = build(
                recipe,
                out,
                mirrors=mirrors,
                engine=engine,
                workers=workers,
                address=address,
                skip_missing=skip_missing,
                resume=resume,
                retry_failed=retry_failed,
                allow_bias=allow_bias,
                on_progress=on_progress,
            )
    except BiasError as error:
        _report(errors, error.summary.skipped, error.summary.conflicts)
        errors.print(str(error), markup=False, soft_wrap=True)
        typer.echo(error.summary.sentence)
        raise typer.Exit(1) from error
    _report(errors, summary.skipped, summary.conflicts, summary.complaints)
    typer.echo(summary.sentence)


def _report(console: Console, *groups: tuple[str, ...]) -> None:
    for sentence in (sentence for group in groups for sentence in group):
        console.print(sentence, markup=False, soft_wrap=True)


@contextmanager
def _progress(console: Console, name: str, things: str) -> Iterator[Callable[[str, int, int], None]]:
    """A bar over things, with a running count of calls."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn(f"{things}, {{task.fields[calls]}} files"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console) as progress:
        task = progress.add_task(name, total=None, calls=0)
        calls = 0

        def show(what: str, place: int, total: int) -> None:
            nonlocal calls
            calls += 1
            progress.update(task, description=what, completed=place, total=total, calls=calls)

        yield show
        progress.update(task, description=name, completed=progress.tasks[task].total or 0)


@app.command("stats")
def stats_command(
    folder: Folder, format: Annotated[Format, typer.Option(help="How to print them.")] = Format.table
) -> None:
    """Show what a data set holds: by split, label, domain, generator, licence, size and reason."""
    from mirage.cards.counts import count
    from mirage.cards.tables import stats_table

    counts = count(folder)
    if format is Format.json:
        typer.echo(counts.model_dump_json(indent=1))
    else:
        Console().print(stats_table(counts))


@app.command("audit")
def audit_command(
    folder: Folder,
    max_auc: Annotated[float, typer.Option(min=0.5, max=1.0, help="Of the train split.")] = 0.60,
    seed: Annotated[int, typer.Option(min=0, help="Of the trees and folds.")] = 0,
    format: Annotated[Format, typer.Option(help="How to print it.")] = Format.table,
) -> None:
    """Measure how well file headers alone tell real from AI; exit code 1 when too well."""
    from mirage.bias.tables import audit_table
    from mirage.build import write_audit

    found = write_audit(folder, seed=seed)
    if format is Format.json:
        typer.echo(found.model_dump_json(indent=1))
    else:
        Console().print(audit_table(found))
    complaints = found.complaints(max_auc)
    _report(Console(stderr=True), complaints)
    if complaints:
        raise typer.Exit(1)


@app.command("verify")
def verify_command(folder: Folder, workers: Workers = 2) -> None:
    """Check every shard, picture and row of a data set against one another; exit code 1 when one is wrong."""
    from mirage.verification.verify import verify

    with _progress(Console(stderr=True), "verify", "shards") as on_progress:
        found = verify(folder, workers=workers, on_progress=on_progress)
    _report(Console(stderr=True), found.notes, found.problems)
    typer.echo(
        f"{found.shards} shards, {found.samples} pictures, {found.rows} rows: {len(found.problems)} problems"
    )
    if found.problems:
        raise typer.Exit(1)


@app.command("card")
def card_command(
    folder: Folder,
    out: Annotated[
        Path | None, typer.Option(help="Write card and plots, no pictures, to this folder instead.")
    ] = None,
    pictures: Annotated[
        bool, typer.Option("--pictures/--no-pictures", help="Whether to make contact sheets.")
    ] = True,
    workers: Workers = 2,
) -> None:
    """Write the data set's card (README.md), its plots, and a page to look through it."""
    from mirage.cards.card import write_card

    typer.echo(write_card(folder, out=out, pictures=pictures and out is None, workers=workers))
