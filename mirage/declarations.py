"""Declarations: what a recipe may say about a source, as frozen models."""

import re
from datetime import date
from pathlib import Path
from typing import Literal, Self, get_args

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

Label = Literal["real", "ai"]
Domain = Literal["human", "animal", "object", "scene", "anime", "mixed", "artifact"]
Split = Literal["train", "calibration", "devtest"]
Fact = Literal["label", "generator", "domain", "group", "licence", "prompt", "url"]


class Part(BaseModel):
    """Base of everything in a recipe: frozen, and an unknown key is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Reconstruct(Part):
    """Store a crop's reconstruction by a network beside the crop itself, as a pair of domain `artifact`."""

    method: str = Field(description="name known to mirage.reconstruct")
    model: str | None = Field(default=None, description="hub name, or path from the recipe's folder")
    crop_px: int = Field(default=224, ge=64, le=1024, multiple_of=8, description="centre crop of both twins")


class Rules(Part):
    """What happens to each picture of a source between decoding and storing, in this order."""

    crop: tuple[float, float, float, float] | None = Field(
        default=None, description="left, top, right, bottom as shares of the sides, 0..1"
    )
    crop_bottom_px: int = Field(default=0, ge=0)
    grid: tuple[int, int] | None = Field(default=None, description="columns and rows of an exact grid to cut")
    keep_pieces: int | None = Field(default=None, ge=1, description="pieces kept per grid, chosen by hash")
    reconstruct: Reconstruct | None = None
    min_side_px: int | None = Field(default=None, ge=1, description="overrides the recipe's")
    reject_one_colour: bool = True
    min_contrast: float = Field(
        default=0.0,
        ge=0,
        le=128,
        description="standard deviation of 16 x 16 coarse greys; for failed runs of noise",
    )

    @model_validator(mode="after")
    def _fit_together(self) -> Self:
        if self.crop:
            left, top, right, bottom = self.crop
            if not (0 <= left < right <= 1 and 0 <= top < bottom <= 1):
                raise ValueError("crop must be left < right and top < bottom, all within 0..1")
        if self.grid and min(self.grid) < 1:
            raise ValueError("grid must be two numbers of at least 1")
        if self.grid and self.reconstruct:
            raise ValueError("grid and reconstruct cannot be used on the same source")
        return self


class FactRules(Part):
    """Where the facts of single pictures come from; what they leave open is the source's own.

    A fact is looked up in the columns of the source, then in `table`, then in the path.
    """

    columns: dict[Fact, str] = Field(
        default={}, description="fact -> column of the table or key of the sidecar"
    )
    table: Path | None = Field(
        default=None, description="CSV, TSV or JSONL with a column `path`, joined to the source's files"
    )
    path: str | None = Field(default=None, description="regular expression whose named groups are facts")
    values: dict[Fact, dict[str, str]] = Field(default={}, description="fact -> found value -> meant value")

    @field_validator("path")
    @classmethod
    def _groups_are_facts(cls, path: str | None) -> str | None:
        groups = compiled(path or "").groupindex
        if path is not None and not groups:
            raise ValueError("the regular expression has no named group such as (?P<label>...)")
        if unknown := sorted(set(groups) - set(get_args(Fact))):
            raise ValueError(f"{unknown[0]!r} is no fact; choose from {', '.join(get_args(Fact))}")
        return path

    def give(self, fact: Fact) -> bool:
        """Whether these rules can tell the fact of a single picture."""
        return fact in self.columns or fact in compiled(self.path or "").groupindex


def compiled(pattern: str) -> re.Pattern[str]:
    """The regular expression.

    Raises:
        ValueError: it is none.
    """
    try:
        return re.compile(pattern)
    except re.error as error:
        raise ValueError(f"not a regular expression: {error}") from error


class SourceBase(Part):
    """What every source says about its pictures."""

    name: str = Field(pattern=r"^[a-z0-9][a-z0-9-]{0,62}$", description="part of every key, so no dots")
    label: Label | None = Field(default=None, description="of every picture, unless `facts` tells each one's")
    generator: str | None = Field(
        default=None, min_length=1, description="of AI pictures the model, of real ones the kind"
    )
    domain: Domain = "mixed"
    split: Split | None = Field(default=None, description="unless named, `splits` decides by group")
    group: str | None = Field(
        default=None,
        min_length=1,
        description="sources that show the same things share a group, and so a split",
    )
    licence: str = Field(min_length=1)
    cap: int | None = Field(default=None, ge=1, description="at most this many files, picked by hash")
    exclude: str | None = Field(default=None, description="regular expression of paths to leave out")
    where: dict[str, tuple[str, ...]] = Field(
        default={}, description="column -> values; files with others are left out"
    )
    facts: FactRules = FactRules()
    note: str = ""
    rules: Rules = Rules()

    @field_validator("exclude")
    @classmethod
    def _compiles(cls, exclude: str | None) -> str | None:
        compiled(exclude or "")
        return exclude

    @model_validator(mode="after")
    def _facts_are_told(self) -> Self:
        for fact in ("label", "generator"):
            if getattr(self, fact) is None and not self.facts.give(fact):
                raise ValueError(f"{fact} is neither given nor told by facts")
        return self

    @model_validator(mode="after")
    def _twins_are_real(self) -> Self:
        if self.rules.reconstruct and self.label != "real":
            raise ValueError("reconstruct needs a source of label real")
        return self


class Generator(Part):
    """What is known of a generator."""

    family: str = ""
    released: date | None = Field(
        default=None, description="first public release; a month means its first day"
    )

    @field_validator("released", mode="before")
    @classmethod
    def _month_is_a_day(cls, released: object) -> object:
        return (
            f"{released}-01"
            if isinstance(released, str) and re.fullmatch(r"\d{4}-\d\d", released)
            else released
        )


class Splits(Part):
    """Which split a picture goes to when its source does not say: decided by group, never by picture."""

    shares: dict[Split, float] = {"train": 0.8, "calibration": 0.1, "devtest": 0.1}
    hold_out: tuple[str, ...] = Field(default=(), description="generators that go to devtest whole")
    released_after: date | None = Field(
        default=None, description="AI pictures of generators released later go to devtest"
    )

    @field_validator("shares")
    @classmethod
    def _sum_to_one(cls, shares: dict[Split, float]) -> dict[Split, float]:
        if abs(sum(shares.values()) - 1) > 1e-9 or min(shares.values()) < 0:
            raise ValueError(f"the shares must be positive and sum to 1, not {sum(shares.values()):g}")
        return shares
