import random

import pytest

from detector.evidence import EvidenceOptions, examine
from tests.detector.evidence.files import (
    A1111,
    chunk,
    encode,
    exif_block,
    jpeg_with,
    png_with,
    structured,
    text_chunk,
    trained_xmp,
    with_xmp,
)

SMALL = structured(width=32, height=32)
SEEDS = {
    "jpeg": encode(SMALL, exif=exif_block(comment=A1111, camera=True), xmp=trained_xmp()),
    "png": png_with(text_chunk("parameters", A1111), chunk(b"eXIf", exif_block(comment=A1111)[6:])),
    "webp": encode(SMALL, "WEBP", exif=exif_block(comment=A1111), xmp=trained_xmp()),
    "avif": encode(SMALL, "AVIF", exif=exif_block(comment=A1111), xmp=trained_xmp()),
    "gif": with_xmp("GIF"),
    "tiff": encode(SMALL, "TIFF"),
    "iptc": jpeg_with(0xED, b"Photoshop 3.0\0" + bytes.fromhex("3842494d04040000000000081c026e0003616263")),
}


def change(generator, seed):
    data = bytearray(seed)
    for _ in range(generator.choice((1, 2, 8))):
        at = generator.randrange(len(data))
        action = generator.randrange(4)
        if action == 0:
            data[at] = generator.randrange(256)
        elif action == 1:
            data[at : at + 4] = generator.choice((0, 1, 0xFFFF, 0x7FFFFFFF, 0xFFFFFFFF)).to_bytes(
                4, generator.choice(("big", "little"))
            )
        elif action == 2:
            del data[at : at + generator.randrange(1, 40)]
        else:
            data[at:at] = seed[at // 2 : at // 2 + generator.randrange(1, 80)]
        data = data or bytearray(seed)
    return bytes(data)


@pytest.mark.parametrize("name", SEEDS)
def test_no_check_fails_on_changed_files(name):
    generator = random.Random(f"{name} 0")
    options = EvidenceOptions(pixels=False)
    for _ in range(150):
        data = change(generator, SEEDS[name])
        failed = [row.text for row in examine(data, options).warnings if row.text.startswith("the check ")]
        assert not failed, (failed, data.hex())


@pytest.mark.parametrize("name", SEEDS)
def test_changed_files_reach_the_pixels_unharmed(name):
    generator = random.Random(f"{name} 1")
    for _ in range(8):
        examine(change(generator, SEEDS[name]))
