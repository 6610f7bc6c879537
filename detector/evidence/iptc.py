"""Texts of an IPTC-IIM record, from Photoshop resources or a TIFF tag."""

RESOURCE_IPTC = 0x0404
FIELDS = {
    65: "OriginatingProgram",
    80: "By-line",
    110: "Credit",
    115: "Source",
    116: "CopyrightNotice",
    120: "Caption",
}
MAX_DATASETS = 2000


def read_photoshop(payload: bytes) -> dict[str, str]:
    """The IPTC fields inside Photoshop image resources ("8BIM" blocks)."""
    position = 0
    while payload[position : position + 4] == b"8BIM":
        number = int.from_bytes(payload[position + 4 : position + 6], "big")
        name_length = payload[position + 6] if position + 6 < len(payload) else 0
        position += 6 + (name_length + 2 & ~1)
        length = int.from_bytes(payload[position : position + 4], "big")
        start = position + 4
        if number == RESOURCE_IPTC:
            return read_records(payload[start : start + length])
        position = start + (length + 1 & ~1)
    return {}


def read_records(payload: bytes) -> dict[str, str]:
    """The known fields of record 2, by name; the first value of each."""
    found: dict[str, str] = {}
    position = 0
    for _ in range(MAX_DATASETS):
        if payload[position : position + 1] != b"\x1c" or position + 5 > len(payload):
            break
        record, number = payload[position + 1], payload[position + 2]
        length = int.from_bytes(payload[position + 3 : position + 5], "big")
        if length & 0x8000:
            break
        value = payload[position + 5 : position + 5 + length]
        if record == 2 and number in FIELDS:
            found.setdefault(FIELDS[number], value.decode("utf-8", "replace").strip())
        position += 5 + length
    return found
