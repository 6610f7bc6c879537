"""Labelled pictures that an int8 model is judged on: arrays in a file, a built data set or a folder tree."""

import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from detector.calibration import Calibration
from detector.decode import decode_picture
from detector.errors import UnscorableImage
from detector.evaluation.samples import open_pictures
from detector.exporting.errors import ExportError
from detector.prefetch import map_ahead
from detector.preprocess import Preprocessing, make_views

PREFETCH = 8
REAL, UNCERTAIN, AI = 0, 1, 2


class Verdicts(NamedTuple):
    """From margins to verdicts.

    Attributes:
        calibration: from a margin to a probability.
        real: verdict `real` at or below this probability.
        ai: verdict `ai` at or above.
    """

    calibration: Calibration = Calibration(1.0, 0.0)
    real: float = 0.5
    ai: float = 0.5

    def of(self, margins: NDArray[np.float64]) -> NDArray[np.int64]:
        """REAL, UNCERTAIN or AI for margins (N,)."""
        probability = self.calibration.probability(margins)
        decided = np.where(probability <= self.real, REAL, UNCERTAIN)
        return np.where(probability >= self.ai, AI, decided)


class Labelled(NamedTuple):
    """One picture: views (V, 3, S, S) uint8 and 0 real or 1 AI."""

    views: NDArray[np.uint8]
    label: int


@dataclass
class Pictures:
    """Pictures to judge on.

    Attributes:
        read: the readable ones, in order, from the start at every call.
        verdicts: thresholds that come with them, if any.
        unreadable: how many could not be read when they were last gone through; none is replaced.
    """

    read: Callable[["Pictures"], Iterator[Labelled]]
    verdicts: Verdicts | None = None
    unreadable: int = 0

    def __iter__(self) -> Iterator[Labelled]:
        self.unreadable = 0
        return self.read(self)


def open_labelled(data: Path, preprocessing: Preprocessing) -> Pictures:
    """The labelled pictures in `data`.

    Args:
        data: an `.npz` file with `views` (N, V, 3, S, S) uint8, `labels` (N,) of 0 real and 1 AI and, if
            wanted, `thresholds` [real, ai]; or a data set or folder tree that `omniaid eval` takes.
        preprocessing: how views are made of a folder's pictures.

    Raises:
        ExportError: the file does not hold these arrays.
        EvaluationError: the folder cannot be used.
    """
    if data.suffix == ".npz":
        return _from_arrays(data, preprocessing.size_px)
    found = open_pictures(data)

    def read(pictures: Pictures) -> Iterator[Labelled]:
        def make(sample: Any) -> Labelled | None:
            try:
                image = decode_picture(found.read(sample)).image
            except UnscorableImage:
                return None
            return Labelled(make_views(image, preprocessing), int(sample.label == "ai"))

        for labelled in map_ahead(make, found.samples, PREFETCH):
            if labelled is None:
                pictures.unreadable += 1
            else:
                yield labelled

    return Pictures(read)


def _from_arrays(path: Path, size_px: int) -> Pictures:
    try:
        with np.load(path, allow_pickle=False) as stored:
            arrays = {name: stored[name] for name in stored.files}
    except (OSError, ValueError, zipfile.BadZipFile) as error:
        raise ExportError(f"{path} cannot be read as a file of arrays: {error}") from error
    if missing := [name for name in ("views", "labels") if name not in arrays]:
        raise ExportError(f"{path} holds no {missing[0]}; views and labels are needed")
    views, labels = arrays["views"], arrays["labels"]
    if views.dtype != np.uint8 or views.ndim != 5 or views.shape[2:] != (3, size_px, size_px):
        shape = f"(N, V, 3, {size_px}, {size_px})"
        raise ExportError(f"views of {path} are {views.dtype} {views.shape}; uint8 {shape} is needed")
    if labels.shape != (len(views),) or not np.isin(labels, (0, 1)).all():
        raise ExportError(
            f"labels of {path} must be one 0 (real) or 1 (AI) for each of {len(views)} pictures"
        )
    verdicts = None
    if "thresholds" in arrays:
        if arrays["thresholds"].shape != (2,):
            raise ExportError(f"thresholds of {path} must be two numbers: real, ai")
        verdicts = Verdicts(real=float(arrays["thresholds"][0]), ai=float(arrays["thresholds"][1]))

    def read(pictures: Pictures) -> Iterator[Labelled]:
        for picture, label in zip(views, labels, strict=True):
            yield Labelled(picture, int(label))

    return Pictures(read, verdicts)
