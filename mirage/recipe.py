"""Recipes: what a data set is made of, as frozen models read from YAML."""

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from mirage.decode import Limits
from mirage.errors import RecipeError
from mirage.extras import need

Label = Literal["real", "ai"]
Domain = Literal["human", "animal", "object", "scene", "anime", "mixed", "artifact"]
Split = Literal["train", "calibration", "devtest"]
Method = Literal["realesrgan-x4", "realesr-video-x2", "realesr-video-x4"]


class Part(BaseModel):
    """Base of everything in a recipe: frozen, and an unknown key is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Reconstruct(Part):
    """Store a crop's reconstruction by a network beside the crop itself, as a pair of domain `artifact`."""

    method: Method
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


class SourceBase(Part):
    """What every source says about its pictures."""

    name: str = Field(pattern=r"^[a-z0-9][a-z0-9-]{0,62}$", description="part of every key, so no dots")
    label: Label
    generator: str = Field(min_length=1, description="of AI pictures the model, of real ones the kind")
    domain: Domain
    split: Split | dict[Split, float]
    licence: str = Field(min_length=1)
    cap: int | None = Field(default=None, ge=1, description="at most this many files, picked by hash")
    note: str = ""
    rules: Rules = Rules()

    @field_validator("split")
    @classmethod
    def _shares(cls, split: Any) -> Any:
        if isinstance(split, dict) and abs(sum(split.values()) - 1) > 1e-9:
            raise ValueError(f"the shares of a split must sum to 1, not {sum(split.values()):g}")
        return split

    @model_validator(mode="after")
    def _twins_are_real(self) -> Self:
        if self.rules.reconstruct and self.label != "real":
            raise ValueError("reconstruct needs a source of label real")
        return self


class FolderSource(SourceBase):
    """Pictures in a folder; a relative path starts at the recipe's folder."""

    kind: Literal["folder"]
    path: Path
    pattern: str = Field(default="**/*", description="glob below `path`")


class GitSource(SourceBase):
    """Pictures in a git repository at one revision, read from a bare clone under --mirrors."""

    kind: Literal["git"]
    repo: str = Field(pattern=r"^[^/\s]+/[^/\s]+$", description="owner/name")
    revision: str = Field(pattern=r"^[0-9a-f]{40}$", description="full commit id")
    select: str | None = Field(default=None, description="regular expression searched in each path")
    paths_file: Path | None = Field(default=None, description="TSV with columns repo, path, generator")
    paths_value: str | None = Field(default=None, description="generator of the rows wanted")

    @field_validator("select")
    @classmethod
    def _compiles(cls, select: str | None) -> str | None:
        try:
            re.compile(select or "")
        except re.error as error:
            raise ValueError(f"not a regular expression: {error}") from error
        return select

    @model_validator(mode="after")
    def _one_way_to_choose(self) -> Self:
        if (self.select is None) == (self.paths_file is None):
            raise ValueError("a git source needs exactly one of select and paths_file")
        if (self.paths_file is None) != (self.paths_value is None):
            raise ValueError("paths_file and paths_value go together")
        return self


class GeneratorSource(SourceBase):
    """Pictures made on the spot by a packaged generator."""

    kind: Literal["generator"]
    model: str = Field(description="name known to mirage.generators")
    count: int = Field(ge=1)
    seed: int = Field(default=0, ge=0)
    side_px: int = Field(default=1024, ge=64, le=1024)


Source = Annotated[FolderSource | GitSource | GeneratorSource, Field(discriminator="kind")]


class Recipe(Part):
    """A data set: sources in order of precedence, and how their pictures are stored."""

    name: str
    seed: int = Field(default=0, description="of every pick by hash")
    max_side_px: int = Field(default=1536, ge=64, description="longer pictures are shrunk before storing")
    min_side_px: int = Field(default=64, ge=1, description="smaller pictures are rejected")
    shard_count: int = Field(default=1000, ge=1, description="most pictures in a shard")
    shard_bytes: int = Field(default=256 * 2**20, ge=1, description="a shard at this size is closed")
    limits: Limits = Limits()
    sources: tuple[Source, ...] = Field(min_length=1)

    @field_validator("sources")
    @classmethod
    def _names_differ(cls, sources: tuple[SourceBase, ...]) -> tuple[SourceBase, ...]:
        twice = [name for name, count in Counter(source.name for source in sources).items() if count > 1]
        if twice:
            raise ValueError(f"source names must differ; used twice: {', '.join(twice)}")
        return sources


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
        elif isinstance(content, dict) and step not in content and step in ("folder", "git", "generator"):
            continue
        else:
            content = content.get(step) if isinstance(content, dict) else None
            yield str(step)
