"""Boxes of an ISO base media file (HEIC, HEIF, AVIF), and its EXIF and XMP items."""

from dataclasses import dataclass

from detector.evidence.containers.parts import Layout, Part

C2PA_UUID = bytes.fromhex("d8fec3d61b0e483c92975828877ec481")
XMP_UUID = bytes.fromhex("be7acfcb97a942e89c71999491e3afac")
UUIDS = {C2PA_UUID: ("uuid C2PA", "c2pa"), XMP_UUID: ("uuid XMP", "xmp")}
BRANDS = frozenset(b"heic heix heim heis hevc hevx hevm hevs mif1 msf1 avif avis miaf".split())
# What may stand at the top; any other name there is something appended.
TOP_LEVEL = frozenset(
    b"ftyp styp meta mdat idat free skip wide moov moof mfra uuid sidx ssix emsg prft pdin mpvd jumb".split()
)
MAX_ITEMS = 4096


@dataclass(frozen=True)
class Box:
    """One box: `start` and `stop` bound its payload."""

    kind: bytes
    offset: int
    start: int
    stop: int


def walk(data: bytes, max_parts: int) -> Layout:
    """The top-level boxes, the sizes that `ispe` states, and the metadata items of `meta`."""
    layout = Layout("HEIF", end=len(data))
    boxes = _boxes(layout, data, 0, len(data), max_parts)
    for box in boxes:
        name, carrier = box.kind.decode("latin-1"), ""
        start = box.start
        if box.kind == b"uuid":
            name, carrier = UUIDS.get(data[start : start + 16], ("uuid", ""))
            start = min(start + 16, box.stop)
        layout.parts.append(Part(name, box.offset, box.stop - box.offset, start, box.stop, carrier))
        if box.kind == b"meta":
            _meta(layout, data, box)
    return layout


def _boxes(layout: Layout, data: bytes, start: int, stop: int, limit: int) -> list[Box]:
    """The boxes that fill start..stop; the layout's end moves to where top-level boxes stop making sense."""
    found: list[Box] = []
    position, top_level = start, (start, stop) == (0, len(data))
    while position + 8 <= stop and len(found) < limit:
        size, kind = int.from_bytes(data[position : position + 4], "big"), data[position + 4 : position + 8]
        header = 8
        if size == 1:
            size, header = int.from_bytes(data[position + 8 : position + 16], "big"), 16
        elif size == 0 and kind == b"mdat":
            size = stop - position
        if size < header or position + size > stop or not _is_name(kind, top_level):
            break
        found.append(Box(kind, position, position + header, position + size))
        position += size
    if top_level:
        layout.end = position
    return found


def _is_name(kind: bytes, top_level: bool) -> bool:
    if top_level:
        return kind in TOP_LEVEL
    return all(32 <= byte < 127 or byte == 0xA9 for byte in kind)


def _meta(layout: Layout, data: bytes, meta: Box) -> None:
    children = {box.kind: box for box in reversed(_boxes(layout, data, meta.start + 4, meta.stop, 256))}
    _size(layout, data, children.get(b"iprp"))
    if b"iinf" not in children or b"iloc" not in children:
        return
    wanted = _items(layout, data, children[b"iinf"])
    inline = children.get(b"idat")
    for item, spans in _locations(data, children[b"iloc"], inline).items():
        if item not in wanted or not spans:
            continue
        name, carrier = wanted[item]
        start, length = spans[0]
        if len(spans) > 1:
            layout.warn("limit", f"{name} is stored in {len(spans)} pieces and was not read")
        elif start + length > len(data) or not length:
            layout.warn("damage", f"{name} lies outside the file")
        else:
            skip = _exif_skip(data, start, length) if carrier == "exif" else 0
            layout.parts.append(Part(name, start, length, start + skip, start + length, carrier))


def _exif_skip(data: bytes, start: int, length: int) -> int:
    """Bytes before the TIFF header: a 4-byte offset field and what it says to skip."""
    return min(length, 4 + int.from_bytes(data[start : start + 4], "big"))


def _size(layout: Layout, data: bytes, iprp: Box | None) -> None:
    """The largest size that an `ispe` property states: grids state that of their tiles as well."""
    properties = _boxes(layout, data, iprp.start, iprp.stop, 16) if iprp else []
    for ipco in (box for box in properties if box.kind == b"ipco"):
        for box in _boxes(layout, data, ipco.start, ipco.stop, MAX_ITEMS):
            if box.kind == b"ispe" and box.stop - box.start >= 12:
                sides = [int.from_bytes(data[box.start + at : box.start + at + 4], "big") for at in (4, 8)]
                if sides[0] * sides[1] > layout.width * layout.height:
                    layout.width, layout.height = sides


def _items(layout: Layout, data: bytes, iinf: Box) -> dict[int, tuple[str, str]]:
    """Item number -> (name, carrier) of the EXIF and XMP items."""
    version = data[iinf.start] if iinf.start < iinf.stop else 0
    first = iinf.start + (6 if version == 0 else 8)
    wanted = {}
    for box in _boxes(layout, data, first, iinf.stop, MAX_ITEMS):
        if box.kind != b"infe" or box.stop - box.start < 12:
            continue
        version = data[box.start]
        width = 2 if version == 2 else 4
        at = box.start + 4
        kind = data[at + width + 2 : at + width + 6]
        item = int.from_bytes(data[at : at + width], "big")
        if kind == b"Exif":
            wanted[item] = ("item Exif", "exif")
        elif kind == b"mime" and b"application/rdf+xml" in data[at + width + 6 : box.stop]:
            wanted[item] = ("item XMP", "xmp")
    return wanted


class _Cursor:
    """Big-endian integers one after the other, within a box."""

    def __init__(self, data: bytes, start: int, stop: int) -> None:
        self.data, self.at, self.stop = data, start, stop

    def take(self, size: int) -> int:
        value = int.from_bytes(self.data[self.at : min(self.at + size, self.stop)], "big")
        self.at += size
        return value


def _locations(data: bytes, iloc: Box, idat: Box | None) -> dict[int, list[tuple[int, int]]]:
    """Item number -> (start, length) of each of its pieces, in file coordinates."""
    cursor = _Cursor(data, iloc.start, iloc.stop)
    version = cursor.take(1)
    cursor.take(3)
    sizes, bases = cursor.take(1), cursor.take(1)
    offset_size, length_size, base_size = sizes >> 4, sizes & 15, bases >> 4
    index_size = bases & 15 if version in (1, 2) else 0
    wide = 4 if version == 2 else 2
    found: dict[int, list[tuple[int, int]]] = {}
    for _ in range(min(cursor.take(wide), MAX_ITEMS)):
        if cursor.at >= iloc.stop:
            break
        item = cursor.take(wide)
        method = cursor.take(2) & 15 if version in (1, 2) else 0
        cursor.take(2)
        base = cursor.take(base_size)
        spans = []
        for _ in range(min(cursor.take(2), 64)):
            cursor.take(index_size)
            spans.append((base + cursor.take(offset_size), cursor.take(length_size)))
        if method == 1 and idat is not None:
            spans = [(start + idat.start, length) for start, length in spans]
        found[item] = spans if method in (0, 1) else []
    return found
