"""Chunks of a WebP file, within the size that its RIFF header states."""

from detector.evidence.containers.parts import Layout, Part

CARRIERS = {b"EXIF": "exif", b"XMP ": "xmp", b"C2PA": "c2pa"}


def walk(data: bytes, max_parts: int) -> Layout:
    """The chunks of a WebP."""
    layout = Layout("WEBP")
    stated = 8 + int.from_bytes(data[4:8], "little")
    layout.end = min(stated, len(data))
    if stated > len(data):
        layout.warn("damage", "the WebP states more bytes than the file holds; it may be cut short")
    position = 12
    while position + 8 <= layout.end and len(layout.parts) < max_parts:
        kind, length = (
            data[position : position + 4],
            int.from_bytes(data[position + 4 : position + 8], "little"),
        )
        stop = position + 8 + length
        if stop > layout.end:
            layout.warn("damage", f"the chunk at byte {position:,} is cut short; reading ends there")
            return layout
        name = kind.decode("ascii", "replace").strip()
        layout.parts.append(Part(name, position, 8 + length, position + 8, stop, CARRIERS.get(kind, "")))
        _size(layout, kind, data[position + 8 : min(stop, position + 18)])
        position = stop + length % 2
    if len(layout.parts) >= max_parts:
        layout.warn("limit", f"only the first {max_parts:,} chunks were read")
    return layout


def _size(layout: Layout, kind: bytes, head: bytes) -> None:
    """The canvas size, from whichever chunk states it first."""
    if layout.width or len(head) < 10:
        return
    if kind == b"VP8X":
        layout.width = 1 + int.from_bytes(head[4:7], "little")
        layout.height = 1 + int.from_bytes(head[7:10], "little")
    elif kind == b"VP8 ":
        layout.width = int.from_bytes(head[6:8], "little") & 0x3FFF
        layout.height = int.from_bytes(head[8:10], "little") & 0x3FFF
    elif kind == b"VP8L":
        bits = int.from_bytes(head[1:5], "little")
        layout.width, layout.height = 1 + (bits & 0x3FFF), 1 + (bits >> 14 & 0x3FFF)
