"""Rows from plain metadata: source types, made-with tags, software fields, camera data."""

import re

from detector.evidence.carriers import Metadata
from detector.evidence.exif import Exif
from detector.evidence.findings import Caution, Finding, Place
from detector.evidence.source_types import CLAIMS, short_name
from detector.evidence.xmp import Packet

# Whole names in fields that name a program or a maker; never searched in free text.
AI_PROGRAMS = re.compile(
    r"\b(stable[ -]?diffusion|midjourney|novelai|adobe[ _]firefly|dall[·.\-]?e\b|comfyui|invokeai|fooocus|"
    r"draw ?things|automatic1111|easy ?diffusion|swarmui|made with google ai|imagen|ideogram|leonardo\.ai|"
    r"grok image|bing image creator|flux\.?1|gpt-image|gpt-4o|chatgpt|nano banana)",
    re.IGNORECASE,
)
EDITORS = re.compile(
    r"\b(photoshop|lightroom|gimp|affinity|capture one|darktable|rawtherapee|snapseed|pixelmator|paint\.net|"
    r"luminar|picasa|acdsee|photoscape|canva|imagemagick|dxo)",
    re.IGNORECASE,
)
PROGRAM_FIELDS = ("xmp:CreatorTool", "photoshop:Credit", "photoshop:Source", "tiff:Software")
PROGRAM_TEXTS = {"Software", "software", "Creator", "Generator", "Made with"}
PROGRAM_IPTC = ("OriginatingProgram", "Credit", "Source")


def find_source_types(metadata: Metadata) -> list[Finding]:
    """A row for each digitalSourceType that an XMP packet states."""
    rows = []
    for packet, place in metadata.xmp:
        for value in packet.values.get("Iptc4xmpExt:DigitalSourceType", []):
            name = short_name(value)
            if name is not None:
                claim, words = CLAIMS[name]
                text = f"XMP states the digital source type {name}: {words}"
                rows.append(_row("source_type", claim, text, place, source_type=name))
    return rows


def find_programs(metadata: Metadata) -> list[Finding]:
    """A row for each field that names the program which made or edited the picture."""
    rows = []
    for field, value, place in _program_fields(metadata):
        if AI_PROGRAMS.search(value):
            text = f"{field} names an AI generator: {value[:100]!r}"
            rows.append(_row("made_with", "made_by_ai", text, place, field=field, value=value[:200]))
        elif EDITORS.search(value):
            text = f"{field} names an editing program: {value[:100]!r}; editing is no sign of AI"
            rows.append(_row("software", "edited", text, place, field=field, value=value[:200]))
        elif field.endswith(("Software", "CreatorTool")):
            text = f"{field} is {value[:100]!r}"
            rows.append(_row("software", "none", text, place, field=field, value=value[:200]))
    return list({(row.text, row.place): row for row in rows}.values())


def _program_fields(metadata: Metadata) -> list[tuple[str, str, Place]]:
    fields = [
        (f"EXIF {name}", exif.texts[name], place)
        for exif, place in metadata.exif
        for name in ("Software", "HostComputer")
        if name in exif.texts
    ]
    fields += [
        (f"XMP {name}", value, place)
        for packet, place in metadata.xmp
        for name in PROGRAM_FIELDS
        for value in packet.values.get(name, [])[:8]
    ]
    fields += [
        (f"IPTC {name}", record[name], place)
        for record, place in metadata.iptc
        for name in PROGRAM_IPTC
        if record.get(name)
    ]
    fields += [
        (f"PNG text {text.key}", text.value, text.place)
        for text in metadata.texts
        if text.key in PROGRAM_TEXTS and len(text.value) < 500
    ]
    return fields


def find_camera(metadata: Metadata, width: int, height: int) -> tuple[list[Finding], list[Caution]]:
    """Rows for camera data in EXIF, and cautions where they do not fit the file.

    Args:
        width: of the stored picture in pixels, 0 when unknown.
        height: likewise.
    """
    rows, cautions = [], []
    for exif, place in metadata.exif:
        maker, model = exif.texts.get("Make", ""), exif.texts.get("Model", "")
        if not (maker or model) or _is_graph(maker) or _is_graph(model):
            continue
        camera = model if model.lower().startswith(maker.lower()) else f"{maker} {model}".strip()
        missing = _missing(exif)
        if missing:
            text = f"EXIF names the device {camera[:80]!r} but lacks {', '.join(missing)}"
            rows.append(Finding(kind="camera", confidence="hint", text=text, place=place))
        else:
            text = f"EXIF describes an exposure by {camera[:80]!r}"
            rows.append(
                _row("camera", "captured", text, place, camera=camera[:80], exposure=list(exif.exposure))
            )
        cautions += _size_conflict(exif, place, width, height)
    return rows, cautions


def _is_graph(text: str) -> bool:
    # ComfyUI keeps its graphs in these two tags of WebP files.
    return text.lower().startswith(("prompt:", "workflow:"))


def _missing(exif: Exif) -> list[str]:
    needs = {
        "a device maker and model": bool(exif.texts.get("Make") and exif.texts.get("Model")),
        "exposure settings": len(exif.exposure) >= 2,
        "the time of capture": "DateTimeOriginal" in exif.texts,
    }
    return [name for name, present in needs.items() if not present]


def _size_conflict(exif: Exif, place: Place, width: int, height: int) -> list[Caution]:
    """EXIF states the size the camera wrote: another size means cropped, resized or moved metadata."""
    if not (exif.width and exif.height and width and height):
        return []
    if sorted((exif.width, exif.height)) == sorted((width, height)):
        return []
    text = (
        f"EXIF states {exif.width} x {exif.height} px, the picture has {width} x {height}: it was "
        "cropped or resized after the capture, or the EXIF comes from another file"
    )
    return [Caution(kind="conflict", text=text, place=place)]


def find_remote_manifest(packet: Packet) -> str:
    """The address of a C2PA manifest, elsewhere or (`self#`) in this file; it is never fetched."""
    return packet.first("dcterms:provenance")


def _row(kind: str, claim: str, text: str, place: Place, **details: object) -> Finding:
    return Finding.model_validate(
        {
            "kind": kind,
            "claim": claim,
            "confidence": "stated",
            "text": text,
            "place": place,
            "details": details,
        }
    )
