"""Thumbnails and contact sheets: a few stored pictures made small, chosen evenly and always the same ones."""

import hashlib
import heapq
import tarfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from PIL import Image, ImageDraw, ImageFont

from mirage.decode import Limits, decode
from mirage.errors import BuildError, UnreadableImage
from mirage.workers import open_engine

Row = dict[str, Any]
THUMBNAIL_PX = 192
TILE_PX, CAPTION_PX, GAP_PX = 144, 17, 6
COLUMNS = 8
ANY_SIZE = Limits(min_side_px=1)
SHARD_TIMEOUT_S = 3600.0


class Selection:
    """At most `most` of the rows it is shown, as evenly from all groups as they allow.

    Within a group a hash of the key decides. Memory grows with groups times `most`, not with rows,
    and rows of one group never change which rows of another come first.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._nearest: dict[tuple[str, ...], list[tuple[int, int, Row]]] = {}
        self._seen = 0

    def add(self, group: tuple[str, ...], row: Row) -> None:
        """Take a kept row into consideration."""
        heap = self._nearest.setdefault(group, [])
        self._seen += 1  # settles ties, so that rows are never compared
        # The heap gives up its smallest entry, which shall be the one with the largest hash.
        entry = (-_place(row["key"]), self._seen, row)
        if len(heap) < self._most:
            heapq.heappush(heap, entry)
        else:
            heapq.heappushpop(heap, entry)

    def rows(self) -> list[Row]:
        """The chosen rows: the first of every group, then the second of every group, and so on."""
        ranked = [sorted(heap, reverse=True) for _, heap in sorted(self._nearest.items())]
        chosen: list[Row] = []
        for rank in range(self._most):
            turn = [heap[rank][2] for heap in ranked if rank < len(heap)]
            # When not every group gets another one, a hash decides which do.
            turn.sort(key=lambda row: _place(row["key"]))
            chosen += turn[: self._most - len(chosen)]
        return chosen


def _place(key: str) -> int:
    return int.from_bytes(hashlib.sha256(key.encode("utf-8", "backslashreplace")).digest()[:8], "big")


def write_thumbnails(folder: Path, rows: Sequence[Row], target: Path, workers: int = 1) -> dict[str, str]:
    """The file names of the thumbnails by key, written into `target`; one that fails is left out.

    Args:
        folder: of the data set.
        rows: of the pictures wanted, from the manifest.
        target: a folder, made when missing.
        workers: processes that decode.

    Raises:
        BuildError: a shard cannot be read.
    """
    target.mkdir(parents=True, exist_ok=True)
    wanted: dict[str, list[str]] = {}
    for row in rows:
        wanted.setdefault(row["shard"], []).append(row["key"])
    jobs = ((name, (folder / name, frozenset(keys), target)) for name, keys in sorted(wanted.items()))
    names: dict[str, str] = {}
    with open_engine("local", workers, SHARD_TIMEOUT_S) as engine:
        for _, written in engine.run(shrink_shard, jobs, _give_up):
            names |= written or {}
    return names


def _give_up(arguments: tuple[Any, ...], sentence: str) -> dict[str, str]:
    raise BuildError(f"no thumbnails of {arguments[0]}: {sentence}")


def shrink_shard(path: Path, keys: frozenset[str], target: Path) -> dict[str, str]:
    """The file names by key of the thumbnails made from one shard; undecodable pictures are left out.

    Raises:
        BuildError: the shard cannot be read.
    """
    names = {}
    for key, data in _pictures(path, keys):
        # A hash, because a key is only as trustworthy as the data set it comes from.
        name = f"{hashlib.sha256(key.encode('utf-8')).hexdigest()[:20]}.webp"
        try:
            small = shrink(data)
        except UnreadableImage:
            continue  # shown without a picture; `omniaid mirage verify` says why
        small.save(target / name, "WEBP", quality=75, method=4)
        names[key] = name
    return names


def _pictures(path: Path, keys: frozenset[str]) -> Iterator[tuple[str, bytes]]:
    try:
        with tarfile.open(path, "r:") as shard:
            for member in shard:
                key, _, extension = member.name.rpartition(".")
                if key in keys and extension != "json" and (stream := shard.extractfile(member)):
                    yield key, stream.read()
    except (OSError, tarfile.TarError) as error:
        raise BuildError(f"{path} cannot be read: {error}; check with `omniaid mirage verify`") from error


def shrink(data: bytes) -> Image.Image:
    """The picture in `data` with a long side of at most `THUMBNAIL_PX`.

    Raises:
        UnreadableImage: the bytes are no picture.
    """
    image = decode(data, ANY_SIZE).image
    image.thumbnail((THUMBNAIL_PX, THUMBNAIL_PX), Image.Resampling.BICUBIC, reducing_gap=2.0)
    return image


def write_sheet(path: Path, tiles: Sequence[tuple[Path, str]]) -> None:
    """Write a contact sheet of thumbnails, each with a caption below."""
    columns = min(COLUMNS, len(tiles))
    rows = -(-len(tiles) // COLUMNS)
    width, height = TILE_PX + GAP_PX, TILE_PX + CAPTION_PX + GAP_PX
    sheet = Image.new("RGB", (columns * width + GAP_PX, rows * height + GAP_PX), "white")
    pen = ImageDraw.Draw(sheet)
    font = ImageFont.load_default(11)
    for place, (thumbnail, caption) in enumerate(tiles):
        left, top = GAP_PX + place % COLUMNS * width, GAP_PX + place // COLUMNS * height
        with Image.open(thumbnail) as opened:
            small = opened.convert("RGB")
        small.thumbnail((TILE_PX, TILE_PX))
        sheet.paste(small, (left + (TILE_PX - small.width) // 2, top + (TILE_PX - small.height) // 2))
        pen.text((left, top + TILE_PX + 2), _fitting(caption, pen, font), "#444444", font)
    sheet.save(path, "WEBP", quality=80, method=4)


def _fitting(caption: str, pen: ImageDraw.ImageDraw, font: Any) -> str:
    """The caption in the font's letters, cut to the width of a tile."""
    text = " ".join(caption.encode("latin-1", "replace").decode("latin-1").split())
    while text and pen.textlength(text, font) > TILE_PX:
        text = text[:-2].rstrip("…") + "…" if len(text) > 2 else ""
    return text
