"""Container facts of stored pictures, read from their first bytes without decoding a pixel.

These are the facts a detector could learn instead of the pictures: format, size, bytes spent,
JPEG tables, metadata. `mirage.bias.features` turns them into numbers.
"""

import io
import struct
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache

from PIL import Image

from mirage.decode import FORMATS
from mirage.errors import UnreadableImage

CONTAINERS = (*FORMATS, "HEIC", "unknown")
MODES = ("grey", "grey+alpha", "palette", "colour", "colour+alpha", "cmyk", "other")
SUBSAMPLINGS = ("4:4:4", "4:2:2", "4:2:0", "4:4:0", "4:1:1", "other")

# The luma table of the JPEG standard (Annex K), which encoders scale by their quality setting.
STANDARD_LUMA = (
    *(16, 11, 10, 16, 24, 40, 51, 61, 12, 12, 14, 19, 26, 58, 60, 55),
    *(14, 13, 16, 24, 40, 57, 69, 56, 14, 17, 22, 29, 51, 87, 80, 62),
    *(18, 22, 37, 56, 68, 109, 103, 77, 24, 35, 55, 64, 81, 104, 113, 92),
    *(49, 64, 78, 87, 103, 121, 120, 101, 72, 92, 95, 98, 112, 100, 103, 99),
)


@dataclass(frozen=True)
class Header:
    """What a picture file says about itself.

    Attributes:
        format: of the container, as `mirage.decode` names it.
        width: in pixels, as stored: a JPEG's EXIF orientation is not applied.
        height: in pixels, as stored.
        file_bytes: of the whole file.
        mode: one of `MODES`.
        depth: bits per channel; None when the header does not say.
        luma_table: a JPEG's 64 quantisation steps in zigzag order; empty for other formats.
        chroma_table: the same for the colour channels; empty for grey.
        subsampling: of chroma, one of `SUBSAMPLINGS`; None for grey, lossless and unknown.
        progressive: whether the picture is stored in several passes.
        lossless: None where both exist and the header was not asked.
        exif: whether EXIF data is present.
        icc: whether a colour profile is present.
        text: whether XMP, a comment or a PNG text is present.
    """

    format: str
    width: int
    height: int
    file_bytes: int
    mode: str
    depth: int | None = 8
    luma_table: tuple[int, ...] = ()
    chroma_table: tuple[int, ...] = ()
    subsampling: str | None = None
    progressive: bool = False
    lossless: bool | None = None
    exif: bool = False
    icc: bool = False
    text: bool = False

    @property
    def aspect(self) -> float:
        """Width over height."""
        return self.width / self.height

    @property
    def bytes_per_pixel(self) -> float:
        """File size over the number of pixels."""
        return self.file_bytes / (self.width * self.height)

    @property
    def quality(self) -> int | None:
        """The standard JPEG quality, 1..100, whose luma table has the sum nearest to this one's."""
        if not self.luma_table:
            return None
        wanted = sum(self.luma_table)
        return min(range(1, 101), key=lambda quality: abs(standard_sum(quality) - wanted))


@lru_cache(maxsize=100)
def standard_sum(quality: int) -> int:
    """The sum of the standard luma table scaled to a quality, 1..100, as libjpeg does."""
    scale = 5000 // quality if quality < 50 else 200 - 2 * quality
    return sum(min(max((step * scale + 50) // 100, 1), 255) for step in STANDARD_LUMA)


def read_header(data: bytes, file_bytes: int | None = None) -> Header:
    """The container facts in `data`.

    Args:
        data: the whole file, or its beginning.
        file_bytes: of the whole file; None when `data` is all of it.

    Raises:
        UnreadableImage: the bytes are no picture, or end within its header.
    """
    try:
        header = _reader(data)(data)
    except UnreadableImage:
        raise
    except Exception as error:
        # A damaged header can lead any of the readers astray, Pillow's included.
        raise UnreadableImage(f"the picture's header is damaged or cut short: {error!r}"[:200]) from error
    if not (header.width and header.height):
        raise UnreadableImage(f"the picture's header claims {header.width} x {header.height} px")
    return replace(header, file_bytes=len(data) if file_bytes is None else file_bytes)


def _reader(data: bytes) -> Callable[[bytes], Header]:
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return _read_webp
    if data[4:8] == b"ftyp":
        return _read_boxes
    return next((reader for magic, reader in READERS.items() if data.startswith(magic)), _read_any)


def _read_jpeg(data: bytes) -> Header:
    """Walks the segments up to the first scan; sizes and tables all stand before it."""
    tables: dict[int, tuple[int, ...]] = {}
    facts: set[str] = set()
    frame: tuple[int, bytes] | None = None
    position = 2
    while (marker := data[position + 1]) != 0xDA:
        if marker == 0xFF or data[position] != 0xFF:  # fill bytes, or rubbish that decoders skip
            position += 1
            continue
        (length,) = struct.unpack_from(">H", data, position + 2)
        body = data[position + 4 : position + 2 + length]
        position += 2 + length
        if marker == 0xDB:
            tables |= _quantisation_tables(body)
        elif marker in range(0xC0, 0xD0) and marker not in (0xC4, 0xC8, 0xCC):
            frame = marker, body
        facts |= {fact for prefix, fact in JPEG_METADATA.items() if body.startswith(prefix)}
        facts |= {"text"} if marker == 0xFE else set()
    if frame is None:
        raise UnreadableImage("the JPEG has no frame header before its first scan")
    return _jpeg_header(*frame, tables, facts)


JPEG_METADATA = {b"Exif\0": "exif", b"ICC_PROFILE\0": "icc", b"http://ns.adobe.com/xap/": "text"}


def _jpeg_header(marker: int, frame: bytes, tables: dict[int, tuple[int, ...]], facts: set[str]) -> Header:
    depth, height, width, channels = struct.unpack_from(">BHHB", frame)
    parts = [struct.unpack_from("BBB", frame, 6 + 3 * number) for number in range(channels)]
    luma, chroma = parts[0], parts[1] if channels >= 3 else None
    mode = {1: "grey", 3: "colour", 4: "cmyk"}.get(channels, "other")
    return Header(
        *("JPEG", width, height, 0, mode, depth),
        luma_table=tables.get(luma[2], ()),
        chroma_table=tables.get(chroma[2], ()) if chroma else (),
        subsampling=_subsampling(luma[1], chroma[1]) if chroma else None,
        progressive=marker in (0xC2, 0xC6, 0xCA, 0xCE),
        lossless=marker in (0xC3, 0xC7, 0xCB, 0xCF),
        exif="exif" in facts,
        icc="icc" in facts,
        text="text" in facts,
    )


def _quantisation_tables(body: bytes) -> dict[int, tuple[int, ...]]:
    tables, position = {}, 0
    while position < len(body):
        wide, number = body[position] >> 4, body[position] & 15
        tables[number] = struct.unpack_from(">64H" if wide else ">64B", body, position + 1)
        position += 129 if wide else 65
    return tables


def _subsampling(luma: int, chroma: int) -> str:
    """The usual name of two sampling factors, each horizontal * 16 + vertical."""
    ratio = (luma >> 4) / max(chroma >> 4, 1), (luma & 15) / max(chroma & 15, 1)
    return RATIOS.get(ratio, "other")


RATIOS: dict[tuple[float, float], str] = {
    (1, 1): "4:4:4",
    (2, 1): "4:2:2",
    (2, 2): "4:2:0",
    (1, 2): "4:4:0",
    (4, 1): "4:1:1",
}


PNG_MODES = {0: "grey", 2: "colour", 3: "palette", 4: "grey+alpha", 6: "colour+alpha"}


def _read_png(data: bytes) -> Header:
    """Reads up to the first pixels; what stands behind them is not looked at."""
    width, height, depth, colour, _, _, interlaced = struct.unpack_from(">IIBBBBB", data, 16)
    kinds, position = set(), 8
    while (kind := data[position + 4 : position + 8]) != b"IDAT":
        kinds.add(kind)
        position += 12 + int(struct.unpack_from(">I", data, position)[0])
    return Header(
        *("PNG", width, height, 0, PNG_MODES.get(colour, "other"), depth),
        progressive=bool(interlaced),
        lossless=True,
        exif=b"eXIf" in kinds,
        icc=b"iCCP" in kinds,
        text=bool(kinds & {b"tEXt", b"zTXt", b"iTXt"}),
    )


def _read_webp(data: bytes) -> Header:
    """Walks the chunks up to the first pixels; flags before them announce all metadata."""
    flags, alpha, position = 0, False, 12
    while (kind := data[position : position + 4]) not in (b"VP8 ", b"VP8L"):
        (size,) = struct.unpack_from("<I", data, position + 4)
        if kind == b"VP8X":
            flags = data[position + 8]
        alpha |= kind == b"ALPH"
        # The pixels of an animation stand 16 bytes inside their frame.
        position += 8 + (16 if kind == b"ANMF" else size + size % 2)
    lossless = kind == b"VP8L"
    packed = struct.unpack_from("<I", data, position + (9 if lossless else 14))[0]
    alpha |= lossless and bool(packed >> 28 & 1)
    size = (packed & 0x3FFF, packed >> (14 if lossless else 16) & 0x3FFF)
    return Header(
        *("WEBP", size[0] + lossless, size[1] + lossless, 0, "colour+alpha" if alpha else "colour"),
        subsampling=None if lossless else "4:2:0",
        lossless=lossless,
        exif=bool(flags & 0x08),
        icc=bool(flags & 0x20),
        text=bool(flags & 0x04),
    )


def _read_boxes(data: bytes) -> Header:
    """AVIF and HEIC: the largest picture announced before the pixels; a crop box is not applied."""
    boxes = data.partition(b"mdat")[0]
    sizes = [struct.unpack_from(">II", part, 4) for part in boxes.split(b"ispe")[1:]]
    width, height = max(sizes, key=lambda size: size[0] * size[1])
    avif = b"avif" in boxes[8:64] or b"avis" in boxes[8:64]
    return Header(
        *("AVIF" if avif else "HEIC", width, height, 0, "colour"),
        depth=boxes[boxes.index(b"pixi") + 9] if b"pixi" in boxes else None,
        exif=b"Exif" in boxes,
        icc=b"colrprof" in boxes or b"colrrICC" in boxes,
        text=b"application/rdf+xml" in boxes,
    )


PILLOW_MODES = {
    "1": "grey",
    "L": "grey",
    "I": "grey",
    "F": "grey",
    "LA": "grey+alpha",
    "P": "palette",
    "RGB": "colour",
    "RGBA": "colour+alpha",
    "CMYK": "cmyk",
    "PA": "palette",
}
LOSSLESS_FORMATS = frozenset({"GIF", "BMP", "DIB", "PPM", "QOI", "PCX", "SGI", "ICO", "PSD"})


def _read_any(data: bytes) -> Header:
    """The rarer formats, opened by Pillow, which loads no pixels before it is asked to."""
    with Image.open(io.BytesIO(data), formats=FORMATS) as image:
        name = image.format if image.format in CONTAINERS else "unknown"
        return Header(
            *(name, image.width, image.height, 0, PILLOW_MODES.get(image.mode.partition(";")[0], "other")),
            depth=16 if ";16" in image.mode else 32 if image.mode in ("I", "F") else 8,
            lossless=True if name in LOSSLESS_FORMATS else None,
            exif="exif" in image.info,
            icc="icc_profile" in image.info,
            text="comment" in image.info or "xmp" in image.info,
        )


READERS: dict[bytes, Callable[[bytes], Header]] = {b"\xff\xd8": _read_jpeg, b"\x89PNG\r\n": _read_png}
