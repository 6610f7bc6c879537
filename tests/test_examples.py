"""The pictures in examples/ are those its table and its maker name, and their files give nothing away."""

import re
import sys
from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

FOLDER = Path(__file__).parents[1] / "examples"
ROW = re.compile(r"^\| `(?P<file>[^`]+)` \|.*\| (?P<truth>real|AI|borderline)[^|]* \|$", re.MULTILINE)
TRUTHS = {row["file"]: row["truth"] for row in ROW.finditer((FOLDER / "README.md").read_text("utf-8"))}
PICTURES = sorted(path for path in FOLDER.iterdir() if path.suffix not in {".md", ".py"} and path.is_file())


def test_table_names_each_picture_and_no_other():
    assert sorted(TRUTHS) == [path.name for path in PICTURES]


def test_maker_makes_each_picture(monkeypatch):
    pytest.importorskip("skimage", reason="the maker needs scikit-image")
    monkeypatch.syspath_prepend(str(FOLDER))
    monkeypatch.delitem(sys.modules, "make", raising=False)
    import make

    assert sorted(example.name for example in make.EXAMPLES) == [path.name for path in PICTURES]
    for example in make.EXAMPLES:
        with Image.open(FOLDER / example.name) as picture:
            assert picture.size == example.size, example.name


@pytest.mark.parametrize("path", PICTURES, ids=lambda path: path.name)
def test_picture_is_small_and_bare(path):
    assert path.stat().st_size <= 150_000
    with Image.open(path) as picture:
        picture.load()
        assert picture.mode == "RGB"
        assert 400 <= max(picture.size) <= 800
        assert min(picture.size) >= 224
        assert not set(picture.info) & {"exif", "xmp", "icc_profile", "comment"}


def test_every_codec_occurs_in_both_classes():
    classes = defaultdict(set)
    for name, truth in TRUTHS.items():
        classes[Path(name).suffix].add(truth)
    assert all(classes[suffix] >= {"real", "AI"} for suffix in (".jpg", ".png", ".webp"))


@pytest.mark.parametrize("name", ["astronaut.webp", "cat.jpg", "rocket.png"])
def test_maker_gives_the_committed_pixels(name, monkeypatch, tmp_path):
    """Photographs only: they need no network. Codec versions may round: a mean of 2 levels is let pass."""
    pytest.importorskip("skimage", reason="the maker needs scikit-image")
    monkeypatch.syspath_prepend(str(FOLDER))
    monkeypatch.delitem(sys.modules, "make", raising=False)
    import make

    example = next(row for row in make.EXAMPLES if row.name == name)
    make.finish(example.make(), example.size, tmp_path / name)
    made, kept = (np.asarray(Image.open(folder / name), dtype=np.int16) for folder in (tmp_path, FOLDER))
    assert np.abs(made - kept).mean() < 2
