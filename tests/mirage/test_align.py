"""Alignment: one distribution for all, nothing enlarged, nothing kept of the old container."""

import io
import re

import numpy as np
import pytest
from PIL import Image
from pydantic import ValidationError

from mirage.align import Alignment, TooSmall, align
from mirage.bias.headers import read_header
from tests.mirage.conftest import picture

SMALL = Alignment(long_sides_px=(64, 96, 128))
GRAMMAR = re.compile(
    r"(crop \d+x\d+\+\d+\+\d+; )?(resize \d+x\d+ (bilinear|bicubic|lanczos|box|hamming); )?"
    r"(jpeg q\d+ 4:(2:0|4:4)( optimised)?|webp q\d+ method\d|png uncompressed)"
)


def aligned(image: Image.Image, seed: int, config: Alignment = SMALL):
    return align(image, np.random.default_rng(seed), config)


def test_same_seed_same_bytes():
    image = picture(1, 200, 150)
    assert aligned(image, 7) == aligned(image, 7)
    assert len({aligned(image, seed).data for seed in range(8)}) == 8


@pytest.mark.parametrize("size", [(64, 64), (65, 300), (300, 65), (131, 97), (640, 480)])
def test_never_enlarged_never_distorted(size):
    image = picture(2, *size)
    for seed in range(40):
        result = aligned(image, seed)
        assert result.width <= size[0] and result.height <= size[1]
        assert max(result.width, result.height) in SMALL.long_sides_px
        cut = re.match(r"crop (\d+)x(\d+)", result.transforms[0])
        across, down = (int(side) for side in cut.groups()) if cut else size
        assert across >= result.width and down >= result.height
        # Whole pixels can be off by half a pixel in each direction.
        assert abs(across / result.width - down / result.height) < 1.1 / min(result.width, result.height)


def test_words_say_what_was_done():
    """Replaying the words on the picture gives the stored pixels of a lossless file."""
    image = picture(3, 300, 200)
    config = SMALL.model_copy(update={"codecs": {"lossless": 1.0}})
    for seed in range(20):
        result = aligned(image, seed, config)
        assert GRAMMAR.fullmatch("; ".join(result.transforms))
        replayed = image
        for step in result.transforms:
            if crop := re.fullmatch(r"crop (\d+)x(\d+)\+(\d+)\+(\d+)", step):
                width, height, left, top = map(int, crop.groups())
                replayed = replayed.crop((left, top, left + width, top + height))
            elif resize := re.fullmatch(r"resize (\d+)x(\d+) (\w+)", step):
                width, height, name = resize.groups()
                replayed = replayed.resize((int(width), int(height)), Image.Resampling[name.upper()])
        with Image.open(io.BytesIO(result.data)) as stored:
            assert np.array_equal(np.asarray(stored.convert("RGB")), np.asarray(replayed))


def test_header_agrees_with_words():
    for seed in range(60):
        result = aligned(picture(4, 250, 180), seed)
        header, last = read_header(result.data), result.transforms[-1]
        assert (header.width, header.height) == (result.width, result.height)
        if found := re.match(r"jpeg q(\d+) (4:\d:\d)", last):
            assert (header.quality, header.subsampling) == (int(found[1]), found[2])
        codec, extension = {"jpeg": ("JPEG", "jpg"), "webp": ("WEBP", "webp"), "png ": ("PNG", "png")}[
            last[:4]
        ]
        assert (header.format, result.extension) == (codec, extension)
        assert header.lossless == (codec == "PNG")


def test_lossless_files_do_not_measure_their_content():
    config = SMALL.model_copy(update={"codecs": {"lossless": 1.0}})
    flat = Image.new("RGB", (160, 160), "white")
    for seed in range(10):
        assert len(aligned(flat, seed, config).data) == len(aligned(picture(11, 160, 160), seed, config).data)


def test_shares_are_kept():
    image, count = picture(5, 150, 150), 600
    results = [aligned(image, seed) for seed in range(count)]
    for word, share in {"jpeg": 0.4, "webp": 0.3, "png": 0.3}.items():
        found = sum(result.transforms[-1].startswith(word) for result in results) / count
        assert abs(found - share) < 0.07
    assert abs(sum(result.width == result.height for result in results) / count - 0.4) < 0.07
    whole = [result for result in results if not any("resize" in step for step in result.transforms)]
    assert 0.4 < len(whole) / count < 0.75


def test_no_metadata_survives():
    image = picture(6, 130, 130)
    image.info = {"comment": b"leak", "exif": b"Exif\0\0leak", "icc_profile": b"leak", "xmp": b"leak"}
    for seed in range(30):
        result = aligned(image, seed)
        header = read_header(result.data)
        assert not (header.exif or header.icc or header.text)
        assert b"leak" not in result.data
    assert image.info["comment"] == b"leak"


def test_twins_share_size_and_codec():
    for seed in range(20):
        one, other = aligned(picture(7, 160, 160), seed), aligned(picture(8, 160, 160), seed)
        assert one.transforms == other.transforms and one.data != other.data


def test_floor_is_named():
    with pytest.raises(TooSmall, match="300 x 63 px; alignment needs at least 64 px"):
        aligned(picture(9, 300, 63), 0)


def test_large_pictures_keep_a_fair_part():
    image = picture(10, 2000, 1500)
    config = SMALL.model_copy(update={"aspects": {"4:3": 1.0}, "native": 1.0})
    for seed in range(10):
        step = aligned(image, seed, config).transforms[0]
        assert int(re.match(r"crop (\d+)x", step)[1]) >= 0.19 * 2000


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"aspects": {"4:3": 0.5}}, "sum to 1, not 0.5"),
        ({"codecs": {"jpeg": 1.5, "webp": -0.5}}, "positive"),
        ({"codecs": {"bmp": 1.0}}, "'jpeg', 'webp' or 'lossless'"),
        ({"aspects": {"wide": 1.0}}, "not width:height"),
        ({"jpeg_quality": (90, 40)}, "within 1..100"),
        ({"webp_method": (0, 7)}, "within 0..6"),
        ({"long_sides_px": (16, 64)}, "the least is 32"),
        ({"label": "ai"}, "Extra inputs"),
    ],
)
def test_bad_settings_are_refused(settings, words):
    with pytest.raises(ValidationError, match=re.escape(words)):
        Alignment(**settings)
