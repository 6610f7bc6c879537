"""Comparisons: verdicts under re-encoding, and baselines on the same pictures, drawn in pairs."""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from detector.evaluation.bootstrap import (
    Estimate,
    Plan,
    Sampled,
    describe_drawing,
    draw_weights,
    make_estimate,
    sample,
)
from detector.evaluation.errors import EvaluationError
from detector.evaluation.frame import AI, REAL, Frame
from detector.evaluation.measures import MEASURES, Values, Weighted
from detector.evaluation.report import Missing, Table
from detector.evaluation.tables import EVERY, Part, make_row

SELF = "this model"
FLIPS = {
    "changed": "any other verdict than before",
    "swapped": "from ai to real or from real to ai",
    "became_uncertain": "decided before, uncertain or out of scope now",
    "became_decided": "uncertain or out of scope before, decided now",
    "shift": "mean change of the probability, either way",
}


class Baseline(NamedTuple):
    """Another detector's readable predictions, and what must be known to read its figures."""

    frame: Frame
    note: str = ""


def flip_table(frame: Frame, reference: str, plan: Plan) -> Table | Missing:
    """How verdicts change between `reference` and every other transform of the same picture.

    Args:
        frame: predictions under all transforms.
        reference: the transform that pictures are compared with.
        plan: of the intervals.
    """
    others = [name for name in frame.transforms() if name != reference]
    if reference not in frame.transforms():
        return Missing(table="flips", why=f"no picture was scored under {reference}")
    if not others:
        return Missing(table="flips", why=f"pictures were scored under {reference} alone")
    if not frame.judged:
        return Missing(table="flips", why="no thresholds, so no verdicts")
    rows = []
    for name in others:
        before, after = _matched(
            frame.take(frame.transform == reference), frame.take(frame.transform == name)
        )
        for kind, chosen in (("all pictures", None), ("real pictures", REAL), ("AI pictures", AI)):
            mask = np.ones(len(before), bool) if chosen is None else before.of(chosen)
            if mask.any():
                values = _flips(before.take(mask), after.take(mask), plan)
                rows.append(make_row(Part(kind, {}, before.take(mask)), name, values))
    return Table(
        name="flips",
        title=f"Verdicts against {reference}",
        text=f"The same picture under {reference} and under the transform; shares of pictures.",
        measures=tuple(FLIPS),
        rows=tuple(rows),
    )


def _matched(first: Frame, second: Frame) -> tuple[Frame, Frame]:
    """The pictures that both hold, in the same order."""
    _, here, there = np.intersect1d(
        first.key.astype(str), second.key.astype(str), assume_unique=True, return_indices=True
    )
    return first.take(here), second.take(there)


def _flips(before: Frame, after: Frame, plan: Plan) -> dict[str, Estimate]:
    first = before.flagged.astype(int) - before.cleared
    second = after.flagged.astype(int) - after.cleared
    hits: dict[str, NDArray[np.bool_] | Values] = {
        "changed": first != second,
        "swapped": first * second == -1,
        "became_uncertain": (first != 0) & (second == 0),
        "became_decided": (first == 0) & (second != 0),
        "shift": np.abs(after.probability - before.probability),
    }
    once = Weighted(before, np.ones((1, len(before))))
    draws: dict[str, list[Values]] = {name: [] for name in hits}
    for weights in draw_weights(before, plan):
        data = Weighted(before, weights)
        for name, hit in hits.items():
            draws[name].append(data.share(hit))
    drawing = describe_drawing("any", (len(before.sources(REAL)), len(before.sources(AI))))
    return {
        name: make_estimate(float(once.share(hit)[0]), np.concatenate(draws[name]), plan, drawing)
        for name, hit in hits.items()
    }


def baseline_tables(frame: Frame, baselines: Mapping[str, Baseline], plan: Plan) -> list[Table]:
    """Every detector's own figures, and this model minus each baseline, on the pictures both could read.

    Args:
        frame: this model's predictions under all transforms.
        baselines: by name; transforms and pictures that they lack are left out of the comparison.
        plan: of the intervals; both detectors see the same draws.

    Raises:
        EvaluationError: a baseline shares no picture with this model, or labels one differently.
    """
    if not baselines:
        return []
    own, differences = [], []
    for name, baseline in baselines.items():
        pairs = _pairs(frame, baseline.frame, name)
        for transform, (ours, theirs) in pairs.items():
            first, second = sample(ours, plan), sample(theirs, plan)
            facts = {"on the pictures of": name, "note": ""}
            for who, one, part in ((SELF, first, ours), (name, second, theirs)):
                note = {"note": "" if who == SELF else baseline.note}
                values = {measure: one.estimate(measure, plan) for measure in EVERY}
                own.append(make_row(Part(who, facts | note, part), transform, values))
            values = {measure: _difference(measure, first, second, plan) for measure in EVERY}
            differences.append(make_row(Part(f"{SELF} minus {name}", {}, ours), transform, values))
    return [
        Table(
            name="baselines",
            title="Baselines",
            text="Each baseline beside this model, on the pictures that both could read.",
            measures=EVERY,
            rows=tuple(own),
        ),
        Table(
            name="differences",
            title="Differences to the baselines",
            text="This model minus the baseline; both are measured on the same draws of sources.",
            measures=EVERY,
            rows=tuple(differences),
        ),
    ]


def _pairs(frame: Frame, other: Frame, name: str) -> dict[str, tuple[Frame, Frame]]:
    """Both detectors' predictions of the same pictures, by transform."""
    pairs = {}
    for transform in frame.transforms():
        ours, theirs = _matched(
            frame.take(frame.transform == transform), other.take(other.transform == transform)
        )
        if len(ours) == 0:
            continue
        if (wrong := ours.label != theirs.label).any():
            key = ours.key[np.flatnonzero(wrong)[0]]
            raise EvaluationError(f"baseline {name} labels picture {key} differently; labels must agree")
        # Drawn by this model's sources, so that both see the same draws.
        named = {"source": ours.source, "generator": ours.generator, "domain": ours.domain}
        pairs[transform] = (ours, Frame(**{**vars(theirs), **named}))
    if not pairs:
        raise EvaluationError(
            f"baseline {name} shares no picture and transform with this model's predictions"
        )
    return pairs


def _difference(measure: str, first: Sampled, second: Sampled, plan: Plan) -> Estimate:
    for one, who in ((first, SELF), (second, "the baseline")):
        if measure in one.undefined:
            return Estimate(undefined=f"{who}: {one.undefined[measure]}")
    value = first.values[measure] - second.values[measure]
    drawing = describe_drawing(MEASURES[measure].classes, first.sources)
    return make_estimate(value, first.draws[measure] - second.draws[measure], plan, drawing)
