"""PNG chunks, each with its checksum verified, from the signature to IEND."""

import zlib

from detector.evidence.containers.parts import Layout, Part

SIGNATURE = b"\x89PNG\r\n\x1a\n"
XMP_KEY = "XML:com.adobe.xmp"
CARRIERS = {b"eXIf": "exif", b"caBX": "c2pa", b"tEXt": "text", b"zTXt": "text", b"iTXt": "text"}
LETTERS = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz")


def walk(data: bytes, max_parts: int) -> Layout:
    """The chunks of a PNG; a chunk whose checksum is wrong keeps its place but carries nothing."""
    layout = Layout("PNG", end=len(data))
    position = len(SIGNATURE)
    while len(layout.parts) < max_parts:
        length = int.from_bytes(data[position : position + 4], "big")
        kind = data[position + 4 : position + 8]
        stop = position + 8 + length
        if len(kind) < 4 or not LETTERS.issuperset(kind) or stop + 4 > len(data):
            layout.warn("damage", f"the PNG has no end chunk; reading ends at byte {position:,}")
            return layout
        _chunk(layout, data, kind, position, stop)
        position = stop + 4
        if kind == b"IEND":
            layout.end = position
            return layout
    layout.warn("limit", f"only the first {max_parts:,} chunks were read")
    return layout


def _chunk(layout: Layout, data: bytes, kind: bytes, offset: int, stop: int) -> None:
    name = kind.decode("ascii")
    carrier, key = CARRIERS.get(kind, ""), ""
    if carrier == "text":
        key = data[offset + 8 : min(stop, offset + 88)].split(b"\0", 1)[0].decode("latin-1")
        name = f"{name} {key}".strip()
    part = Part(name, offset, stop + 4 - offset, offset + 8, stop, carrier, key)
    crc = int.from_bytes(data[stop : stop + 4], "big")
    if carrier and zlib.crc32(memoryview(data)[offset + 4 : stop]) != crc:
        layout.warn("damage", f"the checksum of chunk {name} is wrong; the chunk was ignored", part.place)
        part = Part(name, offset, part.length, part.start, stop)
    layout.parts.append(part)
    if kind == b"IHDR" and stop - offset >= 16 and not layout.width:
        layout.width = int.from_bytes(data[offset + 8 : offset + 12], "big")
        layout.height = int.from_bytes(data[offset + 12 : offset + 16], "big")


def read_text(chunk: str, payload: bytes, max_bytes: int) -> str:
    """The text of a tEXt, zTXt or iTXt payload.

    Raises:
        ValueError: the chunk is malformed, or its text exceeds `max_bytes`.
    """
    _, separator, rest = payload.partition(b"\0")
    if not separator:
        raise ValueError("the chunk has no keyword")
    if chunk == "tEXt":
        return _capped(rest, max_bytes).decode("utf-8" if _is_utf8(rest) else "latin-1")
    if chunk == "zTXt":
        raw = inflate(rest[1:], max_bytes)
        return raw.decode("utf-8" if _is_utf8(raw) else "latin-1")
    compressed, fields = rest[:1] == b"\x01", rest[2:].split(b"\0", 2)
    if len(rest) < 2 or len(fields) != 3:
        raise ValueError("the international text lacks its language fields")
    body = inflate(fields[2], max_bytes) if compressed else _capped(fields[2], max_bytes)
    return body.decode("utf-8", "replace")


def inflate(packed: bytes, max_bytes: int) -> bytes:
    """The decompressed bytes.

    Raises:
        ValueError: damaged, cut short, or larger than `max_bytes`.
    """
    stream = zlib.decompressobj()
    try:
        raw = stream.decompress(packed, max_bytes + 1)
    except zlib.error as error:
        raise ValueError(f"the compressed text is damaged: {error}") from error
    if not stream.eof and len(raw) <= max_bytes:
        raise ValueError("the compressed text is cut short")
    return _capped(raw, max_bytes)


def _capped(raw: bytes, max_bytes: int) -> bytes:
    if len(raw) > max_bytes:
        raise ValueError(f"the text has more than {max_bytes:,} bytes")
    return raw


def _is_utf8(raw: bytes) -> bool:
    # The standard says Latin-1, generators write UTF-8.
    try:
        raw.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True
