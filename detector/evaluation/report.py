"""The evaluation's result: tables of values with intervals, and everything needed to read them."""

from pydantic import BaseModel, ConfigDict, Field

from detector.evaluation.bootstrap import Estimate, Plan
from detector.evaluation.predictions import Origin


class Row(BaseModel):
    """One line of a table: some pictures and their measures."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    transform: str
    name: str
    facts: dict[str, str] = Field(default_factory=dict, description="column -> text, the same in every row")
    pictures: dict[str, int] = Field(description="class -> readable pictures")
    sources: dict[str, int] = Field(description="class -> sources")
    values: dict[str, Estimate]


class Table(BaseModel):
    """Rows of one kind."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str = Field(description="also of the CSV file")
    title: str
    text: str = Field(description="what a row is, one or two sentences")
    measures: tuple[str, ...]
    rows: tuple[Row, ...]


class Failure(BaseModel):
    """A picture that could not be scored."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    key: str
    transform: str
    error: str


class Missing(BaseModel):
    """A table that these predictions cannot fill."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    table: str
    why: str


class Counts(BaseModel):
    """What went into the report; every picture counts once per transform."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    rows: int
    pictures: int = Field(description="different keys")
    real: int
    ai: int
    errors: int = Field(description="rows that hold an error instead of a score")


class Report(BaseModel):
    """One evaluation. The same predictions and settings give the same report."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    schema_version: str = "1"
    name: str
    origin: Origin | None = Field(description="None when the predictions do not say where they come from")
    plan: Plan
    reference: str = Field(description="the transform that others are compared with")
    transforms: tuple[str, ...]
    counts: Counts
    failures: tuple[Failure, ...] = Field(description="the first ones; `counts.errors` has them all")
    tables: tuple[Table, ...]
    missing: tuple[Missing, ...]
    notes: tuple[str, ...]
    versions: dict[str, str]

    def table(self, name: str) -> Table | None:
        """The table of that name, if there is one."""
        return next((table for table in self.tables if table.name == name), None)
