"""Bytes that look like evidence but stand where they mean nothing: reported as cautions only."""

from detector.evidence.containers import Layout, Part
from detector.evidence.findings import Caution, Place

# Marker -> (what it looks like, carriers in which it may stand).
EVERYWHERE = frozenset({"xmp", "xmp-gif", "extended-xmp", "c2pa"})
MARKERS: dict[bytes, tuple[str, frozenset[str]]] = {
    b"trainedAlgorithmicMedia": ("a digital source type", EVERYWHERE | {"photoshop"}),
    b"<x:xmpmeta": ("an XMP packet", EVERYWHERE | {"photoshop", "exif"}),
    b"jumdc2pa": ("a C2PA manifest", frozenset({"c2pa"})),
    b"tEXtparameters\0": ("a PNG text chunk", frozenset({"text", "c2pa"})),
    b"tEXtprompt\0": ("a PNG text chunk", frozenset({"text", "c2pa"})),
    b"invokeai_metadata": ("generation parameters", frozenset({"text", "c2pa", "exif", "xmp"})),
    b"Made with Google AI": ("a made-with tag", EVERYWHERE | {"photoshop", "iptc", "exif", "text"}),
}
SIGNATURES = {
    b"\xff\xd8\xff": "a JPEG",
    b"\x89PNG": "a PNG",
    b"PK\x03\x04": "a ZIP archive",
    b"RIFF": "a RIFF file",
    b"GIF8": "a GIF",
    b"%PDF": "a PDF",
    b"Rar!": "a RAR archive",
    b"7z\xbc\xaf": "a 7z archive",
}
MAX_HITS = 8
XMP_KEY = "XML:com.adobe.xmp"


def find_strays(data: bytes, layout: Layout, has_multi_picture: bool) -> list[Caution]:
    """A caution for bytes after the container's end, and one per misplaced marker."""
    cautions = _trailing(data, layout, has_multi_picture)
    if layout.container == "TIFF":
        # Its directories may lie anywhere, so no place in the file is wrong.
        return cautions
    for marker, (looks, carriers) in MARKERS.items():
        position, hits = data.find(marker), 0
        while position >= 0 and hits < MAX_HITS:
            part = _part_at(layout, position)
            if not _rightful(part, carriers):
                cautions.append(_stray(looks, part, position, len(marker)))
                hits += 1
            position = data.find(marker, position + len(marker))
    return cautions


def _rightful(part: Part | None, carriers: frozenset[str]) -> bool:
    if part is None:
        return False
    return part.carrier in carriers or (part.carrier == "text" and part.key == XMP_KEY and "xmp" in carriers)


def _part_at(layout: Layout, position: int) -> Part | None:
    """The smallest part around a byte: items of a HEIF stand inside its `mdat` box."""
    around = [part for part in layout.parts if part.offset <= position < part.offset + part.length]
    return min(around, key=lambda part: part.length, default=None)


def _stray(looks: str, part: Part | None, position: int, length: int) -> Caution:
    where = f"in {part.name}" if part else "outside every part of the container"
    text = f"bytes that look like {looks} stand {where}, where they carry no meaning; they were ignored"
    name = part.name if part else "outside the container"
    return Caution(kind="stray", text=text, place=Place(part=name, offset=position, length=length))


def _trailing(data: bytes, layout: Layout, has_multi_picture: bool) -> list[Caution]:
    count = len(data) - layout.end
    if count <= 0:
        return []
    rest = data[layout.end : layout.end + 16]
    looks = next((name for prefix, name in SIGNATURES.items() if rest.startswith(prefix)), "")
    if not rest.strip(b"\0\r\n ") and count <= 16:
        looks = "padding"
    elif rest[4:8] == b"ftyp":
        looks = "a video or HEIF file"
    text = f"{count:,} bytes follow the end of the {layout.container}" + (
        f" (they begin like {looks})" if looks else ""
    )
    text += "; the file declares further pictures there" if has_multi_picture else ""
    place = Place(part="after the end", offset=layout.end, length=count)
    return [Caution(kind="container", text=f"{text}; they are no evidence", place=place)]
