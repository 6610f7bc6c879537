"""Generation parameters hidden in the lowest bits of pixels ("stealth PNG info")."""

import json
import zlib

import numpy as np
from numpy.typing import NDArray

from detector.evidence.carriers import Metadata, Text
from detector.evidence.findings import EvidenceOptions, Finding, Place
from detector.evidence.generation import find_generation

# Signature -> (bits come from the colours instead of alpha, text is gzipped).
SIGNATURES = {
    b"stealth_pnginfo": (False, False),
    b"stealth_pngcomp": (False, True),
    b"stealth_rgbinfo": (True, False),
    b"stealth_rgbcomp": (True, True),
}
HEADER_BITS = (15 + 4) * 8
GZIP = 16 + zlib.MAX_WBITS


def find_stealth(pixels: NDArray[np.uint8], options: EvidenceOptions) -> list[Finding]:
    """Rows for parameters hidden in an RGBA or RGB picture, (H, W, 3 or 4), as stored."""
    text = read_stealth(pixels, options.max_text_bytes)
    if text is None:
        return []
    place = Place(part="lowest bits of the pixels", offset=0, length=0)
    metadata = Metadata(texts=[Text(key, value, place) for key, value in _fields(text).items()])
    return [
        row.model_copy(
            update={
                "kind": "watermark",
                "confidence": "embedded",
                "text": f"hidden in the pixels: {row.text}",
            }
        )
        for row in find_generation(metadata, options)
    ]


def _fields(text: str) -> dict[str, str]:
    try:
        parsed = json.loads(text)
    except (ValueError, RecursionError):
        parsed = None
    fields = {"parameters": text}
    if isinstance(parsed, dict):
        fields |= {
            str(key): value if isinstance(value, str) else json.dumps(value) for key, value in parsed.items()
        }
    return fields


def read_stealth(pixels: NDArray[np.uint8], max_bytes: int) -> str | None:
    """The hidden text, or None when no signature stands in the lowest bits."""
    for use_colours, source in ((False, pixels[..., 3:4]), (True, pixels[..., :3])):
        if source.shape[-1] == 0:
            continue
        head = _bits(source, HEADER_BITS)
        signature = SIGNATURES.get(head[:15])
        if signature is None or signature[0] != use_colours or len(head) < 19:
            continue
        length = int.from_bytes(head[15:19], "big")
        body = _bits(source, min(HEADER_BITS + length, HEADER_BITS + 8 * max_bytes))[19:]
        return _unpack(body, signature[1], max_bytes)
    return None


def _bits(source: NDArray[np.uint8], count: int) -> bytes:
    """The first `count` lowest bits, column by column, packed."""
    height, _, channels = source.shape
    columns = -(-count // (height * channels))
    lowest = source[:, :columns].transpose(1, 0, 2).reshape(-1)[:count] & 1
    return np.packbits(lowest).tobytes()


def _unpack(body: bytes, zipped: bool, max_bytes: int) -> str | None:
    if not zipped:
        return body.decode("utf-8", "replace")
    try:
        return zlib.decompressobj(GZIP).decompress(body, max_bytes).decode("utf-8", "replace") or None
    except zlib.error:
        return None
