import random

import pytest
from PIL import Image

from mirage import transforms
from mirage.index import COARSE_REACH, FINE_REACH, Index, Known
from mirage.perceptual import Fingerprint, distance, fingerprint
from tests.mirage.conftest import textured


@pytest.fixture
def index(tmp_path):
    index = Index(tmp_path)
    yield index
    index.close()


def known(name: str) -> Known:
    return Known("source", name, "real", "train")


def flipped(value: str, bits: int, draw: random.Random) -> str:
    number = int(value, 16)
    for bit in draw.sample(range(4 * len(value)), bits):
        number ^= 1 << bit
    return f"{number:0{len(value)}x}"


def test_every_hash_within_reach_is_found_and_none_beyond(index):
    """The bands may lose nothing: compared with looking at every pair."""
    draw = random.Random(0)
    prints = [
        Fingerprint(f"{draw.getrandbits(64):016x}", f"{draw.getrandbits(256):064x}") for _ in range(300)
    ]
    for number, one in enumerate(prints):
        index.add(known(str(number)), twin=False, sha256=str(number), fingerprint=one)
    for number, one in enumerate(prints):
        for bits in range(COARSE_REACH + 3):
            query = Fingerprint(flipped(one.coarse, bits, draw), flipped(one.fine, bits, draw))
            near = index.find_near(query, twin=False)
            assert (near is not None) == (bits <= COARSE_REACH), bits
            assert near is None or near == (known(str(number)), bits)
    far = Fingerprint(prints[0].coarse, flipped(prints[0].fine, FINE_REACH + 1, draw))
    assert index.find_near(far, twin=False) is None


def test_the_nearest_of_several_is_given(index):
    for name, fine in (("far", "f" * 3), ("near", "1"), ("same distance, later", "2")):
        index.add(
            known(name), twin=False, sha256=name, fingerprint=Fingerprint("0" * 16, fine.rjust(64, "0"))
        )
    near = index.find_near(Fingerprint("0" * 16, "0" * 64), twin=False)
    assert near == (known("near"), 1)


def test_pairs_are_compared_among_themselves(index):
    one = Fingerprint("0" * 16, "0" * 64)
    index.add(known("pair"), twin=True, sha256="a", fingerprint=one)
    assert index.find_near(one, twin=False) is None
    assert index.find_near(one, twin=True) == (known("pair"), 0)
    assert index.find_exact("a", twin=False) is None
    assert index.find_exact("a", twin=True) == known("pair")


def test_finished_files_are_counted_once(index):
    for kept in (True, False, True):
        index.finish("s", "grid.png", kept)
    index.finish("s", "bad.png", False)
    index.finish("t", "other.png", True)
    assert index.kept_files("s") == 1
    finished = index.finished("s")
    assert ("grid.png" in finished, "bad.png" in finished, "other.png" in finished) == (True, True, False)


EDITS = {
    "jpeg-50": lambda image: transforms.jpeg(image, 50),
    "webp-50": lambda image: transforms.webp(image, 50),
    "half": lambda image: transforms.resize(image, 0.5),
    "brighter": lambda image: Image.eval(image, lambda value: min(255, value + 12)),
    "noise": lambda image: transforms.noise(image, 0.02),
}


@pytest.mark.parametrize("edit", EDITS)
def test_a_copy_is_near_and_another_picture_is_not(edit):
    for seed in range(20):
        image = textured(seed)
        first, second = fingerprint(image), fingerprint(EDITS[edit](image))
        assert distance(first.coarse, second.coarse) <= COARSE_REACH
        assert distance(first.fine, second.fine) <= FINE_REACH
        other = fingerprint(textured(seed + 1000))
        assert distance(first.fine, other.fine) > 2 * FINE_REACH
