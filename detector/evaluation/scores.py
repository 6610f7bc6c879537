"""Scores of every picture under every transform, kept in parts so that a killed run goes on where it was."""

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from detector.decode import decode_picture
from detector.errors import UnscorableImage
from detector.evaluation.errors import EvaluationError
from detector.evaluation.predictions import Origin, Prediction, read_predictions, write_predictions
from detector.evaluation.samples import Pictures, Sample
from detector.prefetch import map_ahead
from detector.preprocess import make_views
from detector.report import ImageReport
from detector.runtime import Scores
from detector.scope import why_out_of_scope
from detector.scoring import Detector, judge
from mirage.decode import Picture
from mirage.transforms import TRANSFORMS

PREDICTIONS = "predictions.parquet"
PARTS = "parts"
PART_ROWS = 128
PREFETCH = 4
Progress = Callable[[int, int], None]


class Prepared(NamedTuple):
    """A picture under one transform: its row so far, and its views (V, 3, S, S) unless it is an error."""

    row: Prediction
    views: NDArray[np.uint8] | None
    reasons: tuple[str, ...] = ()


class Job(NamedTuple):
    """A picture and the transforms under which it is still to be scored."""

    sample: Sample
    transforms: tuple[str, ...]


def score_pictures(
    pictures: Pictures,
    detector: Detector,
    transforms: Sequence[str],
    folder: Path,
    origin: Origin,
    *,
    batch: int = 8,
    on_progress: Progress = lambda done, total: None,
) -> Path:
    """The path of the predictions in `folder`: one row per picture and transform, each counted once.

    Finished rows stay in parts below `folder`: the same call goes on after a kill, and a larger limit or
    more transforms only score what is new.

    Args:
        pictures: what to score.
        detector: by which model.
        transforms: names of `TRANSFORMS`.
        folder: for parts and predictions.
        origin: stored with the predictions.
        batch: pictures per inference.
        on_progress: called with the rows done and the rows in all.

    Raises:
        EvaluationError: `folder` holds scores of another model or other pictures.
    """
    parts = folder / PARTS
    parts.mkdir(parents=True, exist_ok=True)
    _check_belongs(parts, origin)
    done = {(row["key"], row["transform"]) for row in _read_parts(parts)}
    wanted = {(sample.key, name) for sample in pictures.samples for name in transforms}
    jobs = _jobs(pictures.samples, transforms, done)
    finished = len(wanted & done)
    on_progress(finished, len(wanted))
    for rows in _batched(_score(jobs, pictures, detector, batch), PART_ROWS):
        names = "\n".join(f"{row['key']} {row['transform']}" for row in rows)
        # Named by its content: two runs at once write the same part, not a second one.
        path = parts / f"{hashlib.sha256(names.encode()).hexdigest()[:16]}.parquet"
        write_predictions(rows, path, origin)
        finished += len(rows)
        on_progress(finished, len(wanted))
    order = {
        pair: place
        for place, pair in enumerate((s.key, name) for name in transforms for s in pictures.samples)
    }
    chosen = {(row["key"], row["transform"]): row for row in _read_parts(parts)}
    write_predictions([chosen[pair] for pair in order], folder / PREDICTIONS, origin)
    return folder / PREDICTIONS


def _check_belongs(parts: Path, origin: Origin) -> None:
    """Keep scores of different models and data sets apart."""
    data = origin.data.model_dump(include={"name", "layout"})
    mark = origin.model_dump(mode="json", exclude={"data", "trained_on"}) | {"data": data}
    path = parts / "origin.json"
    if path.exists() and json.loads(path.read_text("utf-8")) != mark:
        raise EvaluationError(
            f"{parts.parent} holds scores of another model or of other pictures; choose another --out"
        )
    path.write_text(json.dumps(mark, indent=1), "utf-8")


def _read_parts(parts: Path) -> Iterator[Prediction]:
    for path in sorted(parts.glob("[!.]*.parquet")):
        yield from read_predictions(path)


def _jobs(samples: Sequence[Sample], transforms: Sequence[str], done: set[tuple[str, str]]) -> Iterator[Job]:
    for sample in samples:
        if missing := tuple(name for name in transforms if (sample.key, name) not in done):
            yield Job(sample, missing)


def _batched(rows: Iterator[Prediction], size: int) -> Iterator[list[Prediction]]:
    while batch := list(islice(rows, size)):
        yield batch


def _score(jobs: Iterator[Job], pictures: Pictures, detector: Detector, batch: int) -> Iterator[Prediction]:
    """One row per picture and transform, in order."""

    def prepare(job: Job) -> list[Prepared]:
        return list(_prepare(job, pictures, detector))

    prepared = (one for many in map_ahead(prepare, jobs, PREFETCH) for one in many)
    while chunk := list(islice(prepared, batch)):
        stacks = [one.views for one in chunk if one.views is not None]
        scores = detector.runtime.score_views(np.concatenate(stacks)) if stacks else None
        start = 0
        for one in chunk:
            if one.views is None or scores is None:
                yield one.row
                continue
            rows = slice(start, start + len(one.views))
            start += len(one.views)
            yield _complete(one, Scores(scores.logits[rows], scores.gates[rows]), detector)


def _prepare(job: Job, pictures: Pictures, detector: Detector) -> Iterator[Prepared]:
    try:
        picture = decode_picture(pictures.read(job.sample))
    except UnscorableImage as error:
        for name in job.transforms:
            yield Prepared(_row(job.sample, name) | {"error": str(error)}, None)
        return
    for name in job.transforms:
        yield _transformed(_row(job.sample, name), picture, detector)


def _transformed(row: Prediction, picture: Picture, detector: Detector) -> Prepared:
    """The picture as the detector meets it after the transform."""
    try:
        image = TRANSFORMS[row["transform"]](picture.image)
        views = make_views(image, detector.card.preprocessing)
    except (OSError, ValueError) as error:  # what Pillow's encoders raise, for example on too many pixels
        reason = " ".join(str(error).split())
        return Prepared(row | {"error": f"transform {row['transform']} failed: {reason}"}, None)
    shown = row | {"width": image.width, "height": image.height, "format": picture.format}
    return Prepared(shown, views, why_out_of_scope(image))


def _row(sample: Sample, transform: str) -> Prediction:
    return asdict(sample) | {"transform": transform}


def _complete(one: Prepared, scores: Scores, detector: Detector) -> Prediction:
    """The row with everything that a scan would say of the picture."""
    row = one.row
    size = {"width": row["width"], "height": row["height"]}
    shown = ImageReport(path=row["key"], status="ok", **size, reasons=one.reasons)
    report = judge(shown, scores, detector.card)
    margins = (scores.logits[:, 1] - scores.logits[:, 0]).astype(np.float64)
    return row | {
        "margin": float(margins.mean()),
        "probability": report.probability,
        "verdict": report.verdict,
        "logits": scores.logits.astype(np.float64).ravel().tolist(),
        "gates": list(report.gates.values()),
    }
