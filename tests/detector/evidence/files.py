"""Small picture files of our own making, with metadata in right and wrong places."""

import io
import struct
import zlib

import numpy as np
from PIL import Image

A1111 = (
    "a red cat, best quality\nNegative prompt: blurry\n"
    "Steps: 20, Sampler: Euler a, CFG scale: 7, Seed: 42, Size: 512x512, Model: toy"
)
TRAINED = "http://cv.iptc.org/newscodes/digitalsourcetype/trainedAlgorithmicMedia"
GRAPH = (
    '{"3": {"class_type": "KSampler", "inputs": {"seed": 5, "steps": 20, "cfg": 8, "sampler_name": "euler"}}}'
)
WORKFLOW = '{"nodes": [{"id": 3, "type": "KSampler"}], "links": []}'


def structured(seed: int = 0, width: int = 96, height: int = 64) -> Image.Image:
    """A picture with structure at a coarse scale, different for every seed."""
    coarse = np.random.default_rng(seed).integers(0, 256, (6, 8, 3), dtype=np.uint8)
    return Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC)


def encode(image: Image.Image | None = None, codec: str = "JPEG", **options) -> bytes:
    buffer = io.BytesIO()
    (image or structured()).save(buffer, codec, **options)
    return buffer.getvalue()


def jpeg_with(marker: int, payload: bytes, jpeg: bytes | None = None) -> bytes:
    """The JPEG with one more segment behind SOI."""
    jpeg = jpeg or encode()
    return jpeg[:2] + bytes([0xFF, marker]) + struct.pack(">H", len(payload) + 2) + payload + jpeg[2:]


def chunk(kind: bytes, body: bytes, crc: int | None = None) -> bytes:
    checksum = zlib.crc32(kind + body) if crc is None else crc
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", checksum)


def png_with(*chunks: bytes) -> bytes:
    """A PNG with more chunks behind its header."""
    png = encode(codec="PNG")
    return png[:33] + b"".join(chunks) + png[33:]


def text_chunk(key: str, value: str) -> bytes:
    return chunk(b"tEXt", key.encode() + b"\0" + value.encode())


def xmp(inner: str = "", attributes: str = "") -> bytes:
    return (
        '<?xpacket begin="" id="W5M0MpCehiHzreSzNTczkc9d"?><x:xmpmeta xmlns:x="adobe:ns:meta/">'
        '<rdf:RDF xmlns:rdf="http://www.w3.org/1999/02/22-rdf-syntax-ns#"><rdf:Description '
        'xmlns:xmp="http://ns.adobe.com/xap/1.0/" xmlns:photoshop="http://ns.adobe.com/photoshop/1.0/" '
        'xmlns:exif="http://ns.adobe.com/exif/1.0/" xmlns:dcterms="http://purl.org/dc/terms/" '
        f'xmlns:Iptc4xmpExt="http://iptc.org/std/Iptc4xmpExt/2008-02-29/" {attributes}>{inner}'
        "</rdf:Description></rdf:RDF></x:xmpmeta>"
    ).encode()


def trained_xmp() -> bytes:
    return xmp(attributes=f'Iptc4xmpExt:DigitalSourceType="{TRAINED}"')


def with_xmp(codec: str) -> bytes:
    """A picture that states trainedAlgorithmicMedia; Pillow writes no XMP into GIF."""
    if codec != "GIF":
        return encode(codec=codec, xmp=trained_xmp())
    gif = encode(codec="GIF")
    trailer = b"\x01" + bytes(range(255, -1, -1)) + b"\0"
    return gif[:-1] + b"\x21\xff\x0bXMP DataXMP" + trained_xmp() + trailer + gif[-1:]


def exif_block(
    texts: dict[int, str] | None = None, comment: str = "", camera: bool = False, order: str = "big"
) -> bytes:
    """An EXIF block with IFD0 texts, a user comment in UTF-16, and camera settings when asked for."""
    exif = Image.Exif()
    exif.endian = {"big": ">", "little": "<"}[order]
    for tag, text in (texts or {}).items():
        exif[tag] = text
    inner = exif.get_ifd(0x8769)
    if comment:
        inner[0x9286] = b"UNICODE\0" + comment.encode("utf-16-be" if order == "big" else "utf-16-le")
    if camera:
        exif[0x010F], exif[0x0110] = "Toy", "Toy Camera 1"
        inner[0x9003], inner[0x829A], inner[0x829D], inner[0x8827] = "2020:01:02 03:04:05", 0.01, 2.8, 200
    return exif.tobytes()
