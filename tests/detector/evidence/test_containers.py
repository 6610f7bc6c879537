import struct

import pytest

from detector.evidence.containers import walk
from detector.evidence.containers.png import inflate
from tests.detector.evidence.files import chunk, encode, jpeg_with, png_with, structured, text_chunk, with_xmp

CODECS = {"JPEG": "JPEG", "PNG": "PNG", "WEBP": "WEBP", "AVIF": "HEIF", "GIF": "GIF", "TIFF": "TIFF"}


@pytest.mark.parametrize(("codec", "container"), CODECS.items())
def test_a_layout_covers_the_file(codec, container):
    data = encode(codec=codec)
    layout = walk(data)
    assert (layout.container, layout.end, layout.cautions) == (container, len(data), [])
    assert (layout.width, layout.height) == (96, 64)
    assert all(0 <= part.offset <= part.start <= part.stop <= len(data) for part in layout.parts)


@pytest.mark.parametrize("codec", ["JPEG", "PNG", "WEBP", "AVIF", "GIF"])
def test_appended_bytes_lie_behind_the_end(codec):
    data = encode(codec=codec)
    assert walk(data + b"\0\0\0\0appended").end == len(data)


@pytest.mark.parametrize("codec", CODECS)
def test_every_cut_is_survived(codec):
    data = encode(codec=codec, image=structured(width=32, height=32))
    for stop in range(0, len(data), max(1, len(data) // 150)):
        walk(data[:stop])


def test_xmp_is_found_where_each_container_keeps_it():
    for codec in ("JPEG", "WEBP", "AVIF", "GIF"):
        data = with_xmp(codec)
        carriers = [part for part in walk(data).parts if part.carrier in ("xmp", "xmp-gif")]
        assert len(carriers) == 1
        assert b"trainedAlgorithmicMedia" in carriers[0].payload(data)


def test_a_chunk_with_a_wrong_checksum_carries_nothing():
    layout = walk(png_with(chunk(b"tEXt", b"parameters\0x", crc=1)))
    part = next(part for part in layout.parts if part.name == "tEXt parameters")
    assert part.carrier == ""
    assert "checksum" in layout.cautions[0].text


def test_a_segment_that_claims_too_much_ends_the_walk():
    jpeg = encode()
    broken = jpeg[:2] + b"\xff\xe1\xff\xff" + jpeg[2:60]
    assert "cut short" in walk(broken).cautions[0].text


def test_progressive_scans_are_walked_to_the_end():
    data = encode(progressive=True)
    layout = walk(data)
    assert layout.end == len(data)
    assert sum(part.name == "SOS" for part in layout.parts) > 3


def test_the_number_of_parts_is_limited():
    layout = walk(png_with(*[text_chunk("k", "v")] * 50), max_parts=10)
    assert len(layout.parts) == 10
    assert layout.cautions[-1].kind == "limit"


def test_a_text_may_not_grow_without_bound():
    import zlib

    with pytest.raises(ValueError, match="more than 1,000 bytes"):
        inflate(zlib.compress(b"a" * 1_000_000), 1000)
    with pytest.raises(ValueError, match="cut short"):
        inflate(zlib.compress(b"abc" * 100)[:-6], 1000)


def test_a_box_of_size_zero_reaches_to_the_end():
    data = encode(codec="AVIF")
    at = data.rindex(b"mdat") - 4
    assert walk(data[:at] + struct.pack(">I", 0) + data[at + 4 :]).end == len(data)


def test_other_bytes_have_no_layout():
    assert walk(b"") is None
    assert walk(b"BM" + bytes(100)) is None


def test_a_named_segment_is_told_by_its_prefix():
    names = [part.name for part in walk(jpeg_with(0xE1, b"http://ns.adobe.com/xap/1.0/\0<x/>")).parts]
    assert names[0] == "APP1 XMP"
    assert walk(jpeg_with(0xE4, b"http://ns.adobe.com/xap/1.0/\0<x/>")).parts[0].carrier == ""
