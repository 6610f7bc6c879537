"""The metadata blocks of a layout, each read from its rightful place."""

import binascii
import re
from collections.abc import Callable
from dataclasses import dataclass, field

from detector.evidence.containers import Layout, Part, png
from detector.evidence.containers.gif import join_blocks
from detector.evidence.exif import Exif, read_exif
from detector.evidence.findings import EvidenceOptions, Place
from detector.evidence.iptc import read_photoshop, read_records
from detector.evidence.xmp import Packet, read_packet

RAW_PROFILE = re.compile(r"Raw profile type (exif|APP1|xmp|iptc|8bim)", re.IGNORECASE)
MAX_BLOCKS = 64  # of one kind; no honest file holds more
GIF_XMP_TRAILER = 258  # leads readers that know nothing of XMP back into step


@dataclass(frozen=True)
class Text:
    """A keyed text of the file, e.g. of a PNG text chunk."""

    key: str
    value: str
    place: Place


@dataclass
class Metadata:
    """Everything readable in the rightful places of one file.

    Attributes:
        exif: blocks with their places.
        xmp: packets with their places.
        iptc: fields by name, with their places.
        texts: PNG texts, JPEG and GIF comments.
        credentials: parts that hold C2PA manifests.
        has_multi_picture: whether an MPF segment declares further pictures after the first.
    """

    exif: list[tuple[Exif, Place]] = field(default_factory=list)
    xmp: list[tuple[Packet, Place]] = field(default_factory=list)
    iptc: list[tuple[dict[str, str], Place]] = field(default_factory=list)
    texts: list[Text] = field(default_factory=list)
    credentials: list[Part] = field(default_factory=list)
    has_multi_picture: bool = False


def collect(data: bytes, layout: Layout, options: EvidenceOptions) -> Metadata:
    """The metadata of a file; a block that cannot be read becomes a caution of the layout."""
    found = Metadata()
    counts: dict[str, int] = {}
    for part in layout.parts:
        reader = READERS.get(part.carrier)
        if reader is None:
            continue
        counts[part.carrier] = counts.get(part.carrier, 0) + 1
        if counts[part.carrier] > MAX_BLOCKS and part.carrier != "c2pa":
            continue
        try:
            reader(found, data, part, options)
        except (ValueError, binascii.Error) as error:
            layout.warn("damage", f"{part.name} cannot be read: {error}", part.place)
    for carrier, count in counts.items():
        if count > MAX_BLOCKS and carrier != "c2pa":
            layout.warn("limit", f"only the first {MAX_BLOCKS} blocks of kind {carrier} were read")
    return found


def _exif(found: Metadata, data: bytes, part: Part, options: EvidenceOptions) -> None:
    _add_exif(found, part.payload(data), part.place)


def _add_exif(found: Metadata, block: bytes, place: Place) -> None:
    exif = read_exif(block.removeprefix(b"Exif\0\0"))
    found.exif.append((exif, place))


def _xmp(found: Metadata, data: bytes, part: Part, options: EvidenceOptions) -> None:
    found.xmp.append((read_packet(part.payload(data)), part.place))


def _xmp_gif(found: Metadata, data: bytes, part: Part, options: EvidenceOptions) -> None:
    found.xmp.append((read_packet(part.payload(data)[:-GIF_XMP_TRAILER]), part.place))


def _iptc(found: Metadata, data: bytes, part: Part, options: EvidenceOptions) -> None:
    read = read_photoshop if part.carrier == "photoshop" else read_records
    if fields := read(part.payload(data)):
        found.iptc.append((fields, part.place))


def _comment(found: Metadata, data: bytes, part: Part, options: EvidenceOptions) -> None:
    raw = part.payload(data)[: options.max_text_bytes]
    body = join_blocks(raw) if part.carrier == "comment-gif" else raw
    found.texts.append(Text("comment", body.decode("utf-8", "replace").strip("\0 "), part.place))


def _png_text(found: Metadata, data: bytes, part: Part, options: EvidenceOptions) -> None:
    value = png.read_text(part.name[:4], part.payload(data), options.max_text_bytes)
    if part.key == png.XMP_KEY:
        found.xmp.append((read_packet(value.encode()), part.place))
    elif match := RAW_PROFILE.fullmatch(part.key):
        _raw_profile(found, match[1].lower(), value, part.place)
    else:
        found.texts.append(Text(part.key, value, part.place))


def _raw_profile(found: Metadata, kind: str, value: str, place: Place) -> None:
    """ImageMagick's habit: name, length and hexadecimal bytes on lines of their own."""
    lines = value.strip().split("\n", 2)
    if len(lines) != 3:
        raise ValueError("the raw profile lacks its name, length or bytes")
    block = binascii.unhexlify("".join(lines[2].split()))
    if kind == "xmp" or block.startswith(b"http://ns.adobe.com/xap/1.0/\0"):
        found.xmp.append((read_packet(block), place))
    elif kind in ("exif", "app1"):
        _add_exif(found, block, place)
    elif fields := read_photoshop(block):
        found.iptc.append((fields, place))


def _credential(found: Metadata, data: bytes, part: Part, options: EvidenceOptions) -> None:
    found.credentials.append(part)


def _multi_picture(found: Metadata, data: bytes, part: Part, options: EvidenceOptions) -> None:
    found.has_multi_picture = True


Reader = Callable[[Metadata, bytes, Part, EvidenceOptions], None]
READERS: dict[str, Reader] = {
    "exif": _exif,
    "xmp": _xmp,
    "xmp-gif": _xmp_gif,
    "photoshop": _iptc,
    "iptc": _iptc,
    "comment": _comment,
    "comment-gif": _comment,
    "text": _png_text,
    "c2pa": _credential,
    "mpf": _multi_picture,
}
