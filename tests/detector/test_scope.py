"""Scope by pixels: blank pictures and clear screenshots out, photographs and drawings in."""

import time
from pathlib import Path

import pytest
from PIL import Image, ImageDraw

from detector.scope import cut_strips, read_traits, too_small, why_out_of_scope
from mirage.transforms import hard, jpeg
from tests.golden.pictures import gradient, mixture, noise

EXAMPLES = sorted(
    path
    for path in (Path(__file__).parents[2] / "examples").iterdir()
    if path.suffix in {".jpg", ".png", ".webp"}
)


def window(width=1000, height=700):
    """A program's window: a title bar, a list with lines of text between rules, a white page."""
    image = Image.new("RGB", (width, height), "white")
    draw = ImageDraw.Draw(image)
    draw.rectangle((0, 0, width, 40), fill=(50, 50, 50))
    draw.rectangle((0, 40, 220, height), fill=(235, 235, 235))
    for row, top in enumerate(range(60, height - 20, 22)):
        draw.line((0, top - 6, width, top - 6), fill=(150, 150, 150))
        draw.text((12, top), f"Item {row} of the list", fill="black")
        draw.text(
            (240, top),
            f"{row:04d}  a line of text that says nothing at all, {row * 7} times over",
            fill="black",
        )
    return image


def cartoon(width=800, height=600):
    """A drawing in flat colours: no texture at all, but no rules and no text either."""
    image = Image.new("RGB", (width, height), (120, 190, 240))
    draw = ImageDraw.Draw(image)
    draw.ellipse((-200, 380, 1000, 1200), fill=(90, 180, 80))
    for place, colour in enumerate(((230, 60, 60), (250, 210, 60), (160, 80, 190), (240, 240, 240))):
        left = 80 + 170 * place
        draw.ellipse(
            (left, 160 + 40 * place, left + 190, 420 + 30 * place), fill=colour, outline="black", width=4
        )
    return image


@pytest.mark.parametrize("change", [lambda i: i, lambda i: jpeg(i, 60), lambda i: jpeg(i, 40)])
def test_a_programs_window_is_out_of_scope_also_recompressed(change):
    (reason,) = why_out_of_scope(change(window()))
    assert reason.startswith("It looks like a screenshot or a document: ")


@pytest.mark.parametrize("colour", [(255, 255, 255), (0, 0, 0), (200, 30, 40)])
@pytest.mark.parametrize("change", [lambda i: i, lambda i: jpeg(i, 40)])
def test_blank_pictures_are_out_of_scope(colour, change):
    (reason,) = why_out_of_scope(change(Image.new("RGB", (300, 200), colour)))
    assert reason.startswith("The picture is blank")


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_the_examples_are_in_scope(path):
    with Image.open(path) as picture:
        image = picture.convert("RGB")
    assert why_out_of_scope(image) == why_out_of_scope(hard(image)) == ()


@pytest.mark.parametrize(
    "make", [cartoon, lambda: Image.fromarray(gradient(500, 400))], ids=["cartoon", "ramps"]
)
@pytest.mark.parametrize("change", [lambda i: i, lambda i: jpeg(i, 60), hard])
def test_flat_drawings_and_ramps_are_in_scope(make, change):
    assert why_out_of_scope(change(make())) == ()


@pytest.mark.parametrize("size", [(8, 8), (9, 3000), (3000, 9), (64, 64), (7, 500), (32, 33)])
def test_any_size_is_read(size):
    assert why_out_of_scope(Image.fromarray(noise(*size))) == ()


def test_traits_are_shares():
    for picture in (window(), cartoon(), Image.fromarray(mixture(640, 480))):
        assert all(0 <= value <= 1 for value in read_traits(picture))
    plain = read_traits(Image.new("RGB", (64, 64), "white"))
    assert (plain.equal, plain.runs, plain.flat, plain.one_colour, plain.paper) == (1, 1, 1, 1, 1)
    assert (plain.sharp, plain.texture, plain.upright, plain.level, plain.contrast) == (0, 0, 0, 0, 0)


def test_the_cost_does_not_grow_with_the_picture():
    grey, colours = cut_strips(Image.new("RGB", (6000, 4000)))
    assert grey.size <= 400_000 and colours.shape[:2] == (len(grey), grey.shape[2] // 8)


def test_a_megapixel_costs_a_few_milliseconds():
    image, times = Image.fromarray(mixture(1000, 1000)), []
    for _ in range(9):
        start = time.process_time()
        why_out_of_scope(image)
        times.append(time.process_time() - start)
    assert min(times) < 0.025  # measured: 4 ms; five times as much is a mistake, not a busy machine


def test_size_is_said_in_pixels():
    assert too_small(128, 128) == ()
    assert too_small(127, 128)[0].startswith("Insufficient resolution: the shorter side has 127 px")
