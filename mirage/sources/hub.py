"""Pictures in a data set of the Hugging Face Hub, or in a folder of the same layout."""

from collections.abc import Generator, Iterator
from dataclasses import dataclass, replace
from itertools import repeat
from pathlib import Path, PurePath
from typing import Any, Literal

from pydantic import Field

from mirage.declarations import SourceBase
from mirage.errors import RecipeError
from mirage.extras import need
from mirage.sources.candidate import (
    Candidate,
    MissingSource,
    Surroundings,
    pick,
    printable,
    read_file,
    too_large,
)
from mirage.sources.entries import Entry, by_hash, scalars, sentence

FOLDER = "hub"  # of the converted data, below the cache
ARCHIVES = ("zip://", "tar://", "gzip://", "bz2://", "xz://", "zstd://")


class HubSource(SourceBase):
    """Pictures of a data set that `datasets.load_dataset` opens, by name on the Hub or in a folder."""

    kind: Literal["hub"]
    dataset: str = Field(min_length=1, description="a folder of this machine, or owner/name on the Hub")
    config: str | None = Field(default=None, description="for data sets that come in several")
    hub_split: str = Field(default="train", description="the data set's own split to read")
    image_column: str = "image"
    revision: str | None = Field(default=None, description="on the Hub; a rebuild needs a full commit id")
    streaming: bool = Field(
        default=False, description="read over the network without keeping the whole data set on disk"
    )


@dataclass(frozen=True)
class _Opened:
    """A loaded data set and what is needed to read its rows.

    Attributes:
        rows: pictures, undecoded, and scalar columns.
        folder: the data set itself, when it lies on this machine.
        roots: the folders whose files its rows may name.
        classes: of each column of class numbers, the names.
    """

    rows: Any
    folder: Path | None
    roots: tuple[Path, ...]
    classes: dict[str, list[str]]


def open_hub(source: HubSource, around: Surroundings) -> Generator[Candidate]:
    """The data set's pictures, byte for byte as stored in it; other scalar columns come along.

    A picture that is a file of the data set's folder goes by its path below it; every other one by the
    split and the row's number, so such a data set keeps its paths only within one revision. They come
    in hash order of these paths. Streamed, all go by number, files come in hash order and their rows as
    stored, so a cap takes a fair pick of files, not of rows.

    Class numbers become their names. A row without a picture, or that names a file outside the data
    set, is a candidate with an error.

    Raises:
        MissingSource: there is no such data set, or the Hub cannot be reached.
        RecipeError: the data set lacks the config, the split or the column, or is not usable.
        MissingExtra: the package datasets is not installed.
    """
    opened = _open(source, around)
    rows = _stream_rows if source.streaming else _pick_rows
    for entry, values in rows(opened, source, around):
        columns = _columns(values, source.image_column, opened.classes)
        if entry.name in around.finished:
            yield Candidate(entry.name, columns=columns)
        elif entry.error:
            yield Candidate(entry.name, error=entry.error, columns=columns)
        else:
            picture = _read(entry.name, values[source.image_column] or {}, opened, around)
            yield replace(picture, columns=columns)


def _open(source: HubSource, around: Surroundings) -> _Opened:
    datasets = need("datasets", "hub")
    folder = (around.recipe_dir / source.dataset).resolve()
    local = folder if folder.is_dir() else None
    cache = around.cache / FOLDER
    try:
        rows = datasets.load_dataset(
            str(local or source.dataset),
            source.config,
            split=source.hub_split,
            revision=None if local else source.revision,
            streaming=source.streaming,
            cache_dir=str(cache),
        )
    except (FileNotFoundError, ConnectionError) as error:
        raise MissingSource(f"source {source.name}: {sentence(error)}") from error
    except Exception as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise  # a full disk is no fault of the recipe
        # The library raises almost any exception on a data set that it cannot use.
        reason = f"the data set {source.dataset} cannot be used: {sentence(error)}"
        raise RecipeError(f"source {source.name}: {reason}") from error
    _check_column(source, rows.features)
    rows = rows.cast_column(source.image_column, datasets.Image(decode=False))
    scalar = [name for name, feature in rows.features.items() if _is_scalar(feature)]
    classes = {name: rows.features[name].names for name in scalar if hasattr(rows.features[name], "names")}
    rows = rows.select_columns([source.image_column, *scalar])
    hub_cache = Path(need("huggingface_hub.constants", "hub").HF_HUB_CACHE)
    roots = tuple(root.resolve() for root in (local, cache, hub_cache) if root)
    return _Opened(rows, local, roots, classes)


def _check_column(source: HubSource, features: dict[str, Any] | None) -> None:
    if features is None:
        raise RecipeError(
            f"source {source.name}: {source.dataset} does not say what its columns hold before it is read; "
            "use streaming: false"
        )
    if source.image_column not in features:
        there = ", ".join(features)
        raise RecipeError(
            f"source {source.name}: {source.dataset} has no column {source.image_column!r}; it has {there}"
        )
    feature = features[source.image_column]
    if type(feature).__name__ != "Image" and getattr(feature, "dtype", "") not in ("binary", "large_binary"):
        raise RecipeError(
            f"source {source.name}: column {source.image_column} holds {feature}; it must be Image or binary"
        )


def _is_scalar(feature: Any) -> bool:
    return type(feature).__name__ in ("Value", "ClassLabel") and "binary" not in feature.dtype


def _pick_rows(
    opened: _Opened, source: HubSource, around: Surroundings
) -> Iterator[tuple[Entry, dict[str, Any]]]:
    """Rows in hash order of their names, read one by one from the converted data on disk."""
    plain = opened.rows.remove_columns([source.image_column])
    for entry in by_hash(_entries(opened, source), around.seed):
        needed = entry.error is None and entry.name not in around.finished
        if needed:
            yield entry, opened.rows[entry.number - 1]
        else:  # a table without columns has no rows either
            yield entry, plain[entry.number - 1] if plain.column_names else {}


def _entries(opened: _Opened, source: HubSource) -> Iterator[Entry]:
    """Every row's name, without reading the pictures."""
    paths = _paths(opened, source.image_column) if opened.folder else repeat(None, len(opened.rows))
    for number, path in enumerate(paths, start=1):
        name = f"{source.hub_split}/{number - 1}"
        if path and opened.folder and Path(path).is_relative_to(opened.folder):
            name = str(Path(path).relative_to(opened.folder))
        yield Entry(printable(name), number)


def _paths(opened: _Opened, column: str) -> Iterator[str | None]:
    compute = need("pyarrow.compute", "hub")
    for batch in opened.rows.select_columns([column]).with_format("arrow").iter(batch_size=1000):
        yield from compute.struct_field(batch[column], "path").to_pylist()


def _stream_rows(
    opened: _Opened, source: HubSource, around: Surroundings
) -> Iterator[tuple[Entry, dict[str, Any]]]:
    """Rows of one file of the data set after another, files in hash order of their numbers."""
    count = opened.rows.num_shards
    for file in sorted(range(count), key=lambda file: pick(around.seed, str(file), "")):
        for number, values in enumerate(opened.rows.shard(count, file)):
            yield Entry(f"{source.hub_split}/{file}-{number}", number + 1), values


def _columns(values: dict[str, Any], image_column: str, classes: dict[str, list[str]]) -> dict[str, str]:
    named = {name: _class(values[name], names) for name, names in classes.items()}
    return scalars(values | named, without=[image_column])


def _class(number: int | None, names: list[str]) -> str | None:
    return names[number] if number is not None and 0 <= number < len(names) else None


def _read(name: str, picture: dict[str, Any], opened: _Opened, around: Surroundings) -> Candidate:
    """The picture of a row: its own bytes, or the file of the data set that it names."""
    data, path = picture.get("bytes"), picture.get("path")
    if data is not None:
        if len(data) > around.max_bytes:
            return Candidate(name, error=too_large(len(data), around.max_bytes))
        return Candidate(name, data)
    if not path:
        return Candidate(name, error="the row holds no picture")
    *outer, inner = path.split("::")
    remote = inner.startswith("hf://datasets/")
    if not all(step.startswith(ARCHIVES) for step in outer) or not (remote or _is_below(inner, opened.roots)):
        return Candidate(name, error=f"the row names {PurePath(path).name}, which is no file of the data set")
    return _read_through(path, name, around) if outer or remote else read_file(Path(path), name, around)


def _is_below(path: str, roots: tuple[Path, ...]) -> bool:
    try:
        resolved = Path(path).resolve()
    except (OSError, ValueError, RuntimeError):  # a null byte, a loop of links
        return False
    return Path(path).is_absolute() and any(resolved.is_relative_to(root) for root in roots)


def _read_through(path: str, name: str, around: Surroundings) -> Candidate:
    """The bytes of a remote file, or of one inside an archive."""
    try:
        with need("fsspec", "hub").open(path, "rb") as stream:
            data = stream.read(around.max_bytes + 1)
    except Exception as error:  # every file system has its own
        return Candidate(name, error=f"the file cannot be read: {sentence(error)}")
    if len(data) > around.max_bytes:
        return Candidate(name, error=too_large(len(data), around.max_bytes))
    return Candidate(name, data)
