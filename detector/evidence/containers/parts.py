"""Values that every container walker gives: parts of a file with their places, and what is odd."""

from dataclasses import dataclass, field

from detector.evidence.findings import Caution, Place


@dataclass(frozen=True)
class Part:
    """One segment, chunk, box or tag.

    Attributes:
        name: as a person would call it, e.g. "APP1 Exif".
        offset: of its first byte in the file.
        length: of the whole part in bytes, its header included.
        start: where the payload begins.
        stop: where the payload ends.
        carrier: what metadata the payload is by its rightful name, e.g. "exif"; "" for none.
        key: of a text, e.g. "parameters".
    """

    name: str
    offset: int
    length: int
    start: int
    stop: int
    carrier: str = ""
    key: str = ""

    @property
    def place(self) -> Place:
        """The part's place for a report."""
        return Place(part=self.name, offset=self.offset, length=self.length)

    def payload(self, data: bytes) -> bytes:
        """The payload's bytes."""
        return data[self.start : self.stop]


@dataclass
class Layout:
    """What a walker found, in file order; filled while walking, read-only afterwards.

    Attributes:
        container: e.g. "JPEG".
        end: first byte after the container; what follows is not part of it.
        width: in pixels as stored, or 0 when unknown.
        height: in pixels as stored, or 0 when unknown.
    """

    container: str
    parts: list[Part] = field(default_factory=list)
    cautions: list[Caution] = field(default_factory=list)
    end: int = 0
    width: int = 0
    height: int = 0

    def warn(self, kind: str, text: str, place: Place | None = None) -> None:
        """Adds a caution, at most 100 of them."""
        if len(self.cautions) < 100:
            self.cautions.append(Caution(kind=kind, text=text, place=place))  # type: ignore[arg-type]
