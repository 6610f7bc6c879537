"""What an EXIF block says: camera, software, texts, thumbnail."""

from dataclasses import dataclass

from detector.evidence.ifd import Directories, read_directories

TEXTS = {
    "ImageDescription": ("0", 0x010E),
    "Make": ("0", 0x010F),
    "Model": ("0", 0x0110),
    "Software": ("0", 0x0131),
    "DateTime": ("0", 0x0132),
    "Artist": ("0", 0x013B),
    "HostComputer": ("0", 0x013C),
    "DateTimeOriginal": ("exif", 0x9003),
    "LensModel": ("exif", 0xA434),
}
EXPOSURE = {
    "ExposureTime": 0x829A,
    "FNumber": 0x829D,
    "ISO": 0x8827,
    "FocalLength": 0x920A,
    "ShutterSpeed": 0x9201,
}
USER_COMMENT, MAKER_NOTE = 0x9286, 0x927C
THUMBNAIL_START, THUMBNAIL_LENGTH = 0x0201, 0x0202
MAX_THUMBNAIL_BYTES = 2**20


@dataclass(frozen=True)
class Exif:
    """The parts of an EXIF block that can be evidence.

    Attributes:
        texts: by tag name, non-empty ones only.
        comment: the user comment, decoded.
        exposure: names of the exposure tags present.
        has_maker_note: whether a camera maker's own block stands there.
        width: of the picture as the camera wrote it, or None.
        height: likewise.
        thumbnail: JPEG bytes of the embedded preview, or empty.
        thumbnail_start: its first byte within the block.
        problems: one sentence each.
    """

    texts: dict[str, str]
    comment: str
    exposure: tuple[str, ...]
    has_maker_note: bool
    width: int | None
    height: int | None
    thumbnail: bytes
    thumbnail_start: int
    problems: tuple[str, ...]


def read_exif(block: bytes) -> Exif:
    """The content of an EXIF block, which begins with its TIFF header.

    Raises:
        ValueError: it does not.
    """
    found = read_directories(block)
    texts = {name: found.text(*where) for name, where in TEXTS.items()}
    start, thumbnail = _thumbnail(found)
    return Exif(
        texts={name: text for name, text in texts.items() if text},
        comment=decode_comment(found.raw("exif", USER_COMMENT), found.order),
        exposure=tuple(name for name, tag in EXPOSURE.items() if found.raw("exif", tag).strip(b"\0")),
        has_maker_note=len(found.raw("exif", MAKER_NOTE)) > 16,
        width=found.number("exif", 0xA002),
        height=found.number("exif", 0xA003),
        thumbnail=thumbnail,
        thumbnail_start=start,
        problems=tuple(found.problems[:10]),
    )


def _thumbnail(found: Directories) -> tuple[int, bytes]:
    start, length = (found.number("1", tag) for tag in (THUMBNAIL_START, THUMBNAIL_LENGTH))
    if not start or not length or length > MAX_THUMBNAIL_BYTES:
        return 0, b""
    data = found.data[start : start + length]
    return (start, data) if data.startswith(b"\xff\xd8") else (0, b"")


def decode_comment(raw: bytes, order: str) -> str:
    """The text of a UserComment: its first 8 bytes name the character set.

    Args:
        order: byte order of the block, "little" or "big". Writers disagree on whether it holds
            for UTF-16 here, so the order that gives more ASCII wins.
    """
    code, body = raw[:8], raw[8:]
    if code == b"UNICODE\0":
        first = "utf-16-le" if order == "little" else "utf-16-be"
        second = "utf-16-be" if order == "little" else "utf-16-le"
        options = [body.decode(name, "replace") for name in (first, second)]
        best = max(options, key=lambda text: sum(character < "\x80" for character in text[:2000]))
        return best.strip("\0 \ufeff")
    if code not in (b"ASCII\0\0\0", b"\0" * 8, b"JIS\0\0\0\0\0"):
        body = raw
    return body.decode("utf-8", "replace").strip("\0 ")
