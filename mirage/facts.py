"""Facts: what is known of one picture before it is decoded, from its source, a table or its path."""

import csv
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from pathlib import Path
from typing import get_args

from mirage.declarations import Domain, Fact, Label, SourceBase, Split, Splits, compiled
from mirage.errors import MirageError, RecipeError
from mirage.sources import Candidate

SEPARATORS = {".csv": ",", ".tsv": "\t", ".tab": "\t"}


class UnusableFacts(MirageError):
    """What a source says of a picture is not enough to store it; becomes a row with a reason."""


@dataclass(frozen=True)
class Facts:
    """What is known of one picture.

    Attributes:
        label: real or ai.
        generator: of an AI picture the model, of a real one the kind.
        domain: of its content; mixed when unknown.
        group: pictures of one group never stand in two splits, held-out generators apart.
        licence: the terms it stands under.
        prompt: it was made from, empty when unknown.
        url: it was downloaded from, empty when it was not.
    """

    label: str
    generator: str
    domain: str
    group: str
    licence: str
    prompt: str = ""
    url: str = ""


def facts_of(source: SourceBase, candidate: Candidate, recipe_dir: Path) -> Facts:
    """The picture's facts: what its columns, its table row or its path tell, else the source's own.

    Raises:
        UnusableFacts: a fact is missing or none of the allowed values.
    """
    found = _found(source, candidate, recipe_dir)
    told = {fact: _meant(source, fact, value) for fact, value in found.items() if value}
    group = f"{source.name}/{told['group']}" if "group" in told else group_of(source)
    facts = Facts(
        label=told.get("label") or source.label or "",
        generator=told.get("generator") or source.generator or "",
        domain=told.get("domain") or source.domain,
        group=group,
        licence=told.get("licence") or source.licence,
        prompt=told.get("prompt", ""),
        url=told.get("url") or candidate.columns.get("url", ""),
    )
    _check(facts)
    return facts


def group_of(source: SourceBase) -> str:
    """The source's group: the one it names, else its repository, else itself."""
    return source.group or getattr(source, "repo", None) or source.name


def _found(source: SourceBase, candidate: Candidate, recipe_dir: Path) -> dict[Fact, str]:
    rules = source.facts
    found: dict[Fact, str] = {}
    if rules.path and (match := compiled(rules.path).search(candidate.path)):
        found |= {fact: match.group(fact) or "" for fact in match.re.groupindex}  # type: ignore[misc]
    if rules.columns:
        row = dict(candidate.columns)
        if rules.table is not None:
            row = read_table(recipe_dir / rules.table).get(candidate.path, {}) | row
        found |= {fact: row[column] for fact, column in rules.columns.items() if row.get(column)}
    return found


def _meant(source: SourceBase, fact: Fact, value: str) -> str:
    return source.facts.values.get(fact, {}).get(value, value)


def _check(facts: Facts) -> None:
    for fact, allowed in (("label", get_args(Label)), ("domain", get_args(Domain))):
        value = getattr(facts, fact)
        if value not in allowed:
            raise UnusableFacts(f"its {fact} is {value!r}; it must be one of {', '.join(allowed)}")
    if not facts.generator:
        raise UnusableFacts("its generator is not told")


@lru_cache(maxsize=8)
def read_table(path: Path) -> Mapping[str, dict[str, str]]:
    """The rows of a CSV, TSV or JSONL file by their column `path`.

    Raises:
        RecipeError: the file cannot be read or has no such column.
    """
    try:
        with path.open(encoding="utf-8", newline="") as stream:
            if path.suffix.lower() in SEPARATORS:
                rows = list(csv.DictReader(stream, delimiter=SEPARATORS[path.suffix.lower()]))
            else:
                rows = [json.loads(line) for line in stream if line.strip()]
        return {row["path"]: {name: str(value) for name, value in row.items()} for row in rows}
    except OSError as error:
        raise RecipeError(f"the table {path} cannot be read: {error.strerror}") from error
    except (KeyError, ValueError, TypeError) as error:
        raise RecipeError(f"the table {path} needs a column `path` in every row ({error})") from error


def is_wanted(source: SourceBase, candidate: Candidate) -> bool:
    """Whether the source's own filters let the file in."""
    if source.exclude and compiled(source.exclude).search(candidate.path):
        return False
    return all(candidate.columns.get(column) in values for column, values in source.where.items())


def split_of(source: SourceBase, facts: Facts, released: str, splits: Splits, seed: int) -> Split:
    """The picture's split: its source's, else devtest for held-out generators, else decided by its group.

    A group's place in 0..1 is a hash of the seed and its name, so that more data moves nothing.
    """
    if source.split:
        return source.split
    if facts.label == "ai" and (
        facts.generator in splits.hold_out
        or (splits.released_after and released and released > splits.released_after.isoformat())
    ):
        return "devtest"
    digest = hashlib.sha256(f"{seed}\0{facts.group}".encode("utf-8", "backslashreplace")).digest()
    place = int.from_bytes(digest[:6], "big") / 2**48
    ordered = sorted(splits.shares.items())
    reached = accumulate(share for _, share in ordered)
    return next(
        (split for (split, _), end in zip(ordered, reached, strict=True) if place < end), ordered[-1][0]
    )
