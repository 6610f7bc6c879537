"""Pictures in tar files of the WebDataset layout: a picture and its sidecars side by side under one key."""

import json
import lzma
import tarfile
import zlib
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath
from typing import Literal, Self

from pydantic import Field

from mirage.declarations import SourceBase
from mirage.sources.candidate import (
    EXTENSIONS,
    Candidate,
    MissingSource,
    Surroundings,
    pick,
    printable,
    too_large,
)
from mirage.sources.entries import as_text, scalars, sentence

SIDECAR_BYTES = 2**20
TEXTS = {".txt": "caption", ".caption": "caption", ".cls": "class"}  # extension -> column
BROKEN = (tarfile.TarError, OSError, EOFError, zlib.error, lzma.LZMAError, ValueError)


class ShardsSource(SourceBase):
    """Pictures in WebDataset shards: tar files, compressed or not, below a folder."""

    kind: Literal["webdataset"]
    path: Path = Field(description="a folder; a relative one starts at the recipe's folder")
    pattern: str = Field(default="**/*.tar", description="glob of the tar files below `path`")
    key: Literal["last-dot", "first-dot"] = Field(
        default="last-dot", description="which dot of a member's file name ends its key"
    )


@dataclass
class _Sample:
    """What was read of one key so far; `name` is its picture's path, or that of its first member."""

    key: str
    name: str
    picture: Candidate | None = None
    pictures: int = 0
    columns: dict[str, str] = field(default_factory=dict)
    error: str | None = None


class _Header(tarfile.TarInfo):
    """A member's header; a damaged one is an error, where the library would take it for the end."""

    @classmethod
    def fromtarfile(cls, tarfile_: tarfile.TarFile) -> Self:
        try:
            return super().fromtarfile(tarfile_)
        except tarfile.HeaderError as error:
            if type(error).__name__ == "EOFHeaderError":  # the end mark; the class has no public name
                raise
            raise tarfile.ReadError(f"{error} where a member or the end mark must stand") from error


def open_shards(source: ShardsSource, around: Surroundings) -> Generator[Candidate]:
    """The samples' pictures: shards in hash order of their paths, samples in stored order.

    So a cap takes a fair pick of shards, not of samples; a tar file cannot be read in another order
    without keeping it in memory.

    The key of a member is its path up to a dot. By default it is the file name's last one, so
    `photo.1.jpg` and `photo.2.jpg` are two samples. The webdataset library ends keys at the first one,
    which makes one sample of them, but also joins `1.image.jpg` with `1.meta.json`: `key: first-dot`.
    Members of a sample stand next to each other; the picture is the one with a picture's extension.
    Scalars of the `.json` sidecar become columns under their own names, a `.txt` becomes `caption`, a
    `.cls` becomes `class`, and the key itself `key`; what else a sample holds is not read.

    A candidate's path is the shard's path, a slash, and the member's. A sample without exactly one
    picture, an unusable sidecar, a member that comes twice and a broken tar file are candidates with
    an error, the last one under the shard's path alone; samples that were whole before the damage are
    used, the one it met, perhaps without its sidecars, is not.

    Raises:
        MissingSource: the folder is not on this machine, or holds no such file.
    """
    root = around.recipe_dir / source.path
    if not root.is_dir():
        raise MissingSource(f"source {source.name}: the folder {root} does not exist")
    names = [str(path.relative_to(root)) for path in root.glob(source.pattern) if path.is_file()]
    if not names:
        raise MissingSource(f"source {source.name}: no file below {root} matches {source.pattern}")
    for name in sorted(names, key=lambda name: pick(around.seed, name, name)):
        yield from _read_shard(root / name, printable(name), KEYS[source.key], around)


def _read_shard(
    path: Path, shard: str, key_of: Callable[[str], str], around: Surroundings
) -> Iterator[Candidate]:
    told: set[str] = set()
    try:
        with tarfile.open(path, "r|*", tarinfo=_Header) as archive:
            sample: _Sample | None = None
            for member in _members(archive):
                key, name = key_of(member.name), f"{shard}/{printable(member.name)}"
                if sample and sample.key != key:
                    yield _finish(sample, told)
                    sample = None
                sample = sample or _Sample(key, name)
                _add(sample, name, archive, member, around)
        if sample:
            yield _finish(sample, told)
        if not told:
            yield Candidate(shard, error="the tar file holds no sample")
    except BROKEN as error:
        reason = f"the tar file is broken after {len(told)} whole samples: {sentence(error)}"
        yield Candidate(shard, error=reason)


def _members(archive: tarfile.TarFile) -> Iterator[tarfile.TarInfo]:
    while (member := archive.next()) is not None:
        if member.isreg():
            yield member
        archive.members.clear()  # type: ignore[attr-defined]  # it would remember every member


def _add(
    sample: _Sample, name: str, archive: tarfile.TarFile, member: tarfile.TarInfo, around: Surroundings
) -> None:
    """Read the member into its sample, if it is of use."""
    suffix = PurePosixPath(member.name).suffix.lower()
    if suffix in EXTENSIONS:
        sample.pictures += 1
        if sample.pictures == 1:
            sample.name, sample.picture = name, _read_picture(name, archive, member, around)
    elif suffix == ".json" or suffix in TEXTS:
        if member.size > SIDECAR_BYTES:
            sample.error = f"sidecar {suffix}: {too_large(member.size, SIDECAR_BYTES)}"
            return
        try:
            sample.columns |= _read_sidecar(suffix, _read(archive, member))
        except (ValueError, RecursionError) as error:
            sample.error = f"sidecar {suffix} cannot be used: {sentence(error)}"


def _read_picture(
    name: str, archive: tarfile.TarFile, member: tarfile.TarInfo, around: Surroundings
) -> Candidate:
    if name in around.finished:
        return Candidate(name)
    if member.size > around.max_bytes:
        return Candidate(name, error=too_large(member.size, around.max_bytes))
    return Candidate(name, _read(archive, member))


def _read_sidecar(suffix: str, data: bytes) -> dict[str, str]:
    if suffix in TEXTS:
        text = as_text(data.decode("utf-8").strip())
        return {TEXTS[suffix]: text} if text else {}
    values = json.loads(data)
    if not isinstance(values, dict):
        raise ValueError("it holds no JSON object")
    return scalars(values)


def _read(archive: tarfile.TarFile, member: tarfile.TarInfo) -> bytes:
    stream = archive.extractfile(member)
    if stream is None:
        raise tarfile.ReadError(f"{member.name} has no bytes")
    return stream.read()


def _finish(sample: _Sample, told: set[str]) -> Candidate:
    """The sample as a candidate, an erroneous one when it cannot be used."""
    columns = sample.columns | {"key": printable(sample.key)}
    error = sample.error
    if sample.pictures != 1:
        error = f"the sample {columns['key']} has {sample.pictures} pictures; it needs one"
    name = sample.name
    if name in told:
        name, error = f"{name} (sample {len(told) + 1})", "the tar file holds this member twice"
    told.add(name)
    if error or sample.picture is None:
        return Candidate(name, error=error, columns=columns)
    return replace(sample.picture, columns=columns)


def _last_dot(name: str) -> str:
    folder, slash, file = name.rpartition("/")
    return f"{folder}{slash}{file.rpartition('.')[0] or file}"


def _first_dot(name: str) -> str:
    folder, slash, file = name.rpartition("/")
    return f"{folder}{slash}{file.partition('.')[0] or file}"


KEYS: dict[str, Callable[[str], str]] = {"last-dot": _last_dot, "first-dot": _first_dot}
