"""Predictions on disk: one Parquet row per picture and transform, from which any figure is computed again."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from detector.card import ModelCard
from detector.evaluation.errors import EvaluationError
from detector.report import ModelIdentity
from mirage.extras import need

Prediction = dict[str, Any]
Columns = Mapping[str, NDArray[Any]]

TEXT = (
    *("key", "path", "source", "generator", "label", "domain", "family", "released", "split", "subset"),
    *("pair", "transform", "verdict", "format", "error"),
)
NUMBERS = ("margin", "probability", "probe_margin")
LISTS = ("logits", "gates")
SIZES = ("width", "height")
REQUIRED = ("key", "source", "generator", "label")
# The training pipeline's names for the same things.
FORMER_NAMES = {"tier": "transform"}
LABELS = {0: "real", 1: "ai", "real": "real", "ai": "ai"}
ORIGIN_KEY = b"omniaid"


class DataInfo(BaseModel):
    """Which pictures were scored."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str = Field(description="of the data set's folder")
    layout: str = Field(description="`mirage` for a built data set, else a name of LAYOUTS")
    split: str = Field(description="empty: all there is")
    limit_per_source: int | None = Field(
        default=None, description="most pictures per source and class, chosen by hash; None: all"
    )
    left_out: int = Field(default=0, description="picture files that the layout gives no class")


class Origin(BaseModel):
    """Where predictions come from: the model with its calibration, and the pictures."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    model: ModelIdentity
    experts: tuple[str, ...] = Field(description="names of the gates, in order")
    views: tuple[str, ...] = Field(description="names of the views, in the order of the logits")
    temperature: float
    bias: float
    threshold_ai: float
    threshold_real: float
    min_side_px: int
    trained_on: tuple[str, ...] | None = Field(
        default=None, description="generators in the training data; None: not known"
    )
    data: DataInfo


def describe_origin(card: ModelCard, data: DataInfo, trained_on: Sequence[str] | None = None) -> Origin:
    """The origin of predictions that the model of `card` makes.

    Args:
        card: of the model.
        data: the pictures.
        trained_on: generators in the training data; None takes what the card says.
    """
    return Origin(
        model=ModelIdentity(name=card.name, version=card.version, sha256=card.sha256),
        experts=card.experts,
        views=card.preprocessing.views,
        temperature=card.temperature,
        bias=card.bias,
        threshold_ai=card.thresholds.ai,
        threshold_real=card.thresholds.real,
        min_side_px=card.min_side_px,
        trained_on=training_generators(card) if trained_on is None else tuple(sorted(set(trained_on))),
        data=data,
    )


def training_generators(card: ModelCard) -> tuple[str, ...] | None:
    """Generators of the AI pictures that the model learnt from, by its card; None when it does not say."""
    train = card.training.get("data", {}).get("train", {})
    if not isinstance(train, dict) or "sources" not in train:
        return None
    return tuple(sorted({row["generator"] for row in train["sources"] if row["label"] == "ai"}))


def write_predictions(predictions: Sequence[Prediction], path: Path, origin: Origin | None = None) -> None:
    """Store predictions as Parquet, whole or not at all.

    Args:
        predictions: rows; columns that this module does not know are stored as they are.
        path: the file.
        origin: stored with them when given; the columns are then exactly this module's.
    """
    pyarrow, parquet = need("pyarrow"), need("pyarrow.parquet")
    if origin is None:
        table = pyarrow.Table.from_pylist(list(predictions))
    else:
        schema = _schema(pyarrow).with_metadata({ORIGIN_KEY: origin.model_dump_json().encode()})
        table = pyarrow.Table.from_pylist(list(predictions), schema=schema)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        parquet.write_table(table, temporary)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def read_predictions(path: Path) -> list[Prediction]:
    """What `write_predictions` stored, row by row."""
    return need("pyarrow.parquet").read_table(path).to_pylist()


def read_origin(path: Path) -> Origin | None:
    """Where the predictions at `path` come from; None when the file does not say."""
    metadata = need("pyarrow.parquet").read_schema(path).metadata or {}
    try:
        return Origin.model_validate_json(metadata[ORIGIN_KEY]) if ORIGIN_KEY in metadata else None
    except ValidationError as error:
        raise EvaluationError(f"{path} was written by another version of this program: {error}") from error


def read_columns(path: Path) -> Columns:
    """The predictions at `path` by column, in this module's names.

    Raises:
        EvaluationError: the file is missing, not Parquet, or lacks a column.
    """
    pyarrow, parquet = need("pyarrow"), need("pyarrow.parquet")
    try:
        table = parquet.read_table(path)
    except FileNotFoundError as error:
        raise EvaluationError(f"predictions {path} do not exist") from error
    except (pyarrow.ArrowException, OSError) as error:
        raise EvaluationError(f"{path} is not a Parquet file of predictions: {error}") from error
    return name_columns({name: table.column(name).to_pylist() for name in table.column_names}, str(path))


def name_columns(columns: Mapping[str, Sequence[Any]], place: str) -> Columns:
    """Columns under this module's names and types; what is not there is filled in as unknown.

    Args:
        columns: by name, all of one length.
        place: for messages.

    Raises:
        EvaluationError: a column is missing, a label is none, or a picture counts twice.
    """
    found = {FORMER_NAMES.get(name, name): column for name, column in columns.items()}
    missing = [name for name in REQUIRED if name not in found]
    if missing:
        raise EvaluationError(
            f"{place} has no column {missing[0]!r}; predictions need {', '.join(REQUIRED)}, and margin or "
            "probability"
        )
    rows = len(found["key"])
    if unknown := set(found["label"]) - set(LABELS):
        raise EvaluationError(f"{place} has label {min(map(str, unknown))!r}; real, ai, 0 and 1 are allowed")
    named: dict[str, NDArray[Any]] = {
        name: _objects([value or "" for value in found.get(name, [""] * rows)]) for name in TEXT
    }
    named["label"] = _objects([LABELS[value] for value in found["label"]])
    if "transform" not in found:
        named["transform"] = _objects(["clean"] * rows)
    for name in (*NUMBERS, *SIZES):
        values = found.get(name, [None] * rows)
        named[name] = np.array([np.nan if value is None else value for value in values], dtype=np.float64)
    for name in LISTS:
        named[name] = _objects(list(found.get(name, [None] * rows)))
    _check_unique(named, place)
    return named


def _check_unique(columns: Columns, place: str) -> None:
    seen: set[tuple[str, str]] = set()
    for pair in zip(columns["key"], columns["transform"], strict=True):
        if pair in seen:
            raise EvaluationError(
                f"{place} holds picture {pair[0]} under {pair[1]} twice; it would count twice"
            )
        seen.add(pair)


def _objects(values: list[Any]) -> NDArray[Any]:
    array = np.empty(len(values), dtype=object)
    array[:] = values
    return array


def _schema(pyarrow: Any) -> Any:
    """Every column and its type."""
    return pyarrow.schema(
        [(name, pyarrow.string()) for name in TEXT]
        + [(name, pyarrow.float64()) for name in NUMBERS]
        + [(name, pyarrow.list_(pyarrow.float64())) for name in LISTS]
        + [(name, pyarrow.int64()) for name in SIZES]
    )
