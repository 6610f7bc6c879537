"""Tags of TIFF directories, from EXIF blocks and TIFF files, read strictly within bounds."""

from dataclasses import dataclass, field

SIZES = {
    1: 1,
    2: 1,
    3: 2,
    4: 4,
    5: 8,
    6: 1,
    7: 1,
    8: 2,
    9: 4,
    10: 8,
    11: 4,
    12: 8,
    13: 4,
    16: 8,
    17: 8,
    18: 8,
}
ORDERS = {b"II": "little", b"MM": "big"}
MAX_ENTRIES = 4096
MAX_DIRECTORIES = 64


@dataclass(frozen=True)
class Tag:
    """One entry: `kind` is its TIFF type, `start` and `stop` bound its value in the block."""

    number: int
    kind: int
    count: int
    start: int
    stop: int


@dataclass
class Directories:
    """All directories of one block, by where they hang: "0", "1", ..., "exif", "gps"."""

    data: bytes
    order: str
    tags: dict[str, dict[int, Tag]] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)

    def raw(self, directory: str, number: int) -> bytes:
        """The bytes of a tag's value; empty when there is none."""
        tag = self.tags.get(directory, {}).get(number)
        return self.data[tag.start : tag.stop] if tag else b""

    def text(self, directory: str, number: int) -> str:
        """A tag as text, without padding; bytes that are not UTF-8 are read as Latin-1."""
        raw = self.raw(directory, number)[:65536].split(b"\0", 1)[0].strip()
        try:
            return raw.decode("utf-8")
        except UnicodeDecodeError:
            return raw.decode("latin-1")

    def number(self, directory: str, number: int) -> int | None:
        """The first integer of a tag."""
        tag = self.tags.get(directory, {}).get(number)
        size = SIZES.get(tag.kind, 0) if tag else 0
        if tag is None or not tag.count or tag.kind not in (1, 3, 4, 13, 16, 18):
            return None
        return self.integer(tag.start, size)

    def integer(self, position: int, size: int) -> int:
        """The unsigned integer of `size` bytes at `position`."""
        return int.from_bytes(self.data[position : position + size], self.order)  # type: ignore[arg-type]


CHILDREN = {0x8769: "exif", 0x8825: "gps", 0xA005: "interoperability"}


def read_directories(data: bytes) -> Directories:
    """The directories of a TIFF or BigTIFF structure that begins at byte 0 of `data`.

    Raises:
        ValueError: the header is not one.
    """
    order = ORDERS.get(data[:2])
    magic = int.from_bytes(data[2:4], order) if order else 0  # type: ignore[arg-type]
    if order is None or magic not in (42, 43):
        raise ValueError("the block does not begin with a TIFF header")
    found = Directories(data, order)
    wide = magic == 43
    first = found.integer(8, 8) if wide else found.integer(4, 4)
    queue, seen, chain = [("0", first)], {0}, 0
    while queue and len(seen) < MAX_DIRECTORIES:
        name, offset = queue.pop(0)
        if offset in seen:
            if offset:
                found.problems.append(f"directory {name} points to one that was already read")
            continue
        seen.add(offset)
        following = _read(found, name, offset, wide)
        queue += [
            (child, value)
            for number, child in CHILDREN.items()
            if child not in found.tags and (value := found.number(name, number)) is not None
        ]
        if name.isdigit() and following:
            chain += 1
            queue.append((str(chain), following))
    return found


def _read(found: Directories, name: str, offset: int, wide: bool) -> int:
    """Offset of the directory that follows (0 for none), after its entries were noted."""
    head, width, inline = (8, 20, 8) if wide else (2, 12, 4)
    if offset + head > len(found.data):
        found.problems.append(f"directory {name} lies outside the block")
        return 0
    count = found.integer(offset, head)
    tags: dict[int, Tag] = {}
    if count > MAX_ENTRIES or offset + head + count * width > len(found.data):
        found.problems.append(f"directory {name} claims {count} entries, more than fit")
        count = min(count, MAX_ENTRIES, (len(found.data) - offset - head) // width)
    for at in range(offset + head, offset + head + count * width, width):
        tag = _entry(found, at, inline)
        if tag is not None:
            tags.setdefault(tag.number, tag)
    found.tags[name] = tags
    return found.integer(offset + head + count * width, inline)


def _entry(found: Directories, at: int, inline: int) -> Tag | None:
    kind, count = found.integer(at + 2, 2), found.integer(at + 4, inline)
    size = SIZES.get(kind, 0) * count
    start = at + 4 + inline
    if size > inline:
        start = found.integer(start, inline)
    if not size or start + size > len(found.data):
        return None
    return Tag(found.integer(at, 2), kind, count, start, start + size)
