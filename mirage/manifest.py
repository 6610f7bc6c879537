"""The manifest: one Parquet row per picture seen, kept or not, with its provenance."""

import heapq
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from mirage.errors import BuildError
from mirage.extras import need
from mirage.shards import TEMPORARY, Row, journals, order, publish, read_journal

MANIFEST = "manifest.parquet"
BATCH_ROWS = 1000
TEXT_COLUMNS = (
    *("status", "reason", "source", "kind", "repo", "revision", "path", "url", "piece", "sha256"),
    *("stored_sha256", "phash", "phash_fine", "label", "generator", "family", "released", "domain"),
    *("split", "group", "licence", "prompt", "note", "format", "stored_format"),
    *("shard", "key", "pair", "transforms", "warnings"),
)
NUMBER_COLUMNS = ("width", "height", "bytes", "source_index", "file_index", "piece_index")


def write_manifest(folder: Path) -> Path:
    """The path of the manifest, put together from the folder's journals in the recipe's order."""
    pyarrow, parquet = need("pyarrow"), need("pyarrow.parquet")
    schema = pyarrow.schema(
        [(name, pyarrow.string()) for name in TEXT_COLUMNS]
        + [(name, pyarrow.int64()) for name in NUMBER_COLUMNS]
    )
    rows = heapq.merge(*(read_journal(path) for path in journals(folder)), key=order)
    target = folder / MANIFEST
    temporary = target.with_name(target.name + TEMPORARY)
    with parquet.ParquetWriter(temporary, schema) as writer:
        while batch := [_flat(row) for row in islice(rows, BATCH_ROWS)]:
            writer.write_table(pyarrow.Table.from_pylist(batch, schema=schema))
    publish(temporary, target)
    return target


def _flat(row: Row) -> Row:
    return row | {name: "; ".join(row[name]) for name in ("transforms", "warnings")}


def read_manifest(folder: Path) -> Iterator[Row]:
    """The rows of a finished data set.

    Raises:
        BuildError: the folder holds no manifest.
    """
    path = folder / MANIFEST
    if not path.is_file():
        raise BuildError(f"{folder} holds no {MANIFEST}; build it first with `omniaid mirage build`")
    for batch in need("pyarrow.parquet").ParquetFile(path).iter_batches(BATCH_ROWS):
        yield from batch.to_pylist()
