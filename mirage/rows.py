"""Rows: what the manifest says about one picture, and the key it is stored under."""

from mirage.declarations import Generator, SourceBase
from mirage.facts import Facts
from mirage.pieces import Piece
from mirage.prepare import Prepared
from mirage.shards import Row

UNKNOWN = Generator(family="")


def is_twin(source: SourceBase) -> bool:
    """Whether the source's pictures are stored as pairs with their reconstructions."""
    return source.rules.reconstruct is not None


def provenance(source: SourceBase, facts: Facts, split: str, prepared: Prepared) -> Row:
    """What all rows of one file have in common: where it came from and on which terms."""
    return {
        "source": source.name,
        "kind": getattr(source, "kind", None),
        "repo": getattr(source, "repo", None) or getattr(source, "dataset", None),
        "revision": getattr(source, "revision", None),
        "path": prepared.path,
        "url": facts.url or None,
        "sha256": prepared.sha256,
        "failed": prepared.failed,
        "split": split,
        "group": facts.group,
        "source_label": facts.label,
        "prompt": facts.prompt or None,
        "licence": facts.licence,
        "note": source.note,
        "pair": f"{source.name}-{(prepared.sha256 or '')[:16]}" if is_twin(source) else None,
    }


def piece_row(base: Row, number: int, piece: Piece, generators: dict[str, Generator]) -> Row:
    """The row of one piece, rejected until it is stored."""
    known = generators.get(piece.generator, UNKNOWN)
    return base | {
        "piece_index": number,
        "piece": piece.name,
        "status": "rejected",
        "reason": piece.reason,
        "label": piece.label,
        "generator": piece.generator,
        "family": known.family or None,
        "released": known.released.isoformat() if known.released else None,
        "domain": piece.domain,
        "width": piece.width,
        "height": piece.height,
        "format": piece.format,
        "stored_format": piece.extension or None,
        "stored_sha256": piece.stored_sha256,
        "phash": piece.fingerprint.coarse if piece.fingerprint else None,
        "phash_fine": piece.fingerprint.fine if piece.fingerprint else None,
        "bytes": len(piece.data),
        "shard": None,
        "key": None,
        "transforms": list(piece.transforms),
        "warnings": list(piece.warnings),
    }


def key_of(source: SourceBase, prepared: Prepared, piece: Piece) -> str:
    """The name of a stored piece, unique in the data set and without dots, which would split it."""
    parts = (source.name, (prepared.sha256 or "")[:16], piece.name)
    return "-".join(part for part in parts if part)
