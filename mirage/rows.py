"""Rows: what the manifest says about one picture, and which split and key it gets."""

from mirage.prepare import Piece, Prepared
from mirage.recipe import Source, Split
from mirage.shards import Row


def is_twin(source: Source) -> bool:
    """Whether the source's pictures are stored as pairs with their reconstructions."""
    return source.rules.reconstruct is not None


def split_of(source: Source, sha256: str) -> Split:
    """The split of a file, decided by its content alone, so that more data moves nothing."""
    if isinstance(source.split, str):
        return source.split
    place = int(sha256[:12] or "0", 16) / 16**12
    reached = 0.0
    for split, share in source.split.items():
        reached += share
        if place < reached:
            return split
    return split


def provenance(source: Source, prepared: Prepared, split: str) -> Row:
    """What all rows of one file have in common: where it came from and on which terms."""
    return {
        "source": source.name,
        "kind": source.kind,
        "repo": getattr(source, "repo", None),
        "revision": getattr(source, "revision", None),
        "path": prepared.path,
        "sha256": prepared.sha256,
        "split": split,
        "source_label": source.label,
        "licence": source.licence,
        "note": source.note,
        "pair": f"{source.name}-{(prepared.sha256 or '')[:16]}" if is_twin(source) else None,
    }


def piece_row(base: Row, number: int, piece: Piece) -> Row:
    """The row of one piece, rejected until it is stored."""
    return base | {
        "piece_index": number,
        "piece": piece.name,
        "status": "rejected",
        "reason": piece.reason,
        "label": piece.label,
        "generator": piece.generator,
        "domain": piece.domain,
        "width": piece.width,
        "height": piece.height,
        "format": piece.format,
        "stored_format": piece.extension or None,
        "bytes": len(piece.data),
        "shard": None,
        "key": None,
        "transforms": list(piece.transforms),
        "warnings": list(piece.warnings),
    }


def key_of(source: Source, prepared: Prepared, piece: Piece) -> str:
    """The name of a stored piece, unique in the data set and without dots, which would split it."""
    parts = (source.name, (prepared.sha256 or "")[:16], piece.name)
    return "-".join(part for part in parts if part)
