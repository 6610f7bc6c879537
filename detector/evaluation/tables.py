"""Tables of a report: overall, by generator, family, domain, real source and subset, and their means."""

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from detector.evaluation.bootstrap import Drawing, Estimate, Plan, Sampled, make_estimate, sample
from detector.evaluation.frame import AI, REAL, Frame
from detector.evaluation.measures import MEASURES
from detector.evaluation.report import Missing, Row, Table

EVERY = tuple(MEASURES)
GENERATOR_STREAM = 2  # drawing generators is independent of drawing real (0) and AI (1) sources


class Part(NamedTuple):
    """A name, what is known of it, and its pictures."""

    name: str
    facts: dict[str, str]
    frame: Frame


class Group(NamedTuple):
    """One kind of table.

    Attributes:
        title: of the table.
        text: what a row is.
        split: the parts of the pictures of one transform.
        why_empty: said when there are no parts.
        mean: name of the row of means in the table `macro`; empty for none.
    """

    title: str
    text: str
    split: Callable[[Frame], Iterator[Part]]
    why_empty: str
    mean: str = ""


def _whole(frame: Frame) -> Iterator[Part]:
    yield Part("all pictures", {}, frame)


def _generators(frame: Frame) -> Iterator[Part]:
    yield from _ai_parts(frame, frame.generator, lambda part: {"family": _one(part.family)})


def _families(frame: Frame) -> Iterator[Part]:
    yield from _ai_parts(frame, frame.family, lambda part: {"generators": _all(part.generator)})


def _ai_parts(frame: Frame, names: np.ndarray, facts: Callable[[Frame], dict[str, str]]) -> Iterator[Part]:
    """AI pictures by name, each with all real pictures."""
    real = frame.of(REAL)
    for name in sorted({name for name in names[~real] if name}):
        own = ~real & (names == name)
        released = {"released": _one(frame.released[own])}
        yield Part(name, facts(frame.take(own)) | released, frame.take(own | real))


def _real_sources(frame: Frame) -> Iterator[Part]:
    real = frame.of(REAL)
    for name in frame.sources(REAL):
        own = real & (frame.source == name)
        facts = {"kind": _all(frame.generator[own]), "domain": _all(frame.domain[own])}
        yield Part(name, facts, frame.take(own | ~real))


def _domains(frame: Frame) -> Iterator[Part]:
    for name in sorted({name for name in frame.domain if name}):
        yield Part(name, {}, frame.take(frame.domain == name))


def _subsets(frame: Frame) -> Iterator[Part]:
    for name in sorted({name for name in frame.subset if name}):
        yield Part(name, {}, frame.take(frame.subset == name))


def _one(values: np.ndarray) -> str:
    """The value that all share, else nothing."""
    known = set(values)
    return str(known.pop()) if len(known) == 1 else ""


def _all(values: np.ndarray) -> str:
    return ", ".join(sorted({str(value) for value in values if value}))


GROUPS: dict[str, Group] = {
    "overall": Group("All pictures", "All readable pictures under one transform.", _whole, "no pictures"),
    "generators": Group(
        "By generator",
        "The generator's pictures against all real pictures.",
        _generators,
        "no AI picture names its generator",
        mean="generators",
    ),
    "families": Group(
        "By family of generators",
        "The family's pictures against all real pictures.",
        _families,
        "no AI picture names its generator's family",
        mean="families",
    ),
    "domains": Group(
        "By domain",
        "Both classes of one domain; `mixed` where the domain is not known.",
        _domains,
        "no picture names its domain",
        mean="domains",
    ),
    "real_sources": Group(
        "By real source",
        "The source's real pictures against all AI pictures; false alarms and cleared are its own.",
        _real_sources,
        "there are no real pictures",
        mean="real sources",
    ),
    "subsets": Group(
        "By subset of the benchmark",
        "The real and AI pictures that the benchmark puts together, as its published tables do.",
        _subsets,
        "the pictures are not divided into subsets",
        mean="subsets",
    ),
}


def make_tables(
    frame: Frame, plan: Plan, trained_on: Sequence[str] | None
) -> tuple[list[Table], list[Missing]]:
    """Every table of one detector, and the tables that its predictions cannot fill.

    Args:
        frame: readable predictions under all transforms.
        plan: of the intervals.
        trained_on: generators that the detector learnt from; None when that is not known.
    """
    tables, missing, macro = [], [], []
    for name, group in GROUPS.items():
        rows, means = _rows(frame, group, plan)
        if not rows:
            missing.append(Missing(table=name, why=group.why_empty))
            continue
        if name == "generators" and trained_on is not None:
            rows = [_with_training(row, set(trained_on)) for row in rows]
        tables.append(Table(name=name, title=group.title, text=group.text, measures=EVERY, rows=tuple(rows)))
        macro += means
    held_out, held_out_means, why = _held_out(frame, plan, trained_on)
    if held_out is None:
        missing.append(Missing(table="held_out_generators", why=why))
    else:
        tables.append(held_out)
    text = "Plain means over the rows of another table; rows without a value are left out and counted."
    rows_of_means = tuple(macro + held_out_means)
    if rows_of_means:
        tables.append(Table(name="macro", title="Means", text=text, measures=EVERY, rows=rows_of_means))
    return tables, missing


def _with_training(row: Row, seen: set[str]) -> Row:
    return row.model_copy(update={"facts": row.facts | {"trained on": "yes" if row.name in seen else "no"}})


def _held_out(
    frame: Frame, plan: Plan, trained_on: Sequence[str] | None
) -> tuple[Table | None, list[Row], str]:
    """The table of generators that were not trained on, its means, and why there is none."""
    if trained_on is None:
        return None, [], "which generators the model learnt from is not known"
    named_and_new = ~np.isin(frame.generator.astype(str), list(trained_on)) & (frame.generator != "")
    group = GROUPS["generators"]._replace(mean="held-out generators")
    rows, means = _rows(frame.take(frame.of(REAL) | named_and_new), group, plan)
    if not rows:
        return None, [], "the model learnt from every generator here"
    text = (
        "Generators whose names are not among those of the training data, against all real pictures. "
        "A relative of a known generator under another name counts as held out."
    )
    title = "Held-out generators"
    return (
        Table(name="held_out_generators", title=title, text=text, measures=EVERY, rows=tuple(rows)),
        means,
        "",
    )


def _rows(frame: Frame, group: Group, plan: Plan) -> tuple[list[Row], list[Row]]:
    """Rows under every transform, and their means."""
    rows, means = [], []
    for transform in frame.transforms():
        parts = list(group.split(frame.take(frame.transform == transform)))
        sampled = [sample(part.frame, plan) for part in parts]
        rows += [
            make_row(part, transform, {name: one.estimate(name, plan) for name in EVERY})
            for part, one in zip(parts, sampled, strict=True)
        ]
        if group.mean and parts:
            means.append(_mean_row(group.mean, transform, parts, sampled, plan))
    return rows, means


def make_row(part: Part, transform: str, values: dict[str, Estimate]) -> Row:
    """The row of a part."""
    frame = part.frame
    return Row(
        transform=transform,
        name=part.name,
        facts=part.facts,
        pictures={"real": int(frame.of(REAL).sum()), "ai": int(frame.of(AI).sum())},
        sources={"real": len(frame.sources(REAL)), "ai": len(frame.sources(AI))},
        values=values,
    )


def _mean_row(name: str, transform: str, parts: list[Part], sampled: list[Sampled], plan: Plan) -> Row:
    frames = [part.frame for part in parts]
    keys = [(frame.label, frame.source) for frame in frames]
    counts = {
        label: len({source for labels, sources in keys for source in sources[labels == label]})
        for label in (REAL, AI)
    }
    pictures = {
        label: len({key for frame in frames for key in frame.key[frame.of(label)]}) for label in (REAL, AI)
    }
    return Row(
        transform=transform,
        name=f"mean over {name}",
        facts={"rows": str(len(parts))},
        pictures={"real": pictures[REAL], "ai": pictures[AI]},
        sources={"real": counts[REAL], "ai": counts[AI]},
        values={measure: _mean(measure, name, sampled, plan) for measure in EVERY},
    )


def _mean(measure: str, name: str, sampled: list[Sampled], plan: Plan) -> Estimate:
    """The mean over the parts; its interval draws parts, and within each its sources."""
    known = [one for one in sampled if measure in one.values]
    if not known:
        return Estimate(undefined=f"none of the {len(sampled)} {name} has a value")
    value = float(np.mean([one.values[measure] for one in known]))
    lacking = len(sampled) - len(known)
    caveat = f"{lacking} of {len(sampled)} {name} have no value and are left out" if lacking else ""
    if len(known) == 1:
        return make_estimate(
            value, np.array([]), plan, Drawing("", caveat, "a mean over one cannot be resampled")
        )
    draws = np.stack([one.draws[measure] for one in known])
    rng = np.random.default_rng([plan.seed, GENERATOR_STREAM])
    chosen = rng.integers(len(known), size=(len(known), plan.rounds))
    means = draws[chosen, np.arange(plan.rounds)].mean(axis=0)
    return make_estimate(value, means, plan, Drawing(f"{len(known)} {name} and their sources", caveat))
