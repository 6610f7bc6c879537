"""The model card command; everything heavy is imported when it runs."""

from pathlib import Path
from typing import Annotated

import typer

from detector.errors import DetectorError


def register(app: typer.Typer) -> None:
    """Add the model card command to `app`."""
    app.command("card")(card)


def card(
    model: Annotated[
        Path, typer.Argument(metavar="MODEL.onnx", help="An ONNX model with its .json card beside it.")
    ],
    out: Annotated[Path, typer.Option(help="Folder for README.md and plots.")],
    predictions: Annotated[
        Path | None,
        typer.Option(help="The model's predictions (Parquet): tables with intervals, curves and plots."),
    ] = None,
    data: Annotated[Path | None, typer.Option(help="The built data set, for the licences.")] = None,
    baseline: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=FILE", help="Another detector's predictions of the same pictures."),
    ] = None,
    calibration: Annotated[
        Path | None,
        typer.Option(help="Predictions of a calibration split, for the linear probe in the predictions."),
    ] = None,
    rounds: Annotated[int, typer.Option(min=1, help="Bootstrap resamples of the sources.")] = 1000,
    seed: Annotated[int, typer.Option(min=0, help="Of the resamples.")] = 0,
) -> None:
    """Write a model's card as a page: data, tables with intervals, plots, known failures, limits of scope."""
    from detector.card import read_card
    from detector.evaluation.bootstrap import Plan
    from detector.evaluation.run import Settings
    from detector.evaluation_commands import split_baselines
    from detector.model_page.page import Material, write_page

    named = split_baselines(baseline or [])
    if named and predictions is None:
        raise DetectorError("--baseline is compared with --predictions, which is not given")
    if out.exists() and not out.is_dir():
        raise DetectorError(f"--out {out} exists and is not a folder")
    settings = Settings(plan=Plan(rounds=rounds, seed=seed), calibration=calibration)
    material = Material(predictions, data, named, settings)
    print(write_page(read_card(model.with_suffix(".json")), material, out))
