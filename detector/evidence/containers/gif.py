"""Blocks of a GIF, from its header to the trailer."""

from detector.evidence.containers.parts import Layout, Part

APPLICATIONS = {
    b"XMP DataXMP": ("application XMP", "xmp-gif"),
    b"C2PA_GIF\x01\0\0": ("application C2PA", "c2pa"),
}


def walk(data: bytes, max_parts: int) -> Layout:
    """The extensions and frames of a GIF."""
    layout = Layout("GIF", end=len(data))
    if len(data) < 13:
        layout.warn("damage", "the GIF is cut short")
        return layout
    layout.width, layout.height = (int.from_bytes(data[at : at + 2], "little") for at in (6, 8))
    position = 13 + _table(data[10])
    while position < len(data) and len(layout.parts) < max_parts:
        lead = data[position]
        if lead == 0x3B:
            layout.end = position + 1
            return layout
        step = {0x21: _extension, 0x2C: _frame}.get(lead)
        after = step(layout, data, position) if step else 0
        if not after:
            break
        position = after
    layout.warn("damage", f"the GIF has no trailer; reading ends at byte {position:,}")
    return layout


def _table(flags: int) -> int:
    return 3 << ((flags & 7) + 1) if flags & 0x80 else 0


def _skip(data: bytes, position: int) -> int:
    """First byte after the sub-blocks at `position`, or 0 when they are cut short."""
    while position < len(data):
        if not data[position]:
            return position + 1
        position += 1 + data[position]
    return 0


def _extension(layout: Layout, data: bytes, offset: int) -> int:
    label = data[offset + 1] if offset + 1 < len(data) else 0
    stop = _skip(data, offset + 2)
    name, carrier, start = {0xFE: "comment", 0xF9: "graphic control"}.get(label, "extension"), "", offset + 2
    if label == 0xFE:
        carrier = "comment-gif"
    elif label == 0xFF:
        name, carrier = APPLICATIONS.get(data[offset + 3 : offset + 14], ("application", ""))
        start = offset + 14
    if stop:
        layout.parts.append(Part(name, offset, stop - offset, min(start, stop), stop, carrier))
    return stop


def _frame(layout: Layout, data: bytes, offset: int) -> int:
    if offset + 10 > len(data):
        return 0
    stop = _skip(data, offset + 11 + _table(data[offset + 9]))
    if stop:
        layout.parts.append(Part("frame", offset, stop - offset, offset + 10, stop))
    return stop


def join_blocks(payload: bytes) -> bytes:
    """The bytes of a run of sub-blocks, without their length bytes."""
    pieces, position = [], 0
    while position < len(payload) and payload[position]:
        pieces.append(payload[position + 1 : position + 1 + payload[position]])
        position += 1 + payload[position]
    return b"".join(pieces)
