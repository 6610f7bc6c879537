"""The evaluation command; everything heavy is imported when it runs, and torch never is."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from detector.errors import DetectorError
from detector.progress import Progress, draw_progress

if TYPE_CHECKING:
    from detector.card import ModelCard
    from detector.evaluation.report import Report
    from detector.evaluation.run import Settings
    from detector.evaluation.samples import Pictures

EXIT_ERRORS = 3
EPILOG = (
    "Exit codes: 0 done; 2 wrong usage, or pictures, predictions or a model that cannot be used; "
    "3 done, and at least one picture could not be read (such rows are counted in the report)."
)


def register(app: typer.Typer) -> None:
    """Add the evaluation command to `app`."""
    app.command("eval", epilog=EPILOG)(evaluate)


def evaluate(
    data: Annotated[
        Path | None,
        typer.Argument(metavar="[DIR]", help="A data set built by `omniaid mirage build`, or a folder tree."),
    ] = None,
    out: Annotated[
        Path, typer.Option(help="Folder for predictions and report; the same command goes on after a kill.")
    ] = Path("evaluation"),
    predictions: Annotated[
        Path | None, typer.Option(help="Make the report from this Parquet file; nothing is scored.")
    ] = None,
    model: Annotated[
        Path | None,
        typer.Option(help="ONNX model with its .json card beside it, instead of the packaged one."),
    ] = None,
    layout: Annotated[
        str,
        typer.Option(
            help="How the folder is laid out: auto, mirage, genimage, mirage-test, drct-2m, chameleon, "
            "cifake, aigcdetectbenchmark or plain."
        ),
    ] = "auto",
    split: Annotated[
        str | None,
        typer.Option(help="Part of the data, or all; default: devtest, or a folder's own test part."),
    ] = None,
    limit_per_source: Annotated[
        int | None, typer.Option(min=1, help="Most pictures per source and class, chosen by hash.")
    ] = None,
    transform: Annotated[
        list[str] | None,
        typer.Option(help="A degradation to score under; may be repeated. Default: clean, web, hard."),
    ] = None,
    robustness: Annotated[bool, typer.Option("--robustness", help="Score under every degradation.")] = False,
    baseline: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=FILE",
            help="Another detector on the same pictures: its predictions (Parquet), or an ONNX model.",
        ),
    ] = None,
    views: Annotated[
        list[str] | None,
        typer.Option(help="Compare this view alone with all views together; may be repeated."),
    ] = None,
    calibration: Annotated[
        Path | None,
        typer.Option(help="Predictions of a calibration split, for detectors without a card, as the probe."),
    ] = None,
    trained_on: Annotated[
        Path | None,
        typer.Option(help="Text file of generators in the training data, one a line; default: the card's."),
    ] = None,
    rounds: Annotated[int, typer.Option(min=1, help="Bootstrap resamples of the sources.")] = 1000,
    seed: Annotated[int, typer.Option(min=0, help="Of the resamples.")] = 0,
    batch_size: Annotated[int, typer.Option(min=1, max=1024, help="Pictures scored at once.")] = 8,
    threads: Annotated[
        int | None, typer.Option(min=1, max=1024, help="Default: what CPU affinity and cgroup quota allow.")
    ] = None,
) -> None:
    """Measure a detector: tables with intervals, robustness, baselines, as JSON, CSV, Markdown and one page.

    Intervals come from drawing whole sources. What has no value is listed with the reason.
    """
    from detector.card import read_card
    from detector.evaluation.bootstrap import Plan
    from detector.evaluation.documents import write_report
    from detector.evaluation.run import Settings, evaluate_predictions

    if (data is None) == (predictions is None):
        raise DetectorError("give either a folder of pictures or --predictions, not both and not neither")
    settings = Settings(
        plan=Plan(rounds=rounds, seed=seed),
        views=tuple(views or ()),
        calibration=calibration,
        trained_on=None if trained_on is None else read_names(trained_on),
    )
    named = split_baselines(baseline or [])
    out.mkdir(parents=True, exist_ok=True)
    card: ModelCard | None = None
    if predictions is not None:
        if scored := [name for name, file in named.items() if file.suffix == ".onnx"]:
            raise DetectorError(f"baseline {scored[0]} is a model; with --predictions nothing is scored")
        card = None if model is None else read_card(model.with_suffix(".json"))
    else:
        assert data is not None
        pictures = open_data(data, layout, split, limit_per_source)
        names = choose_transforms(transform or [], robustness)
        with draw_progress() as show:
            predictions = _score(pictures, model, names, out, settings, batch_size, threads, show)
            for name, file in named.items():
                if file.suffix == ".onnx":
                    folder = out / "baselines" / name
                    named[name] = _score(pictures, file, names, folder, settings, batch_size, threads, show)
    evaluation = evaluate_predictions(predictions, settings, card=card, baselines=named)
    write_report(evaluation, out)
    for line in summarise(evaluation.report):
        print(line)
    print(out / "report.html")
    raise typer.Exit(EXIT_ERRORS if evaluation.report.counts.errors else 0)


def open_data(data: Path, layout: str, split: str | None, limit_per_source: int | None) -> "Pictures":
    """The pictures in `data`; says on standard output which layout it is taken for."""
    from detector.evaluation.samples import open_pictures

    pictures = open_pictures(data, layout=layout, split=split, limit_per_source=limit_per_source)
    info = pictures.info
    part = f", split {info.split}" if info.split else ""
    print(f"{info.name}: layout {info.layout}{part}, {len(pictures.samples)} pictures")
    if info.left_out:
        print(
            f"{info.left_out} picture files are outside this layout and left out, "
            f"for example {pictures.example_left_out}"
        )
    return pictures


def choose_transforms(named: list[str], everything: bool) -> list[str]:
    """The transforms to score under.

    Raises:
        DetectorError: a name is none, or both ways of choosing are used.
    """
    from mirage.transforms import TIERS, TRANSFORMS

    if named and everything:
        raise DetectorError("--robustness already takes every degradation; leave out --transform")
    if unknown := [name for name in named if name not in TRANSFORMS]:
        raise DetectorError(f"transform {unknown[0]!r} does not exist; choose from: {', '.join(TRANSFORMS)}")
    return list(TRANSFORMS) if everything else list(dict.fromkeys(named)) or list(TIERS)


def split_baselines(given: list[str]) -> dict[str, Path]:
    """Files by the names of their baselines.

    Raises:
        DetectorError: one is not NAME=FILE, or a name stands twice.
    """
    found: dict[str, Path] = {}
    for text in given:
        name, equals, file = text.partition("=")
        if not (name and equals and file) or "/" in name or name.startswith("."):
            raise DetectorError(f"--baseline {text!r} is not NAME=FILE with a name that may name a folder")
        if name in found:
            raise DetectorError(f"--baseline {name} is given twice")
        found[name] = Path(file)
    return found


def read_names(path: Path) -> tuple[str, ...]:
    """The lines of a text file that are not empty.

    Raises:
        DetectorError: it cannot be read.
    """
    try:
        return tuple(line.strip() for line in path.read_text("utf-8").splitlines() if line.strip())
    except (OSError, UnicodeDecodeError) as error:
        raise DetectorError(f"--trained-on {path} cannot be read as text") from error


def _score(
    pictures: "Pictures",
    model: Path | None,
    transforms: list[str],
    folder: Path,
    settings: "Settings",
    batch: int,
    threads: int | None,
    show: Progress,
) -> Path:
    from detector.evaluation.predictions import describe_origin
    from detector.evaluation.scores import score_pictures
    from detector.scoring import Detector

    detector = Detector(model, threads)
    return score_pictures(
        pictures,
        detector,
        transforms,
        folder,
        describe_origin(detector.card, pictures.info, settings.trained_on),
        batch=batch,
        on_progress=lambda done, total: show(f"scores of {detector.card.name}", done, total),
    )


def summarise(report: "Report") -> Iterator[str]:
    """The report in a few lines for a person."""
    counts = report.counts
    yield (
        f"{counts.pictures} pictures ({counts.real} real, {counts.ai} AI) under {len(report.transforms)} "
        f"transforms; {counts.errors} of {counts.rows} rows could not be read"
    )
    overall = report.table("overall")
    for row in overall.rows if overall else ():
        values = {name: row.values[name] for name in ("auroc", "flagged_real", "flagged_ai", "decided")}
        said = {
            name: f"undefined ({one.undefined})" if one.value is None else f"{one.value:.3f}"
            for name, one in values.items()
        }
        yield (
            f"{row.transform}: AUROC {said['auroc']}, false alarms {said['flagged_real']}, found "
            f"{said['flagged_ai']}, decided {said['decided']}"
        )
