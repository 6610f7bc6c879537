import io

import numpy as np
import pytest
from PIL import Image

from detector.evidence.forensics import make_exhibits
from detector.evidence.forensics.double_compression import double_compression
from detector.evidence.forensics.error_level import error_level
from detector.evidence.forensics.jpeg_tables import estimate_quality, jpeg_tables, read_tables
from detector.evidence.forensics.noise import noise_residual
from detector.evidence.forensics.resampling import difference_spectrum, find_peaks, resampling
from detector.evidence.forensics.spectrum import spectrum
from tests.detector.evidence.files import encode


def photo(side=256, seed=0):
    """A picture with detail at every scale, as photographs have."""
    generator = np.random.default_rng(seed)
    total = np.zeros((side, side, 3))
    for size, weight in ((8, 60), (32, 30), (128, 15), (side, 8)):
        layer = generator.normal(0, weight, (size, size, 3)) + 128
        grown = Image.fromarray(layer.clip(0, 255).astype(np.uint8)).resize(
            (side, side), Image.Resampling.BICUBIC
        )
        total += np.asarray(grown, dtype=np.float64) - 128
    return Image.fromarray((total + 128).clip(0, 255).astype(np.uint8))


def saved(image, quality):
    return Image.open(io.BytesIO(encode(image, quality=quality, subsampling=0))).convert("RGB")


@pytest.mark.parametrize("quality", [50, 75, 90, 95])
def test_the_quality_is_read_from_the_table(quality):
    (table, *_) = read_tables(encode(photo(64), quality=quality))
    assert estimate_quality(table) == (quality, True)


def test_only_jpegs_have_tables():
    assert jpeg_tables(encode(photo(64), "PNG")) is None


def test_the_table_is_in_rows_in_the_picture():
    exhibit = jpeg_tables(encode(photo(64), quality=50))
    shown = np.asarray(exhibit.image)[12::24, 12::24].astype(int)
    # At quality 50 the table is the standard's own: 16 first, 99 last, 11 to the right, 12 below.
    assert [round(value / 255 * 121) for value in (shown[0, 0], shown[0, 1], shown[1, 0], shown[7, 7])] == [
        16,
        11,
        12,
        99,
    ]


def test_an_earlier_save_shows_as_a_dip():
    twice = saved(saved(photo(), 65), 92)
    assert any(
        abs(quality - 65) <= 2 for quality in double_compression(twice, 92).numbers["earlier_qualities"]
    )


def test_a_single_save_shows_none():
    assert double_compression(saved(photo(), 90), 90).numbers["earlier_qualities"] == []


def test_enlarging_shows_as_a_peak():
    small = photo(256, seed=3)
    large = small.resize((333, 333), Image.Resampling.BILINEAR)
    # Enlarged 1.3 times: 1 / 1.3 cycles per pixel, which sampling folds back to 1 - 1 / 1.3.
    assert any(abs(value - (1 - 256 / 333)) < 0.01 for value in resampling(large).numbers["across"])
    assert find_peaks(difference_spectrum(np.asarray(small.convert("L"), dtype=np.float64))) == []


def test_a_pasted_area_stands_out_in_error_levels():
    base = np.asarray(saved(photo(), 60)).copy()
    base[64:128, 64:128] = np.random.default_rng(1).integers(0, 256, (64, 64, 3))
    shown = np.asarray(error_level(Image.fromarray(base)).image, dtype=float)
    assert shown[70:120, 70:120].mean() > 2 * shown[160:, 160:].mean()


def test_noise_is_measured():
    flat = Image.new("RGB", (128, 128), (120, 120, 120))
    assert noise_residual(flat).numbers["standard_deviation"] == 0
    assert noise_residual(photo()).numbers["standard_deviation"] > 1


def test_a_lattice_makes_bright_dots():
    lattice = np.asarray(photo()).astype(int)
    lattice[::4, ::4] += 60
    plain = spectrum(photo()).numbers["bright_dots"]
    assert spectrum(Image.fromarray(lattice.clip(0, 255).astype(np.uint8))).numbers["bright_dots"] > plain + 4


@pytest.mark.parametrize("size", [(32, 32), (33, 200), (300, 40)])
def test_every_exhibit_is_made_of_any_size(size):
    data = encode(photo(300).crop((0, 0, *size)), quality=80)
    names = [exhibit.name for exhibit in make_exhibits(data, Image.open(io.BytesIO(data)).convert("RGB"))]
    assert names == [
        "error_level",
        "noise_residual",
        "spectrum",
        "resampling",
        "double_compression",
        "jpeg_tables",
    ]
