"""Reports as a table for people, JSON Lines and CSV for programs."""

import csv
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from io import TextIOWrapper
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TextIO

from rich.console import Console
from rich.text import Text

from detector.errors import DetectorError
from detector.paths import reason, visible
from detector.scan import IMAGE_EXTENSIONS

# The command line imports this module for `--help` too, so it stays light.
if TYPE_CHECKING:
    from detector.card import ModelCard
    from detector.report import ImageReport


class Format(StrEnum):
    """How reports are written."""

    TABLE = "table"
    JSONL = "jsonl"
    CSV = "csv"


class Writer(Protocol):
    """Takes reports one by one."""

    def write(self, report: "ImageReport") -> None:
        """Write one report."""


class JsonlWriter:
    """One JSON object per line: the whole report."""

    def __init__(self, stream: TextIO, card: "ModelCard") -> None:
        self._stream = stream

    def write(self, report: "ImageReport") -> None:
        """Write one report."""
        self._stream.write(report.model_dump_json() + "\n")


NESTED = {"gates", "view_probabilities", "model", "warnings", "reasons", "interval", "stability"}


class CsvWriter:
    """Flat columns in a fixed order (RFC 4180), one per gate and per view of the model."""

    def __init__(self, stream: TextIO, card: "ModelCard") -> None:
        self._columns = csv_columns(card)
        self._rows = csv.DictWriter(stream, self._columns, extrasaction="ignore")
        self._rows.writeheader()

    def write(self, report: "ImageReport") -> None:
        """Write one report."""
        row = report.model_dump(exclude=NESTED)
        row |= {f"gate_{name}": weight for name, weight in report.gates.items()}
        row |= {f"view_{name}": value for name, value in report.view_probabilities.items()}
        row |= {
            f"model_{key}": value
            for key, value in (report.model.model_dump() if report.model else {}).items()
        }
        row["warnings"] = "; ".join(report.warnings)
        row["reasons"] = " ".join(report.reasons)
        if report.interval is not None:
            row["interval_low"], row["interval_high"] = report.interval
        if report.stability is not None:
            row["stability_spread"] = report.stability.spread
            row["stability_flips"] = "; ".join(report.stability.flips)
        self._rows.writerow(row)


def csv_columns(card: "ModelCard") -> list[str]:
    """The CSV header of a model's reports."""
    return [
        *("path", "status", "verdict", "probability", "calibrated", "threshold", "threshold_real"),
        *("width", "height", "format", "sha256"),
        *(f"gate_{name}" for name in card.experts),
        *(f"view_{name}" for name in card.preprocessing.views),
        *("model_name", "model_version", "model_sha256", "warnings", "error", "schema_version"),
        # New columns come last, so that programs which count columns go on working.
        *("reasons", "threshold_source", "view_spread", "interval_low", "interval_high"),
        *("stability_spread", "stability_flips"),
    ]


STYLES = {
    "ai": "bold red",
    "real": "green",
    "uncertain": "yellow",
    "out_of_scope": "blue",
    "error": "magenta",
}
COLUMNS = "{:<12}  {:>6}  {:<24}  "
INDENT = " " * 14


class TableWriter:
    """One line per picture, written as it is scored; reasons and warnings below it, indented."""

    def __init__(self, stream: TextIO, card: "ModelCard") -> None:
        self._stream = stream
        self._console = Console(file=stream, highlight=False, emoji=False)
        self._print(Text(COLUMNS.format("verdict", "P(AI)", "strongest experts") + "picture", style="bold"))

    def write(self, report: "ImageReport") -> None:
        """Write one report."""
        label = report.verdict or report.status
        # A number beside `out_of_scope` would be read as an answer.
        score = "" if report.probability is None or label == "out_of_scope" else f"{report.probability:.3f}"
        line = Text(COLUMNS.format(label, score, strongest(report.gates)))
        line.stylize(STYLES[label], 0, len(label))
        self._print(line.append(visible(report.path)))
        why = report.reasons if label == "out_of_scope" or report.stability is not None else ()
        for note in (*([report.error] if report.error else []), *why, *report.warnings):
            self._print(Text(INDENT + visible(note), style="dim"))

    def _print(self, line: Text) -> None:
        # Captured and written by hand: Console would end the process itself on a closed pipe.
        with self._console.capture() as captured:
            self._console.print(line, soft_wrap=True)
        self._stream.write(captured.get())


def strongest(gates: dict[str, float]) -> str:
    """The two semantic experts with the largest weights, e.g. "human 0.61, object 0.39"."""
    from detector.card import ARTIFACT

    ranked = sorted(((w, name) for name, w in gates.items() if name != ARTIFACT), key=lambda pair: -pair[0])
    return ", ".join(f"{visible(name)} {weight:.2f}" for weight, name in ranked[:2])


WRITERS: dict[Format, Callable[[TextIO, "ModelCard"], Writer]] = {
    Format.TABLE: TableWriter,
    Format.JSONL: JsonlWriter,
    Format.CSV: CsvWriter,
}


@contextmanager
def open_output(out: Path | None, format_: Format) -> Iterator[TextIO]:
    """The stream reports go to: standard output, or a file that appears whole or not at all.

    Raises:
        DetectorError: the file cannot be written there.
    """
    newline = "" if format_ is Format.CSV else None
    if out is None:
        if isinstance(sys.stdout, TextIOWrapper):
            encoding = None if format_ is Format.TABLE else "utf-8"
            sys.stdout.reconfigure(encoding=encoding, errors="backslashreplace", newline=newline)
        yield sys.stdout
        sys.stdout.flush()
        return
    target = check_target(out)
    # Written beside the target and renamed, so that a reader never sees half a file.
    temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("x", encoding="utf-8", newline=newline) as stream:
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
        temporary.replace(target)
    except OSError as error:
        raise DetectorError(f"--out {out} cannot be written: {reason(error)}") from error
    finally:
        temporary.unlink(missing_ok=True)


def check_target(out: Path) -> Path:
    """Where `out` really lies, symbolic links resolved.

    Raises:
        DetectorError: it is a folder, a device, named like a picture, or its folder is missing.
    """
    target = Path(os.path.realpath(out))
    if target.suffix.lower() in IMAGE_EXTENSIONS:
        raise DetectorError(f"--out {out} is named like a picture; reports are text, e.g. report.jsonl")
    if target.exists() and not target.is_file():
        raise DetectorError(f"--out {out} exists and is not a regular file")
    if not target.parent.is_dir():
        raise DetectorError(f"--out {out} cannot be written: folder {target.parent} does not exist")
    return target
