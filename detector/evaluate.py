"""Scores of whole pictures under named degradations, for calibration and for the card."""

from collections.abc import Callable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from detector.evaluation.predictions import Prediction, read_predictions, write_predictions
from detector.features import FeatureCache
from detector.model import OmniAID
from detector.probe import Probe
from detector.samples import SampleRow

BATCH = 16

__all__ = ["Prediction", "predict", "read_predictions", "write_predictions"]


@torch.no_grad()
def predict(
    model: OmniAID,
    probe: Probe,
    jobs: Sequence[tuple[SampleRow, str]],
    cache: FeatureCache,
    on_progress: Callable[[int], None] = lambda done: None,
) -> list[Prediction]:
    """One prediction per job (picture, tier), by the model and by the linear probe on the same views.

    A picture that could not be read is a prediction with `error` set and no margins; it is never replaced.

    Args:
        model: its frozen part is the one that the features come from.
        probe: on the frozen features.
        jobs: N pictures with their tiers.
        cache: features of the N * V views, as `detector.features.build_evaluation_cache` makes them.
        on_progress: called with the number of jobs done.

    Returns:
        Dicts with key, source, generator, domain, label, tier, `margin` and `probe_margin` (mean over
        views of the AI-minus-real logit), `view_margins` and `view_probe_margins` (V each), `gates`
        (mean over views) and `error`.
    """
    views = len(cache.frozen) // max(len(jobs), 1)
    predictions: list[Prediction] = []
    for first in range(0, len(jobs), BATCH):
        chunk = jobs[first : first + BATCH]
        index = np.arange(first * views, (first + len(chunk)) * views)
        scores = _score(model, probe, cache, index, len(chunk))
        predictions += [
            _prediction(job, score, cache.errors.get(first + number))
            for number, (job, score) in enumerate(zip(chunk, scores, strict=True))
        ]
        on_progress(len(predictions))
    return predictions


Score = tuple[list[float], list[float], list[float]]


def _score(
    model: OmniAID, probe: Probe, cache: FeatureCache, index: NDArray[np.int64], pictures: int
) -> list[Score]:
    """Per picture: the model's and the probe's margin of each view, and the mean gates."""
    shared, frozen = cache.shared(index), cache.features(index)
    led, read = (shared, frozen) if model.two_pass else model.read_router(shared)
    _, _, gates = model.route_features(read)
    logits = model.head(model.trunk.finish(led, gates))
    ours = (logits[:, 1] - logits[:, 0]).numpy().reshape(pictures, -1)
    theirs = probe.margins(frozen.numpy()).reshape(pictures, -1)
    weights = gates.numpy().reshape(pictures, -1, gates.shape[1]).mean(axis=1)
    return list(zip(ours.tolist(), theirs.tolist(), weights.tolist(), strict=True))


def _prediction(job: tuple[SampleRow, str], score: Score, error: str | None) -> Prediction:
    row, tier = job
    fields = {name: getattr(row, name) for name in ("key", "source", "generator", "domain", "label")}
    ours, theirs, gates = score if error is None else (None, None, None)
    return fields | {
        "tier": tier,
        "margin": None if ours is None else float(np.mean(ours)),
        "probe_margin": None if theirs is None else float(np.mean(theirs)),
        "view_margins": ours,
        "view_probe_margins": theirs,
        "gates": gates,
        "error": error,
    }
