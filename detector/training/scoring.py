"""Scores of whole pictures on all processes, each picture counted exactly once."""

import math
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from detector.errors import DetectorError
from detector.features import tier_views
from detector.prefetch import map_ahead
from detector.preprocess import Preprocessing
from detector.samples import PictureStore, SampleRow
from detector.training.engine import Engine
from mirage.errors import UnreadableImage

Job = tuple[SampleRow, str]
PREFETCH = 16


class Score(NamedTuple):
    """One picture's score.

    Attributes:
        job: its place in the list of jobs.
        margin: mean over views of the AI-minus-real logit; None where the picture cannot be read.
        error: why not.
    """

    job: int
    margin: float | None
    error: str | None = None


class Prepared(NamedTuple):
    """One picture's views (V, 3, S, S), or why there are none."""

    job: int
    views: NDArray[np.uint8] | None
    error: str | None = None


def score_all(
    module: nn.Module,
    engine: Engine,
    jobs: Sequence[Job],
    store: PictureStore,
    preprocessing: Preprocessing,
    batch: int,
) -> list[Score]:
    """One score per job, in order, the same list on every process.

    Processes take turns at the jobs; nothing is repeated to make their shares equal.

    Args:
        module: gives `margin` for views; wrapped by `engine`.
        engine: of this process.
        jobs: pictures, each with a degradation of `mirage.transforms.TIERS`.
        store: their bytes.
        preprocessing: their views.
        batch: pictures in one forward pass.

    Raises:
        DetectorError: a job was scored twice or not at all.
    """
    mine = range(engine.rank, len(jobs), engine.processes)
    rounds = math.ceil(len(jobs) / engine.processes / batch)
    prepared = map_ahead(lambda number: _prepare(number, jobs[number], store, preprocessing), mine, PREFETCH)
    was_training = module.training
    module.eval()
    found = [
        score
        for _ in range(rounds)
        for score in _score(module, engine, list(islice(prepared, batch)), preprocessing)
    ]
    module.train(was_training)
    scores = sorted(engine.gather(found), key=lambda score: score.job)
    if [score.job for score in scores] != list(range(len(jobs))):
        raise DetectorError(f"{len(scores)} scores came back for {len(jobs)} pictures; each must count once")
    return scores


def _prepare(number: int, job: Job, store: PictureStore, preprocessing: Preprocessing) -> Prepared:
    row, tier = job
    try:
        return Prepared(number, tier_views(row, tier, store, preprocessing))
    except UnreadableImage as error:
        return Prepared(number, None, str(error))


@torch.no_grad()
def _score(
    module: nn.Module, engine: Engine, chunk: list[Prepared], preprocessing: Preprocessing
) -> Iterator[Score]:
    views = [item.views for item in chunk if item.views is not None]
    if not views and engine.sharded:
        # Every process must take part in gathering the weights; what comes out counts for nothing.
        views = [np.zeros((1, 3, preprocessing.size_px, preprocessing.size_px), np.uint8)]
    margins: list[float] = []
    if views:
        pixels = torch.from_numpy(np.concatenate(views)).to(engine.device)
        with engine.autocast():
            scored = module(pixels)["margin"].float().cpu().numpy()
        margins = scored.reshape(len(views), -1).mean(axis=1).tolist()
    left = iter(margins)
    for item in chunk:
        yield Score(item.job, None if item.views is None else next(left), item.error)


def area_under_curve(jobs: Sequence[Job], scores: Sequence[Score]) -> float | None:
    """AUROC of the scores that there are; None where one class is missing."""
    from sklearn.metrics import roc_auc_score

    pairs = [(jobs[score.job][0].label, score.margin) for score in scores if score.margin is not None]
    if len({label for label, _ in pairs}) < 2:
        return None
    labels, margins = zip(*pairs, strict=True)
    return float(roc_auc_score(labels, margins))
