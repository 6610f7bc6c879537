"""Headers: facts written by real encoders must come back, whole file or beginning alike."""

import io
import math

import numpy as np
import pytest
from PIL import Image, PngImagePlugin, features

from mirage.bias.features import FEATURE_NAMES, FEATURES, feature_vector
from mirage.bias.headers import CONTAINERS, read_header
from mirage.errors import UnreadableImage
from tests.mirage.conftest import encode, picture

EXIF = Image.Exif()
EXIF[0x0110] = "a camera"
ICC = b"\0" * 36 + b"acsp" + b"\0" * 88


def text_chunk(words: str) -> PngImagePlugin.PngInfo:
    info = PngImagePlugin.PngInfo()
    info.add_text("parameters", words)
    return info


@pytest.mark.parametrize("codec", ["JPEG", "PNG", "WEBP", "AVIF", "GIF", "BMP", "TIFF", "JPEG2000", "PPM"])
def test_every_format_tells_its_size(codec):
    if codec == "AVIF" and not features.check("avif"):
        pytest.skip("this Pillow writes no AVIF")
    data = encode(picture(1, 97, 61), codec)
    header = read_header(data)
    assert (header.format, header.width, header.height) == (codec, 97, 61)
    assert header.file_bytes == len(data)
    assert header.aspect == 97 / 61
    assert header.bytes_per_pixel == len(data) / (97 * 61)


def test_heic_tells_its_size():
    heif = pytest.importorskip("pillow_heif")
    buffer = io.BytesIO()
    heif.from_pillow(picture(1, 98, 64)).save(buffer)
    header = read_header(buffer.getvalue())
    assert (header.format, header.width, header.height, header.depth) == ("HEIC", 98, 64, 8)


@pytest.mark.parametrize("quality", [1, 30, 49, 50, 75, 92, 100])
def test_jpeg_tables_are_those_of_the_encoder(quality):
    data = encode(picture(2), "JPEG", quality=quality)
    header = read_header(data)
    with Image.open(io.BytesIO(data)) as opened:
        assert sorted(header.luma_table) == sorted(opened.quantization[0])
        assert sorted(header.chroma_table) == sorted(opened.quantization[1])
    assert header.quality == quality


def test_tables_are_in_zigzag_order():
    """The first steps are those of the lowest frequencies, which the standard lists as 16 11 12 14."""
    assert read_header(encode(picture(2), "JPEG", quality=50)).luma_table[:4] == (16, 11, 12, 14)


@pytest.mark.parametrize("subsampling", ["4:4:4", "4:2:2", "4:2:0"])
def test_jpeg_tells_its_subsampling(subsampling):
    assert read_header(encode(picture(3), "JPEG", subsampling=subsampling)).subsampling == subsampling


def test_grey_has_no_chroma():
    header = read_header(encode(picture(3).convert("L"), "JPEG"))
    assert (header.mode, header.subsampling, header.chroma_table) == ("grey", None, ())
    assert math.isnan(FEATURES["chroma_sum"](header))


@pytest.mark.parametrize("codec", ["JPEG", "PNG", "WEBP"])
def test_metadata_is_noticed(codec):
    plain = read_header(encode(picture(4), codec))
    assert not (plain.exif or plain.icc or plain.text)
    assert read_header(encode(picture(4), codec, exif=EXIF)).exif
    assert read_header(encode(picture(4), codec, icc_profile=ICC)).icc


@pytest.mark.parametrize(
    ("codec", "options"),
    [
        ("JPEG", {"comment": b"made by hand"}),
        ("JPEG", {"xmp": b"<x:xmpmeta/>"}),
        ("WEBP", {"xmp": b"<x:xmpmeta/>"}),
        ("PNG", {"pnginfo": text_chunk("a cat, 8k")}),
    ],
)
def test_text_is_noticed(codec, options):
    header = read_header(encode(picture(4), codec, **options))
    assert header.text and not header.exif


def test_progressive_and_lossless():
    assert read_header(encode(picture(5), "JPEG", progressive=True)).progressive
    assert not read_header(encode(picture(5), "JPEG")).progressive
    lossless = read_header(encode(picture(5, 97, 61), "WEBP", lossless=True))
    assert (
        lossless.lossless and lossless.subsampling is None and (lossless.width, lossless.height) == (97, 61)
    )
    lossy = read_header(encode(picture(5), "WEBP"))
    assert lossy.lossless is False and lossy.subsampling == "4:2:0"


@pytest.mark.parametrize("lossless", [False, True])
def test_webp_with_alpha_and_animation(lossless):
    image = picture(6, 97, 61).convert("RGBA")
    image.putalpha(picture(7, 97, 61).convert("L"))
    header = read_header(encode(image, "WEBP", lossless=lossless))
    assert (header.mode, header.lossless, header.width, header.height) == ("colour+alpha", lossless, 97, 61)
    moving = encode(picture(6, 97, 61), "WEBP", save_all=True, append_images=[picture(7, 97, 61)])
    assert (read_header(moving).width, read_header(moving).height) == (97, 61)


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGB", "RGBA", "I;16"])
def test_png_modes(mode):
    image = Image.new("I;16", (40, 40)) if mode == "I;16" else picture(8, 40, 40).convert(mode)
    expected = {
        "1": ("grey", 1),
        "L": ("grey", 8),
        "LA": ("grey+alpha", 8),
        "P": ("palette", 8),
        "RGB": ("colour", 8),
        "RGBA": ("colour+alpha", 8),
        "I;16": ("grey", 16),
    }
    header = read_header(encode(image))
    assert (header.mode, header.depth) == expected[mode]


@pytest.mark.parametrize("codec", ["JPEG", "PNG", "WEBP"])
def test_the_beginning_is_enough(codec):
    data = encode(picture(9, 400, 400), codec)
    beginning = data[:1200]
    assert len(beginning) < len(data)
    assert read_header(beginning, len(data)) == read_header(data)


@pytest.mark.parametrize("codec", ["JPEG", "PNG", "WEBP", "BMP", "JPEG2000"])
def test_every_cut_is_an_error_or_a_header(codec):
    """A cut file may give a header or one clear error, never anything else."""
    data = encode(picture(9), codec, icc_profile=ICC)
    for length in [*range(min(len(data), 200)), len(data) // 2]:
        try:
            read_header(data[:length])
        except UnreadableImage as error:
            assert "\n" not in str(error)


@pytest.mark.parametrize(
    "data", [b"", b"hello", b"\xff\xd8\xff\xd9", b"RIFF\0\0\0\0WEBP", b"\0\0\0\x18ftypmif1"]
)
def test_no_picture_is_an_error(data):
    with pytest.raises(UnreadableImage):
        read_header(data)


def test_features_keep_their_order_and_names():
    """Stored audits name these; a new one goes to the end of its kind, none is renamed silently."""
    vector = feature_vector(read_header(encode(picture(1, 90, 60), "JPEG", quality=50)))
    named = dict(zip(FEATURE_NAMES, vector, strict=True))
    assert named["format"] == CONTAINERS.index("JPEG")
    assert (named["width"], named["height"], named["aspect"], named["quality"]) == (90, 60, 1.5, 50)
    assert (named["luma_0"], named["luma_1"], named["chroma_0"]) == (16, 11, 17)
    assert vector.dtype == np.float64


def test_png_has_no_tables():
    named = dict(zip(FEATURE_NAMES, feature_vector(read_header(encode(picture(1)))), strict=True))
    assert all(
        math.isnan(named[name]) for name in ("quality", "luma_sum", "luma_0", "chroma_3", "subsampling")
    )
    assert named["lossless"] == 1
