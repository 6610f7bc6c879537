import numpy as np
import pytest
from pydantic import ValidationError

from mirage.transforms import (
    CHAIN_TIERS,
    TIERS,
    TRANSFORMS,
    ChainConfig,
    crop,
    jpeg,
    noise,
    random_chain,
    resize,
    resize_long_side,
)
from tests.mirage.conftest import picture


@pytest.mark.parametrize("name", TRANSFORMS)
def test_every_transform_is_repeatable_and_gives_rgb(name):
    image = picture(1, 600, 400)
    first, second = TRANSFORMS[name](image), TRANSFORMS[name](image)
    assert first.mode == "RGB"
    assert np.array_equal(first, second)
    assert np.array_equal(image, picture(1, 600, 400)), "the input must stay as it is"


@pytest.mark.parametrize(("name", "long_side"), [("clean", 1600), ("web", 768), ("hard", 512)])
def test_tiers_limit_the_long_side(name, long_side):
    assert TIERS[name](picture(1, 1600, 800)).size == (long_side, long_side // 2)
    assert TIERS[name](picture(1, 300, 200)).size == (300, 200)


def test_clean_changes_nothing_and_harder_tiers_change_more():
    image = picture(1, 500, 400)
    image = noise(image, 0.05)
    change = {name: np.abs(np.asarray(tier(image), float) - image).mean() for name, tier in TIERS.items()}
    assert change["clean"] == 0 < change["web"] < change["hard"]


def test_sizes():
    assert resize(picture(1, 100, 50), 0.5).size == (50, 25)
    assert resize(picture(1, 100, 50), 0.001).size == (1, 1)
    assert resize_long_side(picture(1, 50, 100), 40).size == (20, 40)
    assert crop(picture(1, 100, 50), 0.8).size == (80, 40)


def test_lower_quality_and_chroma_subsampling_lose_more():
    image = noise(picture(2, 200, 200), 0.1)

    def loss(quality: int, subsampling: str) -> float:
        return float(np.abs(np.asarray(jpeg(image, quality, subsampling), float) - image).mean())

    assert loss(90, "4:4:4") < loss(90, "4:2:0") < loss(30, "4:2:0")


def test_the_chain_depends_on_the_seed_alone():
    image = picture(3, 300, 200)
    runs = [
        [np.asarray(random_chain(image, np.random.default_rng(seed))).tobytes() for seed in range(20)]
        for _ in range(2)
    ]
    assert runs[0] == runs[1]
    assert len(set(runs[0])) > 5


@pytest.mark.parametrize("tier", CHAIN_TIERS)
def test_every_tier_of_the_chain_occurs_as_often_as_declared(tier, monkeypatch):
    seen = []
    for name in CHAIN_TIERS:
        monkeypatch.setitem(
            CHAIN_TIERS, name, lambda image, rng, config, name=name: seen.append(name) or image
        )
    rng = np.random.default_rng(0)
    for _ in range(2000):
        random_chain(picture(1), rng)
    assert abs(seen.count(tier) / 2000 - getattr(ChainConfig(), tier)) < 0.04


def test_the_chain_keeps_small_pictures_usable():
    small = picture(1, 40, 200)
    assert all(min(random_chain(small, np.random.default_rng(seed)).size) >= 32 for seed in range(40))


def test_shares_must_sum_to_one():
    with pytest.raises(ValidationError, match=r"clean \+ mid \+ web \+ hard is 1.7; it must be 1"):
        ChainConfig(clean=1.0)
