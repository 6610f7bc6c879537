"""The detector's commands; everything heavy is imported when a command runs."""

import os
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import closing
from enum import StrEnum
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from detector.errors import DetectorError
from detector.output import WRITERS, Format, check_target, open_output
from detector.paths import printable, visible
from detector.scan import find_inputs

if TYPE_CHECKING:
    from detector.output import Writer
    from detector.report import ImageReport
    from detector.scan import Input

EXIT_CLEAN, EXIT_FINDINGS, EXIT_ERRORS, EXIT_BROKEN_PIPE = 0, 1, 3, 141

EPILOG = (
    "Exit codes: 0 every picture was scored; 1 with --fail-on ai, at least one verdict is ai; "
    "2 wrong usage, no pictures found, or a model that cannot be used; "
    "3 at least one row is an error (wins over 1)."
)


class FailOn(StrEnum):
    """Verdicts that make a scan fail."""

    AI = "ai"


def register(app: typer.Typer) -> None:
    """Add the detector's commands to `app`."""
    from detector.calibration_commands import register as register_calibration
    from detector.domain_commands import register as register_domains
    from detector.evidence_commands import register as register_evidence
    from detector.model_page_commands import register as register_model_page
    from detector.training_commands import register as register_training

    app.command("scan", epilog=EPILOG)(scan)
    register_training(app)
    register_domains(app)
    register_calibration(app)
    register_evidence(app)
    register_model_page(app)


def scan(
    paths: Annotated[
        list[Path],
        typer.Argument(
            metavar="PATH",
            help="Pictures and folders; folders are searched recursively for picture files, in sorted order.",
        ),
    ],
    format: Annotated[
        Format, typer.Option(help="A table for people, JSON Lines or CSV for programs.")
    ] = Format.TABLE,
    out: Annotated[Path | None, typer.Option(help="Write to this file, whole or not at all.")] = None,
    model: Annotated[
        Path | None,
        typer.Option(help="ONNX model with its .json card beside it, instead of the packaged one."),
    ] = None,
    batch_size: Annotated[int, typer.Option(min=1, max=1024, help="Pictures scored at once.")] = 8,
    threads: Annotated[
        int | None, typer.Option(min=1, max=1024, help="Default: what CPU affinity and cgroup quota allow.")
    ] = None,
    fail_on: Annotated[FailOn | None, typer.Option(help="Exit with 1 when a verdict is this.")] = None,
    thresholds: Annotated[
        Path | None, typer.Option(help="Your own thresholds, written by `omniaid calibrate`.")
    ] = None,
    fpr: Annotated[
        float | None,
        typer.Option(help="Take the model's thresholds for this false-positive rate, e.g. 0.01 or 0.05."),
    ] = None,
    stability: Annotated[
        bool,
        typer.Option(
            "--stability",
            help="Also score the picture encoded again (JPEG 95 and 80, PNG, three quarters of its size); a "
            "verdict that changes becomes uncertain. Takes four times as long.",
        ),
    ] = False,
) -> None:
    """Tell for each picture whether AI made it: one row per input, also for a bad one."""
    from detector.scoring import Detector

    started = time.monotonic()
    inputs = require_any(find_inputs(paths), paths)
    if out is not None:
        check_target(out)
    detector = Detector(model, threads, thresholds=thresholds, false_positive_rate=fpr, stability=stability)
    try:
        with open_output(out, format) as stream:
            writer = WRITERS[format](stream, detector.card)
            with closing(detector.score_many(inputs, batch_size)) as reports:
                counts = write_all(reports, writer)
    except BrokenPipeError:
        raise typer.Exit(leave_closed_pipe()) from None
    print(summary(counts, time.monotonic() - started), file=sys.stderr)
    raise typer.Exit(exit_code(counts, fail_on))


def require_any(inputs: "Iterator[Input]", paths: list[Path]) -> "Iterator[Input]":
    """`inputs`, unchanged.

    Raises:
        DetectorError: there are none.
    """
    first = next(inputs, None)
    if first is None:
        named = ", ".join(visible(printable(path)) for path in paths[:3]) + (
            ", ..." if len(paths) > 3 else ""
        )
        raise DetectorError(f"no image files found in {named}")
    return chain([first], inputs)


def write_all(reports: "Iterable[ImageReport]", writer: "Writer") -> Counter[str]:
    """How many reports were written, by verdict, or `error`."""
    counts: Counter[str] = Counter()
    for report in reports:
        writer.write(report)
        counts[report.verdict or report.status] += 1
    return counts


def summary(counts: Counter[str], seconds: float) -> str:
    """One line for the end of a scan."""
    parts = [f"{counts[label]} {label}" for label in ("ai", "real", "uncertain", "out_of_scope", "error")]
    return f"scanned {counts.total()}: {', '.join(parts)} ({seconds:.1f} s)"


def exit_code(counts: Counter[str], fail_on: FailOn | None) -> int:
    """The scan's exit code, as `--help` documents it."""
    if counts["error"]:
        return EXIT_ERRORS
    return EXIT_FINDINGS if fail_on is not None and counts[fail_on.value] else EXIT_CLEAN


def leave_closed_pipe() -> int:
    """The exit code of a process whose reader went away; keeps the interpreter from writing again."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return EXIT_BROKEN_PIPE
