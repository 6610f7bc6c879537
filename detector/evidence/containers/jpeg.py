"""JPEG segments, from SOI to the first EOI."""

import re

from detector.evidence.containers.parts import Layout, Part

MARKER = re.compile(rb"\xff[^\x00\xd0-\xd7\xff]")  # neither stuffing, restart nor fill
STANDALONE = {0x01, 0xD8}
EOI, SOS, COM = 0xD9, 0xDA, 0xFE
FRAMES = {0xC0, 0xC1, 0xC2, 0xC3, 0xC5, 0xC6, 0xC7, 0xC9, 0xCA, 0xCB, 0xCD, 0xCE, 0xCF}
XMP = b"http://ns.adobe.com/xap/1.0/\0"
EXTENDED_XMP = b"http://ns.adobe.com/xmp/extension/\0"
# (marker, first bytes of the payload) -> (name, carrier); the payload proper follows those bytes.
CARRIERS = {
    (0xE0, b"JFIF\0"): ("APP0 JFIF", ""),
    (0xE1, b"Exif\0\0"): ("APP1 Exif", "exif"),
    (0xE1, b"Exif\0\xff"): ("APP1 Exif", "exif"),
    (0xE1, XMP): ("APP1 XMP", "xmp"),
    (0xE1, EXTENDED_XMP): ("APP1 extended XMP", "extended-xmp"),
    (0xE2, b"ICC_PROFILE\0"): ("APP2 ICC", ""),
    (0xE2, b"MPF\0"): ("APP2 MPF", "mpf"),
    (0xEB, b"JP"): ("APP11 JUMBF", "c2pa"),
    (0xED, b"Photoshop 3.0\0"): ("APP13 Photoshop", "photoshop"),
    (0xEE, b"Adobe"): ("APP14 Adobe", ""),
}


def walk(data: bytes, max_parts: int) -> Layout:
    """The segments of a JPEG; entropy-coded data stand as parts named `scan data`."""
    layout = Layout("JPEG", end=len(data))
    position = 2
    while len(layout.parts) < max_parts:
        match = MARKER.search(data, position)
        if match is None:
            layout.warn("damage", "the JPEG has no end marker; it may be cut short")
            return layout
        _gap(layout, position, match.start())
        marker, position = data[match.start() + 1], match.end()
        if marker == EOI:
            layout.end = position
            return layout
        if marker not in STANDALONE:
            position = _segment(layout, data, marker, match.start())
            if position == 0:
                return layout
    layout.warn("limit", f"only the first {max_parts:,} segments were read")
    return layout


def _gap(layout: Layout, start: int, stop: int) -> None:
    """Bytes between segments: coded pixels after a scan header, garbage elsewhere."""
    if stop <= start:
        return
    after_scan = any(part.name in ("SOS", "scan data") for part in layout.parts[-2:])
    layout.parts.append(
        Part("scan data" if after_scan else "bytes between segments", start, stop - start, start, stop)
    )


def _segment(layout: Layout, data: bytes, marker: int, offset: int) -> int:
    """Where the segment ends, after noting it; 0 when its length makes no sense."""
    length = int.from_bytes(data[offset + 2 : offset + 4], "big")
    stop = offset + 2 + length
    if length < 2 or stop > len(data):
        layout.warn(
            "damage", f"the segment 0xFF{marker:02X} at byte {offset:,} is cut short; reading ends there"
        )
        return 0
    name, carrier, skip = _identify(data, marker, offset + 4, stop)
    layout.parts.append(Part(name, offset, stop - offset, offset + 4 + skip, stop, carrier))
    if marker in FRAMES and length >= 7 and not layout.width:
        layout.height = int.from_bytes(data[offset + 5 : offset + 7], "big")
        layout.width = int.from_bytes(data[offset + 7 : offset + 9], "big")
    return stop


def _identify(data: bytes, marker: int, start: int, stop: int) -> tuple[str, str, int]:
    for (known, prefix), (name, carrier) in CARRIERS.items():
        if marker == known and data.startswith(prefix, start, stop):
            return name, carrier, len(prefix)
    if marker == COM:
        return "COM", "comment", 0
    if marker == SOS:
        return "SOS", "", 0
    if 0xE0 <= marker <= 0xEF:
        return f"APP{marker - 0xE0}", "", 0
    return {0xDB: "DQT", 0xC4: "DHT", 0xDD: "DRI"}.get(marker, f"0xFF{marker:02X}"), "", 0
