"""Sources: one generator function per kind, each yielding candidate pictures' bytes in a fixed order."""

import csv
import hashlib
import io
import os
import re
import subprocess
from collections.abc import Callable, Generator, Iterator, Set
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from mirage.errors import BuildError, RecipeError
from mirage.recipe import FolderSource, GeneratorSource, GitSource, SourceBase

EXTENSIONS = frozenset(
    (
        *(".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".apng", ".webp", ".avif", ".heic", ".heif"),
        *(".gif", ".bmp", ".tif", ".tiff", ".jp2", ".j2k", ".ppm", ".pgm"),
    )
)
GIT_ENVIRONMENT = {"GIT_NO_LAZY_FETCH": "1", "GIT_OPTIONAL_LOCKS": "0", "LC_ALL": "C"}


class MissingSource(RecipeError):
    """A source's folder, clone or revision is not on this machine."""


@dataclass(frozen=True)
class Candidate:
    """One file of a source, before anything is known about it.

    Attributes:
        path: inside the source; bytes that are not UTF-8 appear as \\xNN escapes.
        data: its bytes; None when the caller has finished this path already, or on an error.
        error: why there are no bytes, one sentence.
    """

    path: str
    data: bytes | None = None
    error: str | None = None


@dataclass(frozen=True)
class Surroundings:
    """What openers need besides the source itself.

    Attributes:
        mirrors: the folder that holds bare clones, if any.
        recipe_dir: where relative paths of the recipe start.
        seed: of the pick by hash.
        finished: paths of this source whose bytes are not needed any more.
        max_bytes: larger files are not read.
    """

    mirrors: Path | None
    recipe_dir: Path
    seed: int
    finished: Set[str]
    max_bytes: int


def open_source(source: SourceBase, around: Surroundings) -> Generator[Candidate]:
    """The source's candidates, ordered by hash, so that any prefix is a fair pick.

    Raises:
        MissingSource: the source is not on this machine.
    """
    return OPENERS[type(source)](source, around)


def _pick(seed: int, identity: str, path: str) -> tuple[bytes, str]:
    return hashlib.sha256(f"{seed}\0{identity}".encode("utf-8", "surrogateescape")).digest(), path


def _printable(path: str) -> str:
    return path.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def open_folder(source: FolderSource, around: Surroundings) -> Generator[Candidate]:
    """Regular files below a folder that match the pattern and look like pictures by their extension."""
    root = around.recipe_dir / source.path
    if not root.is_dir():
        raise MissingSource(f"source {source.name}: the folder {root} does not exist")
    names = [
        str(path.relative_to(root))
        for path in root.glob(source.pattern)
        if path.suffix.lower() in EXTENSIONS and path.is_file() and not path.is_symlink()
    ]
    for name in sorted(names, key=lambda name: _pick(around.seed, name, name)):
        yield _read_file(root / name, _printable(name), around)


def _read_file(path: Path, name: str, around: Surroundings) -> Candidate:
    if name in around.finished:
        return Candidate(name)
    try:
        size = path.stat().st_size
        if size > around.max_bytes:
            return Candidate(name, error=_too_large(size, around.max_bytes))
        return Candidate(name, path.read_bytes())
    except OSError as error:
        return Candidate(name, error=f"the file cannot be read: {error.strerror}")


def _too_large(size: int, limit: int) -> str:
    return f"the file has {size:,} bytes; at most {limit:,} are read"


def open_git(source: GitSource, around: Surroundings) -> Generator[Candidate]:
    """Files of one revision, read through one `git cat-file --batch` process."""
    clone = find_clone(source, around.mirrors)
    chosen = _chooser(source, around.recipe_dir)
    blobs = [(path, blob) for path, blob in _list_tree(clone, source) if chosen(path)]
    blobs.sort(key=lambda entry: _pick(around.seed, entry[1], entry[0]))
    with subprocess.Popen(
        ["git", f"--git-dir={clone}", "cat-file", "--batch"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=os.environ | GIT_ENVIRONMENT,
    ) as process:
        assert process.stdin and process.stdout  # both are pipes
        try:
            for path, blob in blobs:
                name = _printable(path)
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
        return Candidate(name, error=_too_large(size, max_bytes))
    data = stdout.read(size)
    stdout.read(1)
    return Candidate(name, data)


def _skip(stream: IO[bytes], count: int) -> None:
    while count > 0 and (chunk := stream.read(min(count, 2**20))):
        count -= len(chunk)


def open_generator(source: GeneratorSource, around: Surroundings) -> Generator[Candidate]:
    """Pictures made on the spot, stored without loss; nothing is made when all are finished."""
    if len(around.finished) >= source.count:
        yield from (Candidate(name) for name in sorted(around.finished))
        return
    from mirage.generators import generate

    try:
        pictures = generate(source.model, source.count, source.seed, side_px=source.side_px)
    except BuildError as error:
        raise MissingSource(f"source {source.name}: {error}") from error
    for name, image in pictures:
        if name in around.finished:
            yield Candidate(name)
            continue
        buffer = io.BytesIO()
        image.convert("RGB").save(buffer, "PNG", compress_level=1)
        yield Candidate(name, buffer.getvalue())


OPENERS: dict[type, Callable[[Any, Surroundings], Generator[Candidate]]] = {
    FolderSource: open_folder,
    GitSource: open_git,
    GeneratorSource: open_generator,
}
