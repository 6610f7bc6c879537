"""Benchmarks of a family of methods: each method's own configuration, several seeds, one page.

A method takes part by being registered in the family; its `bench` (or `real`, or `smoke`) configuration says
how. A table named `paired` in its report, with columns ("sequence", method, baseline, ..) and a row per test
sequence, is compared column by column with a paired bootstrap. Other numbers are averaged over seeds.
"""

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
from pydantic import BaseModel

from moe_core.catalogue import FAMILIES, Method
from moe_core.errors import ConfigError, MoeError
from moe_core.registry import Registry
from moe_core.report import Part, Report, Table

Scale = Literal["bench", "smoke", "real"]

PAIRED = "paired"
RESAMPLES = 10_000
PART = 500
LEVEL = 0.95


class Contrast(Part):
    """A method's loss minus a baseline's on the same sequences.

    Attributes:
        own, baseline: column names.
        difference: mean; negative where the method loses less.
        low, high: bounds of the bootstrap interval of that mean.
        sequences: pairs, over all seeds.
    """

    own: str
    baseline: str
    difference: float
    low: float
    high: float
    sequences: int


class Entry(Part):
    """What one method did in a benchmark.

    Attributes:
        method: its name.
        arxiv: of its paper.
        reports: one per seed; fewer when it failed.
        contrasts: over the rows of all seeds.
        failure: why it did not run to the end, or empty.
        seconds_s: wall clock, all seeds.
    """

    method: str
    arxiv: str
    reports: tuple[Report, ...]
    contrasts: tuple[Contrast, ...] = ()
    failure: str = ""
    seconds_s: float = 0.0


class Benchmark(Part):
    """What a family of methods did.

    Attributes:
        group: the family.
        scale: which configurations were run.
        seeds: laid over each configuration's own.
        entries: one per method, also of those that failed.
    """

    group: str
    scale: Scale
    seeds: tuple[int, ...]
    entries: tuple[Entry, ...]

    def write(self, folder: Path) -> tuple[Path, Path]:
        """The JSON and the Markdown file put into a folder, made when missing."""
        folder.mkdir(parents=True, exist_ok=True)
        name = self.group if self.scale == "bench" else f"{self.group}-{self.scale}"
        places = folder / f"{name}.json", folder / f"{name}.md"
        places[0].write_text(self.model_dump_json(indent=1) + "\n", "utf-8")
        places[1].write_text(self.markdown(), "utf-8")
        return places

    def markdown(self) -> str:
        """The benchmark as a Markdown page."""
        total = sum(entry.seconds_s for entry in self.entries)
        parts = [
            f"# Benchmark {self.group}",
            f"Seeds {', '.join(map(str, self.seeds))}; {total:.0f} s in all; {_versions(self.entries)}.",
            "## Claims",
            _claims(self.entries).markdown(),
            "## Against baselines",
            f"Mean difference per sequence, {LEVEL:.0%} interval of a paired bootstrap; "
            "below zero the method is better.",
            _contrasts(self.entries).markdown(),
        ]
        for entry in self.entries:
            parts += [f"## {entry.method}", *_notes(entry), _numbers(entry.reports).markdown()]
        return "\n\n".join(parts) + "\n"


def bench(
    known: Registry[Method],
    group: str,
    seeds: Sequence[int],
    *,
    scale: Scale = "bench",
    toys: Path | None = None,
    only: Sequence[str] = (),
    told: Callable[[str], None] = lambda line: None,
) -> Benchmark:
    """The benchmark of a family.

    Args:
        known: the catalogue.
        group: one of `FAMILIES`.
        seeds: one run of each method per seed.
        scale: which of a method's configurations is run.
        toys: folder where trained toys are kept, for configurations with a field of that name.
        only: names of methods; all of the family without it.
        told: is given a line when a method starts.

    Raises:
        ConfigError: the family has no methods, or not that one, or there are no seeds.
    """
    names = _members(known, group, only)
    if not seeds:
        raise ConfigError("a benchmark needs at least one seed")
    entries = []
    for name in names:
        told(f"{name}: {len(seeds)} seeds")
        entries.append(_entry(known[name], seeds, scale, toys))
    return Benchmark(group=group, scale=scale, seeds=tuple(seeds), entries=tuple(entries))


def _members(known: Registry[Method], group: str, only: Sequence[str]) -> list[str]:
    if group not in FAMILIES:
        raise ConfigError(f"group {group!r} is unknown; there are: {', '.join(FAMILIES)}")
    family = [name for name in known if known[name].family == group]
    strangers = [name for name in only if name not in family]
    if strangers or not family:
        wanted = f"{', '.join(strangers)} in group {group}" if strangers else f"group {group}"
        raise ConfigError(f"there is no method {wanted}; there are: {', '.join(family) or 'none'}")
    return [name for name in family if not only or name in only]


def _entry(method: Method, seeds: Sequence[int], scale: Scale, toys: Path | None) -> Entry:
    """A failure that a user can cause is written down, and the other methods still run."""
    start, reports, failure = time.perf_counter(), [], ""
    base = configuration(method, scale)
    if base is None:
        failure = "it has no configuration for a pretrained model"
    try:
        reports = [method.run(settled(base, seed, toys)) for seed in seeds] if base is not None else []
    except MoeError as error:
        failure = str(error)
    return Entry(
        method=method.name,
        arxiv=method.paper.arxiv,
        reports=tuple(reports),
        contrasts=contrasts(reports),
        failure=failure,
        seconds_s=time.perf_counter() - start,
    )


def configuration(method: Method, scale: Scale) -> BaseModel | None:
    """The configuration that a method declares for a scale."""
    if scale == "bench":
        return method.bench if method.bench is not None else method.config()
    return getattr(method, scale)


def settled(base: BaseModel, seed: int, toys: Path | None) -> BaseModel:
    """The configuration with the benchmark's seed, and its folder of toys where it has a field for one."""
    laid: dict[str, Any] = {"seed": seed}
    if toys is not None and "toys" in type(base).model_fields:
        laid["toys"] = toys
    return type(base).model_validate(base.model_dump() | laid)


def contrasts(reports: Sequence[Report]) -> tuple[Contrast, ...]:
    """The first column of the tables `paired` against each further one, rows of all seeds together."""
    tables = [report.tables[PAIRED] for report in reports if PAIRED in report.tables]
    if not tables:
        return ()
    _, own, *baselines = tables[0].columns
    values = np.array([row[1:] for table in tables for row in table.rows], dtype=np.float64)
    return tuple(
        Contrast(own=own, baseline=name, **_bootstrap(values[:, 0] - values[:, column]))
        for column, name in enumerate(baselines, start=1)
    )


def _bootstrap(differences: np.ndarray) -> dict[str, Any]:
    """Mean of paired differences (N,) and its percentile interval."""
    generator = np.random.default_rng(0)
    size = len(differences)
    # By parts, so that memory stays small however many sequences there are.
    draws = (generator.integers(size, size=(PART, size)) for _ in range(RESAMPLES // PART))
    means = np.concatenate([differences[drawn].mean(axis=1) for drawn in draws])
    low, high = np.quantile(means, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return {
        "difference": float(differences.mean()),
        "low": float(low),
        "high": float(high),
        "sequences": size,
    }


def _claims(entries: Sequence[Entry]) -> Table:
    rows = []
    for entry in entries:
        if entry.failure:
            rows.append((entry.method, entry.arxiv, f"Did not run: {entry.failure}.", "-", "-"))
        for index, claim in enumerate(entry.reports[0].claims if entry.reports else ()):
            verdicts = [report.claims[index].holds for report in entry.reports]
            held = f"{verdicts.count(True)} of {len(verdicts)}"
            untold = f", {verdicts.count(None)} cannot tell" if None in verdicts else ""
            rows.append((entry.method, entry.arxiv, claim.statement, held + untold, claim.evidence))
    columns = ("method", "arXiv", "claim", "seeds in which it holds", "evidence of the first seed")
    return Table(columns=columns, rows=tuple(rows))


def _contrasts(entries: Sequence[Entry]) -> Table:
    rows = tuple(
        (
            entry.method,
            found.baseline,
            found.difference,
            f"{found.low:.3g} .. {found.high:.3g}",
            found.sequences,
        )
        for entry in entries
        for found in entry.contrasts
    )
    return Table(columns=("method", "against", "difference", "interval", "sequences"), rows=rows)


def _numbers(reports: Sequence[Report]) -> Table:
    """Each number's mean and standard deviation over seeds."""
    rows = []
    for place in ("metrics", "speeds", "timings_s"):
        for name in getattr(reports[0], place) if reports else ():
            values = np.array([getattr(report, place)[name] for report in reports], dtype=np.float64)
            spread = float(values.std(ddof=1)) if len(values) > 1 else None
            shown = name if place != "timings_s" or name.endswith("_s") else f"{name}_s"
            rows.append((shown, float(values.mean()), "-" if spread is None else f"{spread:.2g}"))
    return Table(columns=("number", "mean", "sd"), rows=tuple(rows))


def _notes(entry: Entry) -> tuple[str, ...]:
    if entry.failure:
        return (f"Did not run: {entry.failure}.",)
    return entry.reports[0].notes if entry.reports else ()


def _versions(entries: Sequence[Entry]) -> str:
    reports = [report for entry in entries for report in entry.reports]
    if not reports:
        return "nothing ran"
    origin = reports[0].provenance
    return ", ".join([origin.machine, *(f"{name} {number}" for name, number in origin.versions.items())])
