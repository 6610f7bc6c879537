import warnings
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from mirage.cards.counts import Counts, count
from mirage.cards.plots import (
    COLOURS,
    DPI,
    PLOTS,
    WIDTH_INCHES,
    draw,
    plot_generators,
    plot_qualities,
    plot_timeline,
)
from tests.mirage.written_set import WrittenSet, write_small


@pytest.fixture(scope="module")
def counts(tmp_path_factory) -> Counts:
    return count(write_small(tmp_path_factory.mktemp("sets") / "small"), headers=True)


@pytest.fixture(scope="module")
def drawn(counts, tmp_path_factory) -> dict[str, Path]:
    return {plot.path.stem: plot.path for plot in draw(counts, tmp_path_factory.mktemp("plots"))}


def shares_of(path: Path) -> dict[str, float]:
    """How much of a plot is painted in each class's colour."""
    pixels = np.asarray(Image.open(path).convert("RGB")).reshape(-1, 3).astype(int)
    colours = {
        label: [int(colour[place : place + 2], 16) for place in (1, 3, 5)]
        for label, colour in COLOURS.items()
    }
    return {label: float((abs(pixels - colour).max(axis=1) < 12).mean()) for label, colour in colours.items()}


def test_every_plot_is_drawn_at_the_width_of_a_card(drawn):
    assert list(drawn) == list(PLOTS)
    for path in drawn.values():
        assert Image.open(path).width == WIDTH_INCHES * DPI
        assert path.stat().st_size < 200_000


@pytest.mark.parametrize("name", ["splits", "domains", "generators", "sizes", "quality"])
def test_both_classes_have_their_own_colour_in_every_plot(drawn, name):
    shares = shares_of(drawn[name])
    assert shares["real"] > 0.001
    if name != "quality":
        assert shares["ai"] > 0.001


def test_bars_are_as_long_as_their_numbers(tmp_path):
    set_ = WrittenSet(tmp_path / "set")
    for label, number in (("real", 6), ("ai", 2)):
        for _ in range(number):
            set_.keep("train", label, "photos", "x")
    (path,) = (
        plot.path for plot in draw(count(set_.write()), tmp_path / "plots") if plot.path.stem == "splits"
    )
    shares = shares_of(path)
    assert shares["real"] / shares["ai"] == pytest.approx(3, rel=0.1)


def test_equal_counts_give_equal_files(counts, drawn, tmp_path):
    again = draw(counts, tmp_path / "again")
    assert [plot.path.read_bytes() for plot in again] == [path.read_bytes() for path in drawn.values()]
    assert all("Software" not in Image.open(path).info for path in drawn.values())


def test_without_data_there_is_no_plot(tmp_path):
    set_ = WrittenSet(tmp_path / "set")
    set_.drop("rejected", "photos", "x.png", "the picture is all one colour")
    (tmp_path / "set").mkdir()
    assert draw(count(set_.write()), tmp_path / "plots") == ()
    set_.keep("train", "ai", "paintings", "Painter")
    counts = count(set_.write())
    assert plot_timeline(counts) is None, "no release date is known"
    assert len(plot_qualities(counts).axes) == 1, "headers were not read, so there is no JPEG quality"


def test_names_from_strangers_are_drawn_as_they_are(tmp_path):
    set_ = WrittenSet(tmp_path / "set")
    names = ["$\\frac{1$ cost", "画家 " * 30, "x" * 200, "", "<b>&"]
    for name in names:
        set_.keep("train", "ai", "paintings", name, released="2024-02-29", stored="webp")
    counts = count(set_.write())
    labels = [label.get_text() for label in plot_generators(counts).axes[0].get_yticklabels()]
    assert "$\\frac{1$ cost" in labels and "not told" in labels
    assert max(map(len, labels)) <= 38
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert {"generators", "timeline"} <= {plot.path.stem for plot in draw(counts, tmp_path / "plots")}


def test_many_generators_are_summed_up(tmp_path):
    set_ = WrittenSet(tmp_path / "set")
    for number in range(35):
        set_.keep("train", "ai", "paintings", f"Painter {number}")
    labels = [label.get_text() for label in plot_generators(count(set_.write(50))).axes[0].get_yticklabels()]
    assert len(labels) == 31
    assert labels[-1] == "5 others"


def test_a_generator_in_two_splits_has_two_marks(tmp_path):
    set_ = WrittenSet(tmp_path / "set")
    set_.keep("train", "ai", "paintings", "Painter", released="2024-01-01")
    set_.keep("devtest", "ai", "newer", "Painter", released="2024-01-01")
    marks = [line.get_label() for line in plot_timeline(count(set_.write())).axes[0].get_lines()]
    assert marks == ["train", "devtest"]
