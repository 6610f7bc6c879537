"""Pictures in a git repository at one revision."""

import csv
import os
import re
import subprocess
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import IO, Literal, Self

from pydantic import Field, field_validator, model_validator

from mirage.declarations import SourceBase, compiled
from mirage.errors import RecipeError
from mirage.sources.candidate import (
    EXTENSIONS,
    Candidate,
    MissingSource,
    Surroundings,
    pick,
    printable,
    too_large,
)

GIT_ENVIRONMENT = {"GIT_NO_LAZY_FETCH": "1", "GIT_OPTIONAL_LOCKS": "0", "LC_ALL": "C"}


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
    def _select_compiles(cls, select: str | None) -> str | None:
        compiled(select or "")
        return select

    @model_validator(mode="after")
    def _one_way_to_choose(self) -> Self:
        if (self.select is None) == (self.paths_file is None):
            raise ValueError("a git source needs exactly one of select and paths_file")
        if (self.paths_file is None) != (self.paths_value is None):
            raise ValueError("paths_file and paths_value go together")
        return self


def open_git(source: GitSource, around: Surroundings) -> Generator[Candidate]:
    """Files of one revision, read through one `git cat-file --batch` process."""
    clone = find_clone(source, around.mirrors)
    chosen = _chooser(source, around.recipe_dir)
    blobs = [(path, blob) for path, blob in _list_tree(clone, source) if chosen(path)]
    blobs.sort(key=lambda entry: pick(around.seed, entry[1], entry[0]))
    with subprocess.Popen(
        ["git", f"--git-dir={clone}", "cat-file", "--batch"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=os.environ | GIT_ENVIRONMENT,
    ) as process:
        assert process.stdin and process.stdout  # both are pipes
        try:
            for path, blob in blobs:
                name = printable(path)
                finished = name in around.finished
                yield Candidate(name) if finished else _read_blob(process, name, blob, around.max_bytes)
        finally:
            process.stdin.close()
            process.kill()


def find_clone(source: GitSource, mirrors: Path | None) -> Path:
    """The git directory of the source's clone under the mirrors folder.

    Raises:
        MissingSource: there is no mirrors folder or no clone in it.
    """
    if mirrors is None:
        raise MissingSource(
            f"source {source.name}: give --mirrors, the folder that holds a clone of {source.repo}"
        )
    owner, name = source.repo.split("/")
    joined = mirrors / f"{owner}+{name}"
    places = (
        joined / "repo" / ".git",
        joined / "repo",
        mirrors / owner / f"{name}.git",
        Path(f"{joined}.git"),
    )
    for place in places:
        if (place / "HEAD").is_file() and (place / "objects").is_dir():
            return place
    raise MissingSource(
        f"source {source.name}: no clone of {source.repo} under {mirrors} (tried {places[1]}, ...)"
    )


def _list_tree(clone: Path, source: GitSource) -> Iterator[tuple[str, str]]:
    """Path and blob id of every regular file of the revision."""
    listing = subprocess.run(
        ["git", f"--git-dir={clone}", "ls-tree", "-r", "-z", source.revision],
        capture_output=True,
        env=os.environ | GIT_ENVIRONMENT,
    )
    if listing.returncode:
        reason = listing.stderr.decode("utf-8", "replace").strip().splitlines()[-1:] or ["git ls-tree failed"]
        raise MissingSource(
            f"source {source.name}: the clone {clone} does not hold revision {source.revision} ({reason[0]})"
        )
    for entry in listing.stdout.split(b"\0")[:-1]:
        head, path = entry.split(b"\t", 1)
        mode, kind, blob = head.split()
        if kind == b"blob" and mode != b"120000":
            yield os.fsdecode(path), blob.decode("ascii")


def _chooser(source: GitSource, recipe_dir: Path) -> Callable[[str], bool]:
    if source.paths_file is None:
        pattern = re.compile(source.select or "")
        return lambda path: bool(pattern.search(path)) and Path(path).suffix.lower() in EXTENSIONS
    wanted = _read_paths(source, recipe_dir / source.paths_file)
    return lambda path: path in wanted


def _read_paths(source: GitSource, table: Path) -> frozenset[str]:
    try:
        with table.open(encoding="utf-8", newline="") as stream:
            rows = list(csv.DictReader(stream, delimiter="\t", quoting=csv.QUOTE_NONE))
    except OSError as error:
        raise RecipeError(f"source {source.name}: {table} cannot be read: {error.strerror}") from error
    if not rows or not {"repo", "path", "generator"} <= set(rows[0]):
        raise RecipeError(f"source {source.name}: {table} must have the columns repo, path and generator")
    wanted = frozenset(
        row["path"] for row in rows if row["repo"] == source.repo and row["generator"] == source.paths_value
    )
    if not wanted:
        raise RecipeError(
            f"source {source.name}: {table} has no row of {source.repo} with {source.paths_value!r}"
        )
    return wanted


def _read_blob(process: "subprocess.Popen[bytes]", name: str, blob: str, max_bytes: int) -> Candidate:
    stdin, stdout = process.stdin, process.stdout
    assert stdin and stdout  # both are pipes
    stdin.write(f"{blob}\n".encode("ascii"))
    stdin.flush()
    header = stdout.readline().split()
    if len(header) != 3:
        return Candidate(name, error=f"the clone does not hold the file's content (blob {blob})")
    size = int(header[2])
    if size > max_bytes:
        _skip(stdout, size + 1)
        return Candidate(name, error=too_large(size, max_bytes))
    data = stdout.read(size)
    stdout.read(1)
    return Candidate(name, data)


def _skip(stream: IO[bytes], count: int) -> None:
    while count > 0 and (chunk := stream.read(min(count, 2**20))):
        count -= len(chunk)
