"""Reports: what a method measured, in one schema that survives JSON and says how it came about."""

import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Self

from pydantic import BaseModel, ConfigDict, JsonValue, model_validator

PACKAGES = ("omniaid", "torch", "transformers", "numpy", "scipy", "scikit-learn")

Cell = str | int | float | bool | None


class Part(BaseModel):
    """Base of all parts of a report: frozen, unknown keys refused, NaN and infinity kept in JSON."""

    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="strings")


class Table(Part):
    """A table with a name for each column."""

    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]

    @model_validator(mode="after")
    def _rows_fit(self) -> Self:
        for row in self.rows:
            if len(row) != len(self.columns):
                raise ValueError(f"a row has {len(row)} cells; the table has {len(self.columns)} columns")
        return self

    def markdown(self) -> str:
        """The table in Markdown."""
        lines = [self.columns, tuple("---" for _ in self.columns), *(map(_shown, row) for row in self.rows)]
        return "\n".join(f"| {' | '.join(line)} |" for line in lines)


class Claim(Part):
    """One statement of the paper, and whether it held here.

    Attributes:
        statement: what the paper claims, in one sentence.
        holds: None when the run cannot tell.
        evidence: the numbers that decide, in one sentence.
        timed: whether it rests on how fast this machine was, so that another run may differ.
    """

    statement: str
    holds: bool | None
    evidence: str
    timed: bool = False


class Provenance(Part):
    """How a report came about."""

    config: dict[str, JsonValue]
    seed: int
    versions: dict[str, str]
    machine: str


class Report(Part):
    """What one run of one method found.

    Attributes:
        method: name in the registry.
        metrics: numbers by name; the unit is the name's suffix.
        tables: by name.
        claims: of the paper, held against this run.
        artifacts: name -> path of what was written.
        timings_s: wall-clock seconds; they and what follows from them are the only parts that may
            differ between two runs with one seed.
        speeds: numbers made from wall-clock seconds, such as ratios; the unit is the name's suffix.
        notes: deviations and warnings, one sentence each.
        provenance: configuration, seed and versions.
    """

    method: str
    metrics: dict[str, float] = {}
    tables: dict[str, Table] = {}
    claims: tuple[Claim, ...] = ()
    artifacts: dict[str, str] = {}
    timings_s: dict[str, float] = {}
    speeds: dict[str, float] = {}
    notes: tuple[str, ...] = ()
    provenance: Provenance

    def repeatable(self) -> Self:
        """The report without what differs between two runs with one seed."""
        lasting = tuple(claim for claim in self.claims if not claim.timed)
        return self.model_copy(update={"timings_s": {}, "artifacts": {}, "speeds": {}, "claims": lasting})

    def markdown(self) -> str:
        """The report as a Markdown text."""
        parts = [f"# {self.method}", *self.notes]
        for title, numbers in (("metric", self.metrics), ("on this machine", self.speeds)):
            if numbers:
                parts.append(Table(columns=(title, "value"), rows=tuple(numbers.items())).markdown())
        for name, table in self.tables.items():
            parts += [f"## {name}", table.markdown()]
        for claim in self.claims:
            verdict = {True: "holds", False: "does not hold", None: "cannot be told"}[claim.holds]
            parts.append(f"- **{verdict}**: {claim.statement} {claim.evidence}")
        return "\n\n".join(parts) + "\n"

    def write(self, folder: Path) -> None:
        """Put `report.json` and `report.md` into a folder, made when missing."""
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "report.json").write_text(self.model_dump_json(indent=1) + "\n", "utf-8")
        (folder / "report.md").write_text(self.markdown(), "utf-8")


def provenance(config: BaseModel) -> Provenance:
    """The provenance of a run with `config`; its field `seed`, if any, is the seed."""
    versions = {}
    for package in PACKAGES:
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            continue
    dumped = config.model_dump(mode="json")
    return Provenance(
        config=dumped, seed=dumped.get("seed", 0), versions=versions, machine=platform.machine() or "unknown"
    )


def _shown(value: Cell) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value).replace("|", "\\|").replace("\n", " ")
