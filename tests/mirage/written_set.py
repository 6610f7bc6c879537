"""A small finished data set of drawn pictures, written with the builder's own writers."""

import hashlib
import json
from pathlib import Path
from typing import Any

from mirage.manifest import write_manifest
from mirage.shards import ShardWriter, write_journal
from tests.mirage.conftest import encode, picture

CODECS = {"png": "PNG", "jpg": "JPEG", "webp": "WEBP"}
EMPTY = (
    *("reason", "repo", "revision", "url", "piece", "stored_sha256", "phash", "phash_fine", "family"),
    *("released", "prompt", "stored_format", "shard", "key", "pair", "group", "width", "height"),
)
NOTHING = dict.fromkeys(EMPTY) | {
    "status": "kept",
    "kind": "folder",
    "note": "",
    "licence": "CC0-1.0",
    "format": "PNG",
    "transforms": [],
    "warnings": [],
    "bytes": 0,
}


class WrittenSet:
    """Collects pictures and rows, then writes them as a build would."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._rows: list[tuple[dict[str, Any], bytes]] = []

    def keep(
        self, split: str, label: str, source: str, generator: str, stored: str = "png", **facts: Any
    ) -> dict[str, Any]:
        """The row of a new picture, different from all others."""
        number = len(self._rows)
        image = picture(number, 96 + number, 80)
        data = encode(image, CODECS[stored])
        digest = hashlib.sha256(data).hexdigest()
        row = self._row(source, f"{number}.{stored}")
        row |= {"split": split, "label": label, "generator": generator, "domain": "animal"}
        row |= {"sha256": digest, "stored_sha256": digest, "stored_format": stored, "bytes": len(data)}
        row |= {"width": image.width, "height": image.height, "key": f"{source}-{digest[:16]}"}
        row |= facts
        self._rows.append((row, data))
        return row

    def store(self, row: dict[str, Any], data: bytes) -> None:
        """Give a kept picture's row other bytes."""
        place = next(number for number, (kept, _) in enumerate(self._rows) if kept is row)
        digest = hashlib.sha256(data).hexdigest()
        row |= {"sha256": digest, "stored_sha256": digest, "bytes": len(data)}
        self._rows[place] = (row, data)

    def drop(self, status: str, source: str, path: str, reason: str, **facts: Any) -> None:
        """Note a file that is not kept."""
        row = self._row(source, path) | {"status": status, "reason": reason, "split": "train"}
        row |= {"label": "real", "generator": "camera", "domain": "mixed", "sha256": "0" * 64} | facts
        self._rows.append((row, b""))

    def write(self, samples_per_shard: int = 4) -> Path:
        """The folder with shards, journals, manifest, statistics and the build's record."""
        self.folder.mkdir(parents=True, exist_ok=True)
        for split in sorted({row["split"] for row, _ in self._rows if row["key"]}):
            writer = ShardWriter(self.folder, split, 0, samples_per_shard, 2**30)
            done = []
            for row, data in self._rows:
                if row["split"] == split and row["key"]:
                    row["shard"] = writer.name
                    writer.add(row["key"], row["stored_format"], data, row)
                    done.append(row)
                    if writer.full:
                        writer.close(done)
                        done = []
            writer.close(done)
        write_journal(self.folder / "rows-000000.jsonl", [row for row, _ in self._rows if not row["key"]])
        write_manifest(self.folder)
        statuses = [row["status"] for row, _ in self._rows]
        counts = {name: statuses.count(name) for name in ("kept", "rejected", "duplicate")}
        self.write_json("stats.json", {"counts": {"seen": len(statuses)} | counts, "conflicts": []})
        self.write_json("build.json", {"recipe": "drawn", "recipe_sha256": "ab" * 32, "seed": 7})
        return self.folder

    def _row(self, source: str, path: str) -> dict[str, Any]:
        place = {"source_index": 0, "file_index": len(self._rows), "piece_index": 0}
        return NOTHING | {"source": source, "path": path} | place

    def write_json(self, name: str, content: dict[str, Any]) -> None:
        """Replace a JSON file of the folder."""
        (self.folder / name).write_text(json.dumps(content), "utf-8")


def write_small(folder: Path) -> Path:
    """Two splits, both classes, a pair, a rejected file, and repeated ones of every kind."""
    drawn = WrittenSet(folder)
    for number in range(5):
        drawn.keep("train", "real", "photos", "camera", ("png", "jpg")[number % 2], domain="animal")
        made = {"family": "Painter", "released": "2023-05-01", "licence": "none stated"}
        drawn.keep("train", "ai", "paintings", "Painter 2", "webp", domain="human", **made)
    drawn.keep("devtest", "real", "scans", "scan", domain="scene", kind="git", repo="o/s", revision="a" * 40)
    drawn.keep("devtest", "ai", "newer", "Painter 3", domain="scene", released="2024-01-01")
    for label, generator in (("real", "camera"), ("ai", "up-and-down")):
        drawn.keep("train", label, "twins", generator, "webp", domain="artifact", pair="twins-1")
    drawn.drop("rejected", "photos", "tiny.png", "20 x 20 px; the shorter side must be at least 64 px")
    drawn.drop("rejected", "photos", "less.png", "21 x 9 px; the shorter side must be at least 64 px")
    drawn.drop("duplicate", "scans", "copy.png", "same bytes as 0.png of photos")
    drawn.drop("duplicate", "scans", "near.png", "near copy (9 of 256 bits differ) of 2.png of photos")
    drawn.drop(
        "duplicate",
        "scans",
        "both.png",
        "conflict: labelled real here, but same bytes as 1.webp of paintings, labelled ai",
    )
    return drawn.write()
