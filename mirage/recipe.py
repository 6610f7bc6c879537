"""Recipes: what a data set is made of, as frozen models read from YAML."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

from pydantic import BaseModel, Field, ValidationError, field_validator, model_validator

from mirage.align import Alignment
from mirage.declarations import Generator, Part, SourceBase, Split, Splits
from mirage.decode import Limits
from mirage.errors import RecipeError
from mirage.extras import need
from mirage.facts import group_of
from mirage.sources import KINDS, Source


class AlignedSplits(Alignment):
    """Alignment of both classes to one distribution of sizes and codecs."""

    splits: tuple[Split, ...] = Field(default=("train",), description="the others keep the files as found")


class AuditRules(Part):
    """When a finished build is refused because headers alone tell real from AI."""

    max_auc: float = Field(default=0.60, ge=0.5, le=1)
    splits: tuple[Split, ...] = ("train",)


class Recipe(Part):
    """A data set: sources in order of precedence, and how their pictures are stored."""

    name: str
    seed: int = Field(default=0, description="of every pick by hash")
    max_side_px: int = Field(default=1536, ge=64, description="longer pictures are shrunk before storing")
    min_side_px: int = Field(default=64, ge=1, description="smaller pictures are rejected")
    shard_count: int = Field(default=1000, ge=1, description="most pictures in a shard")
    shard_bytes: int = Field(default=256 * 2**20, ge=1, description="a shard at this size is closed")
    limits: Limits = Limits()
    timeout_s: float = Field(default=60, gt=0, description="for decoding and preparing one file")
    near_copies: bool = Field(default=False, description="whether near copies are stored, too")
    exclude: tuple[str, ...] = Field(default=(), description="sha256 of files a person ruled out")
    generators: dict[str, Generator] = Field(default={}, description="what is known of each generator")
    splits: Splits = Splits()
    align: AlignedSplits | None = None
    audit: AuditRules | None = AuditRules()
    sources: tuple[Source, ...] = Field(min_length=1)

    @field_validator("sources")
    @classmethod
    def _names_differ(cls, sources: tuple[SourceBase, ...]) -> tuple[SourceBase, ...]:
        twice = [name for name, count in Counter(source.name for source in sources).items() if count > 1]
        if twice:
            raise ValueError(f"source names must differ; used twice: {', '.join(twice)}")
        return sources

    @model_validator(mode="after")
    def _groups_do_not_straddle(self) -> Self:
        splits: dict[str, tuple[str, str]] = {}
        for source in self.sources:
            split = source.split or "the split of its group's hash"
            name, other = splits.setdefault(group_of(source), (source.name, split))
            if other != split:
                places = f"in {other} as {name} and in {split} as {source.name}"
                raise ValueError(f"group {group_of(source)} stands {places}")
        return self


def read_recipe(path: Path) -> Recipe:
    """The recipe in a YAML file.

    Raises:
        RecipeError: the file is missing, not YAML, or not a recipe; names place and value.
    """
    yaml = need("yaml")
    try:
        content = yaml.safe_load(path.read_text("utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise RecipeError(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}") from error
    except yaml.YAMLError as error:
        raise RecipeError(f"{path} is not YAML: {' '.join(str(error).split())}") from error
    if not isinstance(content, dict):
        raise RecipeError(
            f"{path} holds {type(content).__name__}; a recipe is a mapping with name and sources"
        )
    try:
        return Recipe.model_validate(content)
    except ValidationError as error:
        raise RecipeError(f"{path}: {_first_problem(error, content)}") from error


def _first_problem(error: ValidationError, content: dict[str, Any]) -> str:
    """The first problem as one sentence: where, what is wrong, and the value that stands there."""
    problem = error.errors()[0]
    place = ".".join(_steps(problem["loc"], content)) or "recipe"
    message = problem["msg"].removeprefix("Value error, ")
    given = problem["input"]
    shown = problem["type"] != "missing" and not isinstance(given, dict | list | tuple | BaseModel)
    return f"{place}: {message}" + (f" (given: {given!r})" if shown else "")


def _steps(location: tuple[int | str, ...], content: Any) -> Iterator[str]:
    """The steps to a problem, a source with its name; the tag of its kind is no key of the file."""
    for step in location:
        if isinstance(content, list) and isinstance(step, int):
            content = content[step]
            name = content.get("name") if isinstance(content, dict) else None
            yield f"{step} ({name})" if name else str(step)
        elif isinstance(content, dict) and step not in content and step in KINDS:
            continue
        else:
            content = content.get(step) if isinstance(content, dict) else None
            yield str(step)
