"""One evaluation: from predictions, and those of baselines, to the report."""

from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field

from detector.calibration import fit_calibration, set_thresholds
from detector.card import ModelCard
from detector.evaluation.bootstrap import Plan
from detector.evaluation.comparisons import Baseline, baseline_tables, flip_table
from detector.evaluation.errors import EvaluationError
from detector.evaluation.frame import Decision, Frame, build_frame
from detector.evaluation.predictions import (
    Columns,
    DataInfo,
    Origin,
    describe_origin,
    read_columns,
    read_origin,
)
from detector.evaluation.report import Counts, Failure, Report, Table
from detector.evaluation.tables import make_tables

PROBE = "linear probe"
MOST_FAILURES = 50
TARGET_RATE = 0.05  # of false alarms and of misses on a calibration split, as in a training recipe
PACKAGES = ("omniaid", "numpy", "pillow", "onnxruntime")


class Settings(BaseModel):
    """Everything that decides a report besides the predictions."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    plan: Plan = Plan()
    reference: str = "clean"
    views: tuple[str, ...] = Field(default=(), description="views compared alone with all views together")
    calibration: Path | None = Field(
        default=None, description="predictions of a calibration split, for detectors that lack a calibration"
    )
    trained_on: tuple[str, ...] | None = Field(
        default=None, description="generators in the training data; None: as the predictions say"
    )


class Evaluation(NamedTuple):
    """A report, and the readable predictions that it was made from."""

    report: Report
    frame: Frame


def evaluate_predictions(
    path: Path,
    settings: Settings,
    *,
    card: ModelCard | None = None,
    baselines: Mapping[str, Path] | None = None,
) -> Evaluation:
    """The report on the predictions at `path`; nothing is scored.

    Args:
        path: Parquet file of this module, of the training pipeline, or of another program.
        settings: of the report.
        card: of the model that made them, for a file that does not say.
        baselines: other detectors' predictions of the same pictures, by name.

    Raises:
        EvaluationError: a file cannot be used, or none of its pictures could be read.
    """
    columns, origin, place = read_columns(path), read_origin(path), str(path)
    if origin is None and card is not None:
        origin = describe_origin(card, DataInfo(name=path.stem, layout="", split=""))
    decision, note = _decide(origin, settings.calibration, "margin")
    frame = build_frame(columns, decision, place=place)
    if len(frame) == 0:
        raise EvaluationError(f"{place} holds no picture that could be read")
    compared = _own_baselines(columns, origin, settings, place) | {
        name: _read_baseline(file, settings) for name, file in (baselines or {}).items()
    }
    trained_on = settings.trained_on
    if trained_on is None and origin is not None:
        trained_on = origin.trained_on
    tables, missing = make_tables(frame, settings.plan, trained_on)
    flips = flip_table(frame, settings.reference, settings.plan)
    if isinstance(flips, Table):
        tables.append(flips)
    else:
        missing.append(flips)
    report = Report(
        name=origin.data.name if origin else path.stem,
        origin=origin,
        plan=settings.plan,
        reference=settings.reference,
        transforms=tuple(frame.transforms()),
        counts=_count(columns),
        failures=tuple(_failures(columns)),
        tables=(*tables, *baseline_tables(frame, compared, settings.plan)),
        missing=tuple(missing),
        notes=tuple(filter(None, (note, _describe_data(origin), _describe_training(trained_on)))),
        versions=_versions(),
    )
    return Evaluation(report, frame)


def _decide(origin: Origin | None, calibration: Path | None, column: str) -> tuple[Decision, str]:
    """How a detector's margins are read, and that in words."""
    if origin is not None:
        return Decision.of(origin), (
            "Temperature, bias and thresholds are the model card's, fitted on its calibration split; nothing "
            "was fitted on these pictures."
        )
    if calibration is None:
        return Decision(), "Without a calibration, only measures of the ranking have values."
    margins, labels = _calibration_margins(calibration, column)
    fitted = fit_calibration(margins, labels)
    limits = set_thresholds(fitted.probability(margins), labels, TARGET_RATE, TARGET_RATE)
    return Decision(fitted, limits.ai, limits.real), (
        f"Temperature, bias and thresholds of {column} were fitted on {len(labels)} rows of "
        f"{calibration.name}, at most {TARGET_RATE:.0%} false alarms and misses there."
    )


def _calibration_margins(path: Path, column: str) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    columns = read_columns(path)
    known = (columns["error"] == "") & ~np.isnan(columns[column])
    labels = (columns["label"][known] == "ai").astype(np.int64)
    if len(set(labels.tolist())) < 2:
        raise EvaluationError(
            f"{path} holds no {column} of one class; a calibration needs real and AI pictures"
        )
    return columns[column][known], labels


def _own_baselines(
    columns: Columns, origin: Origin | None, settings: Settings, place: str
) -> dict[str, Baseline]:
    """Detectors whose margins lie in the same file: the linear probe, and single views."""
    readable, found = columns["error"] == "", {}
    if not np.isnan(columns["probe_margin"][readable]).any():
        decision, note = _decide(None, settings.calibration, "probe_margin")
        frame = build_frame(columns, decision, margin=columns["probe_margin"], place=place)
        found[PROBE] = Baseline(frame, note)
    for view in settings.views:
        if origin is None or view not in origin.views:
            has = ", ".join(origin.views) if origin else "unknown ones"
            raise EvaluationError(f"{place} has no view {view!r}; its views are {has}")
        if len(origin.views) == 1:
            raise EvaluationError(
                f"the model of {place} has the view {view!r} only; there is nothing to compare"
            )
        margins = _view_margins(columns, origin.views.index(view))
        frame = build_frame(columns, Decision.of(origin), margin=margins, place=place)
        note = "calibrated as the mean of all views, for which the thresholds were fitted"
        found[f"{view} view alone"] = Baseline(frame, note)
    return found


def _view_margins(columns: Columns, view: int) -> NDArray[np.float64]:
    pairs = [None if row is None else row[2 * view : 2 * view + 2] for row in columns["logits"]]
    return np.array([np.nan if pair is None else pair[1] - pair[0] for pair in pairs], dtype=np.float64)


def _read_baseline(path: Path, settings: Settings) -> Baseline:
    columns, origin = read_columns(path), read_origin(path)
    decision, note = _decide(origin, None, "margin")
    return Baseline(build_frame(columns, decision, place=str(path)), note)


def _count(columns: Columns) -> Counts:
    readable, labels = columns["error"] == "", columns["label"]
    return Counts(
        rows=len(labels),
        pictures=len(set(columns["key"])),
        real=len(set(columns["key"][labels == "real"])),
        ai=len(set(columns["key"][labels == "ai"])),
        errors=int((~readable).sum()),
    )


def _failures(columns: Columns) -> list[Failure]:
    return [
        Failure(key=columns["key"][row], transform=columns["transform"][row], error=columns["error"][row])
        for row in np.flatnonzero(columns["error"] != "")[:MOST_FAILURES]
    ]


def _describe_data(origin: Origin | None) -> str:
    if origin is None or not origin.data.layout:
        return ""
    data = origin.data
    limit = "all pictures" if data.limit_per_source is None else f"at most {data.limit_per_source} pictures"
    left_out = (
        f" {data.left_out} picture files that the layout gives no class were left out."
        if data.left_out
        else ""
    )
    split = f"split {data.split}" if data.split else "all splits"
    return f"Pictures: {data.name}, layout {data.layout}, {split}, {limit} per source and class.{left_out}"


def _describe_training(trained_on: tuple[str, ...] | None) -> str:
    if trained_on is None:
        return "Which generators the model learnt from is not known, so none is called held out."
    return f"Generators of the training data: {', '.join(trained_on) or 'none'}."


def _versions() -> dict[str, str]:
    found = {}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue  # run from a checkout, or a package that only scoring needs
    return found
