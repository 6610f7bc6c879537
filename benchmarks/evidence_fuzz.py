"""Mutated files through every parser of the file evidence."""

import io
import random
import struct
import time
import zlib
from collections import Counter
from typing import Any

from evidence_files import picture, png_chunk, xmp_bytes
from PIL import Image

from detector.evidence import EvidenceOptions, FileEvidence, examine


def measure_fuzz(count: int, seed: int = 0) -> dict[str, Any]:
    """Mutated files through every parser but the pixel decoders; any check that fails is a bug."""
    generator = random.Random(seed)
    seeds = fuzz_seeds()
    options = EvidenceOptions(pixels=False, max_text_bytes=2**16)
    failures: Counter = Counter()
    slowest, start = 0.0, time.process_time()
    outcomes: Counter = Counter()
    for number in range(count):
        data = mutate(generator, seeds[number % len(seeds)], generator.choice(seeds))
        before = time.process_time()
        evidence = examine(data, options)
        slowest = max(slowest, time.process_time() - before)
        outcomes[evidence.container or "none"] += 1
        for row in evidence.warnings:
            if row.text.startswith("the check "):
                failures[row.text] += 1
        if number % 1000 == 0:
            FileEvidence.model_validate_json(evidence.model_dump_json())
    return {
        "inputs": count,
        "seed_files": len(seeds),
        "seed": seed,
        "failed_checks": dict(failures.most_common(20)),
        "slowest_s": round(slowest, 4),
        "cpu_s": round(time.process_time() - start, 1),
        "containers": dict(outcomes),
    }


def fuzz_seeds() -> list[bytes]:
    """Small files of every container with every carrier, of our own making."""
    exif = Image.Exif()
    exif[0x010F], exif[0x0110], exif[0x0131] = "Maker", 'workflow:{"nodes":[{"type":"KSampler"}]}', "NovelAI"
    exif.get_ifd(0x8769)[0x9286] = b"UNICODE\0" + "a\nSteps: 5, Sampler: Euler, Seed: 1".encode("utf-16-be")
    image, seeds = Image.new("RGB", (8, 8), "red"), []
    for codec in ("JPEG", "PNG", "WEBP", "AVIF", "TIFF", "GIF"):
        buffer = io.BytesIO()
        extra = {} if codec == "GIF" else {"exif": exif.tobytes() if codec != "TIFF" else exif}
        if codec in ("JPEG", "WEBP", "AVIF"):
            extra["xmp"] = xmp_bytes()
        image.save(buffer, codec, **extra)
        data = buffer.getvalue()
        if codec == "GIF":
            # Pillow writes no XMP into GIF.
            trailer = b"\x01" + bytes(range(255, -1, -1)) + b"\0"
            data = data[:-1] + b"\x21\xff\x0bXMP DataXMP" + xmp_bytes() + trailer + data[-1:]
        seeds.append(data)
    png = picture("PNG", side=4)
    texts = [
        png_chunk(b"tEXt", b"parameters\0a\nSteps: 5, Sampler: Euler, Seed: 1"),
        png_chunk(b"zTXt", b"prompt\0\0" + zlib.compress(b'{"1":{"class_type":"KSampler","inputs":{}}}')),
        png_chunk(b"iTXt", b"XML:com.adobe.xmp\0\0\0\0\0" + xmp_bytes()),
        png_chunk(
            b"tEXt", b"Raw profile type iptc\0\niptc\n      20\n3842494d04040000000000081c026e0003616263\n"
        ),
    ]
    seeds.append(png[:33] + b"".join(texts) + png[33:])
    resource_block = b"Photoshop 3.0\0" + bytes.fromhex("3842494d04040000000000081c026e0003616263")
    jpeg = picture("JPEG", side=8)
    seeds.append(
        jpeg[:2] + b"\xff\xed" + struct.pack(">H", 2 + len(resource_block)) + resource_block + jpeg[2:]
    )
    return seeds


def mutate(generator: random.Random, seed: bytes, other: bytes) -> bytes:
    """A seed with one to sixteen changes."""
    data = bytearray(seed)
    for _ in range(generator.choice((1, 1, 2, 4, 16))):
        at = generator.randrange(len(data)) if data else 0
        generator.choice(MUTATIONS)(generator, data, at, other)
    # Half of the PNGs get right checksums again, so that their texts are reached.
    if data.startswith(b"\x89PNG") and generator.random() < 0.5:
        return repair(bytes(data))
    return bytes(data)


def set_byte(generator: random.Random, data: bytearray, at: int, other: bytes) -> None:
    """Overwrites one byte."""
    data[at : at + 1] = bytes([generator.choice((0, 1, 0x7F, 0x80, 0xFF, generator.randrange(256)))])


def set_integer(generator: random.Random, data: bytearray, at: int, other: bytes) -> None:
    """Overwrites four bytes with a telling number."""
    value = generator.choice((0, 1, 8, 0x7FFFFFFF, 0xFFFFFFFF, 0xFFFF, len(data), at))
    data[at : at + 4] = value.to_bytes(4, generator.choice(("big", "little")))


def cut(generator: random.Random, data: bytearray, at: int, other: bytes) -> None:
    """Removes up to 63 bytes."""
    del data[at : at + generator.randrange(1, 64)]


def repeat(generator: random.Random, data: bytearray, at: int, other: bytes) -> None:
    """Repeats up to 63 bytes."""
    data[at:at] = data[at : at + generator.randrange(1, 64)] * generator.randrange(1, 4)


def splice(generator: random.Random, data: bytearray, at: int, other: bytes) -> None:
    """Inserts bytes of another seed."""
    start = generator.randrange(len(other))
    data[at:at] = other[start : start + generator.randrange(1, 200)]


def truncate(generator: random.Random, data: bytearray, at: int, other: bytes) -> None:
    """Ends the file here."""
    del data[at:]


MUTATIONS = (set_byte, set_byte, set_byte, set_integer, set_integer, cut, repeat, splice, truncate)


def repair(data: bytes) -> bytes:
    """The PNG with right checksums."""
    pieces, position = [data[:8]], 8
    while position + 12 <= len(data):
        length = int.from_bytes(data[position : position + 4], "big")
        if position + 12 + length > len(data):
            break
        body = data[position + 4 : position + 8 + length]
        pieces.append(data[position : position + 4] + body + struct.pack(">I", zlib.crc32(body)))
        position += 12 + length
    return b"".join(pieces) + data[position:]
