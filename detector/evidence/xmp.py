"""Properties of an XMP packet, parsed as XML and never searched as text."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import cast
from xml.etree import ElementTree

NAMESPACES = {
    "http://ns.adobe.com/xap/1.0/": "xmp",
    "http://ns.adobe.com/photoshop/1.0/": "photoshop",
    "http://iptc.org/std/Iptc4xmpExt/2008-02-29/": "Iptc4xmpExt",
    "http://ns.adobe.com/exif/1.0/": "exif",
    "http://ns.adobe.com/tiff/1.0/": "tiff",
    "http://purl.org/dc/elements/1.1/": "dc",
    "http://purl.org/dc/terms/": "dcterms",
    "http://ns.adobe.com/xmp/note/": "xmpNote",
}
RDF = "{http://www.w3.org/1999/02/22-rdf-syntax-ns#}"
WRAPPERS = {f"{RDF}{name}" for name in ("RDF", "Description", "Seq", "Bag", "Alt", "li")} | {
    "{adobe:ns:meta/}xmpmeta"
}
MAX_BYTES = 8 * 2**20
MAX_DEPTH = 40
MAX_PROPERTIES = 10_000


@dataclass
class Packet:
    """Values by `prefix:Name`, in document order, of the known namespaces."""

    values: dict[str, list[str]] = field(default_factory=dict)

    def first(self, name: str) -> str:
        """The first value of a property; empty when there is none."""
        return next(iter(self.values.get(name, ())), "")

    def add(self, tag: str, value: str | None) -> None:
        """Notes the value of an element or attribute of a known namespace."""
        namespace, _, local = tag[1:].partition("}")
        prefix = NAMESPACES.get(namespace)
        if prefix and value and value.strip():
            self.values.setdefault(f"{prefix}:{local}", []).append(value.strip())


def read_packet(payload: bytes) -> Packet:
    """The properties of one packet.

    Raises:
        ValueError: too large, not well-formed XML, nested too deeply, or it declares entities.
    """
    if len(payload) > MAX_BYTES:
        raise ValueError(f"the XMP has more than {MAX_BYTES:,} bytes")
    # Some writers copy the JPEG segment's prefix into other containers.
    body = payload.removeprefix(b"http://ns.adobe.com/xap/1.0/\0").strip(b"\0 \r\n\t")
    # Entities could grow without bound, and no XMP writer declares any.
    if b"<!" in body.replace(b"<!--", b"").replace(b"<![CDATA[", b""):
        raise ValueError("the XMP declares entities or a document type")
    parser: ElementTree.XMLPullParser[ElementTree.Element] = ElementTree.XMLPullParser(("start", "end"))
    try:
        parser.feed(body)
        parser.close()
    except ElementTree.ParseError as error:
        raise ValueError(f"the XMP is not well-formed: {error}") from error
    # Only events "start" and "end" were asked for, and both come with an element.
    return _read_events(cast(Iterator[tuple[str, ElementTree.Element]], parser.read_events()))


def _read_events(events: Iterator[tuple[str, ElementTree.Element]]) -> Packet:
    """The properties, each under the nearest element around it that is no RDF wrapper."""
    packet, count = Packet(), 0
    owners: list[str] = []
    for event, element in events:
        if event == "start":
            count += 1
            owners.append(element.tag if element.tag not in WRAPPERS else "")
            if len(owners) > MAX_DEPTH or count > MAX_PROPERTIES:
                raise ValueError("the XMP is nested too deeply or has too many properties")
            _note_attributes(packet, element)
        else:
            owner = next((name for name in reversed(owners) if name), "")
            packet.add(owner, element.text)
            owners.pop()
    return packet


def _note_attributes(packet: Packet, element: ElementTree.Element) -> None:
    for name, value in element.attrib.items():
        packet.add(element.tag if name == f"{RDF}resource" else name, value)
