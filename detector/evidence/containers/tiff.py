"""Directories of a TIFF file as a layout: the file itself is one EXIF-like block."""

from detector.evidence.containers.parts import Layout, Part
from detector.evidence.ifd import read_directories

CARRIERS = {
    700: ("tag XMP", "xmp"),
    33723: ("tag IPTC", "iptc"),
    34377: ("tag Photoshop", "photoshop"),
    52545: ("tag C2PA", "c2pa"),
}


def walk(data: bytes, max_parts: int) -> Layout:
    """The metadata tags of a TIFF; its end is the file's end, for strips may stand anywhere."""
    layout = Layout("TIFF", end=len(data))
    try:
        found = read_directories(data)
    except ValueError as error:
        layout.warn("damage", f"the TIFF cannot be read: {error}")
        return layout
    for problem in found.problems[:20]:
        layout.warn("damage", f"TIFF: {problem}")
    layout.width, layout.height = found.number("0", 256) or 0, found.number("0", 257) or 0
    layout.parts.append(Part("TIFF directories", 0, len(data), 0, len(data), "exif"))
    for name, tags in found.tags.items():
        for number, (label, carrier) in CARRIERS.items():
            tag = tags.get(number)
            if tag and name.isdigit() and len(layout.parts) < max_parts:
                layout.parts.append(
                    Part(label, tag.start, tag.stop - tag.start, tag.start, tag.stop, carrier)
                )
    return layout
