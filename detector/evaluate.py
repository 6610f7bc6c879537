"""Scores of whole pictures under named degradations, for calibration and for the card."""

from collections.abc import Callable, Iterator, Sequence
from itertools import islice

import numpy as np
import torch
from numpy.typing import NDArray

from detector.evaluation.predictions import Prediction, read_predictions, write_predictions
from detector.model import OmniAID
from detector.prefetch import map_ahead
from detector.preprocess import Preprocessing, make_views
from detector.probe import Probe
from detector.samples import PictureStore, SampleRow
from mirage.decode import decode
from mirage.errors import UnreadableImage
from mirage.transforms import TIERS

BATCH = 8
PREFETCH = 16

__all__ = ["Prediction", "predict", "read_predictions", "write_predictions"]


def predict(
    model: OmniAID,
    probe: Probe,
    jobs: Sequence[tuple[SampleRow, str]],
    store: PictureStore,
    preprocessing: Preprocessing,
    on_progress: Callable[[int], None] = lambda done: None,
) -> list[Prediction]:
    """One prediction per job (picture, tier), by the model and by the linear probe on the same views.

    A picture that cannot be read is a prediction with `error` set and no margins; it is never replaced.

    Returns:
        Dicts with key, source, generator, domain, label, tier, `margin` and `probe_margin` (mean over
        views of the AI-minus-real logit), `gates` (mean over views) and `error`.
    """
    done, predictions = 0, []
    prepared = _prepare(jobs, store, preprocessing)
    while chunk := list(islice(prepared, BATCH)):
        predictions += _score(model, probe, chunk)
        done += len(chunk)
        on_progress(done)
    return predictions


Prepared = tuple[SampleRow, str, NDArray[np.uint8] | None, str | None]


def _prepare(
    jobs: Sequence[tuple[SampleRow, str]], store: PictureStore, preprocessing: Preprocessing
) -> Iterator[Prepared]:
    def make(job: tuple[SampleRow, str]) -> Prepared:
        row, tier = job
        try:
            image = TIERS[tier](decode(store.read(row)).image)
        except UnreadableImage as error:
            return row, tier, None, str(error)
        return row, tier, make_views(image, preprocessing), None

    return map_ahead(make, jobs, PREFETCH)


@torch.no_grad()
def _score(model: OmniAID, probe: Probe, chunk: list[Prepared]) -> list[Prediction]:
    views = [item[2] for item in chunk if item[2] is not None]
    margins: Iterator[tuple[float, float, list[float]]] = iter(())
    if views:
        shared = model.trunk.shared(torch.from_numpy(np.concatenate(views)))
        led, read = model.read_router(shared)
        # The probe always reads the frozen backbone; only the two-pass router reads the same.
        frozen = read if model.two_pass else model.trunk.finish(shared, None)
        _, _, gates = model.route_features(read)
        logits = model.head(model.trunk.finish(led, gates))
        ours = (logits[:, 1] - logits[:, 0]).numpy().reshape(len(views), -1).mean(axis=1)
        theirs = probe.margins(frozen.numpy()).reshape(len(views), -1).mean(axis=1)
        weights = gates.numpy().reshape(len(views), -1, gates.shape[1]).mean(axis=1)
        margins = iter(zip(ours.tolist(), theirs.tolist(), weights.tolist(), strict=True))
    return [_prediction(item, None if item[2] is None else next(margins)) for item in chunk]


def _prediction(item: Prepared, scores: tuple[float, float, list[float]] | None) -> Prediction:
    row, tier, _, error = item
    fields = {name: getattr(row, name) for name in ("key", "source", "generator", "domain", "label")}
    margin, probe_margin, gates = scores or (None, None, None)
    return fields | {
        "tier": tier,
        "margin": margin,
        "probe_margin": probe_margin,
        "gates": gates,
        "error": error,
    }
