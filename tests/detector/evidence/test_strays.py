import pytest

from detector.evidence import examine
from tests.detector.evidence.files import A1111, chunk, encode, jpeg_with, png_with, text_chunk, trained_xmp

AI = {"made_by_ai", "edited_with_ai"}


def verdict(data):
    """Claims of AI, and the cautions that stand beside them."""
    evidence = examine(data)
    return AI & {row.claim for row in evidence.findings}, evidence.warnings


@pytest.mark.parametrize("codec", ["JPEG", "PNG", "WEBP", "AVIF", "GIF"])
def test_a_chunk_behind_the_end_is_a_warning_only(codec):
    claims, warnings = verdict(encode(codec=codec) + text_chunk("parameters", A1111))
    assert not claims
    assert any(row.kind == "stray" and "PNG text chunk" in row.text for row in warnings)
    assert any("no evidence" in row.text for row in warnings)


def test_xmp_in_the_wrong_segment_is_a_warning_only():
    prefixed = b"http://ns.adobe.com/xap/1.0/\0" + trained_xmp()
    for marker in (0xFE, 0xE4, 0xE5):
        claims, warnings = verdict(jpeg_with(marker, prefixed))
        assert not claims
        assert {row.place.part for row in warnings if row.kind == "stray"} == {
            "COM" if marker == 0xFE else f"APP{marker - 0xE0}"
        }


def test_a_marker_in_pixel_data_is_a_warning_only():
    png = png_with()
    at = png.index(b"IDAT") - 4
    claims, warnings = verdict(png[:at] + chunk(b"IDAT", trained_xmp()) + png[at:])
    assert not claims
    assert {row.place.part for row in warnings if row.kind == "stray"} == {"IDAT"}


def test_a_forged_chunk_carries_nothing():
    claims, warnings = verdict(png_with(chunk(b"tEXt", b"parameters\0" + A1111.encode(), crc=7)))
    assert not claims
    assert any("checksum" in row.text for row in warnings)


def test_rightful_places_raise_no_warning():
    assert verdict(encode(xmp=trained_xmp()))[1] == ()
    assert verdict(png_with(text_chunk("parameters", A1111)))[1] == ()


def test_an_appended_file_is_named():
    _, warnings = verdict(encode() + encode(codec="PNG"))
    assert any("begin like a PNG" in row.text for row in warnings)
