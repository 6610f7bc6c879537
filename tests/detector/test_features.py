"""Cached features: the same draw for twins, continued after an interruption, never mixed up."""

import io

import numpy as np
import pytest
import torch
from PIL import Image

from detector.errors import RecipeError
from detector.features import augmented_view, build_cache
from detector.preprocess import Preprocessing
from detector.samples import PictureStore, SampleRow, choose, list_samples
from detector.vit import ExpertConfig
from mirage.build import build
from mirage.errors import BuildError
from tests.detector.tiny import SIZE, tiny_model

PREPROCESSING = Preprocessing(size_px=SIZE)
RECIPE = """
name: small
min_side_px: 32
sources:
  - {kind: folder, name: photos, path: real, label: real, generator: c, split: train, licence: X,
     domain: scene}
  - {kind: folder, name: machine, path: ai, label: ai, generator: m, domain: mixed, split: train, licence: X}
"""


def picture(seed: int) -> Image.Image:
    return Image.fromarray(np.random.default_rng(seed).integers(0, 256, (60, 80, 3), dtype=np.uint8))


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("features")
    for label, first in (("real", 0), ("ai", 100)):
        (folder / label).mkdir()
        for i in range(30):
            picture(first + i).save(folder / label / f"{i}.png")
    (folder / "small.yaml").write_text(RECIPE)
    build(folder / "small.yaml", folder / "data")
    return folder / "data"


@pytest.fixture(scope="module")
def rows(data):
    return choose(list_samples(data), "train", 1000)


def make_cache(data, rows, folder, seed=0, on_progress=lambda done: None):
    model = tiny_model(experts=ExpertConfig(rank=2, blocks=(2, 3)))
    store = PictureStore(data, sorted({row.shard for row in rows}))
    return model, build_cache(model, rows, store, folder, PREPROCESSING, seed=seed, on_progress=on_progress)


def test_every_kept_picture_is_listed_and_stored(data, rows):
    assert len(rows) == 60
    assert sum(row.label for row in rows) == 30
    store = PictureStore(data, sorted({row.shard for row in rows}))
    for row in rows[:5]:
        Image.open(io.BytesIO(store.read(row))).verify()


def test_caps_hold_per_source_and_do_not_depend_on_other_sources(data):
    everything = list_samples(data)
    few = choose(everything, "train", 7)
    assert sorted(row.source for row in few) == ["machine"] * 7 + ["photos"] * 7
    alone = choose([row for row in everything if row.source == "photos"], "train", 7)
    assert [row for row in few if row.source == "photos"] == alone


def test_a_missing_data_set_is_named(tmp_path):
    with pytest.raises(BuildError, match=r"holds no manifest\.parquet"):
        list_samples(tmp_path)


def test_a_sample_missing_from_its_shard_is_named(data, rows):
    stranger = SampleRow("nobody-0", rows[0].shard, "train", 0, "scene", "camera", "photos", None)
    with pytest.raises(RecipeError, match="nobody-0 is in the manifest but not in shard"):
        PictureStore(data, [rows[0].shard]).read(stranger)


def test_the_draw_depends_on_sample_and_seed_alone(data, rows):
    store = PictureStore(data, sorted({row.shard for row in rows}))
    bytes_of = store.read(rows[0])
    first = augmented_view(bytes_of, rows[0], PREPROCESSING, seed=3)
    assert first.shape == (3, SIZE, SIZE)
    assert np.array_equal(first, augmented_view(bytes_of, rows[0], PREPROCESSING, seed=3))
    assert any(
        not np.array_equal(first, augmented_view(bytes_of, rows[0], PREPROCESSING, s)) for s in range(4, 9)
    )


def test_twins_get_the_same_draw():
    buffer = io.BytesIO()
    picture(7).save(buffer, "PNG")
    real, twin = (
        SampleRow(key, "s", "train", label, "artifact", "g", "twins", "pair-1")
        for key, label in (("twins-a", 0), ("twins-b", 1))
    )
    for seed in range(5):
        views = [augmented_view(buffer.getvalue(), row, PREPROCESSING, seed) for row in (real, twin)]
        assert np.array_equal(*views)


def test_cached_features_equal_a_direct_pass(data, rows, tmp_path):
    model, cache = make_cache(data, rows, tmp_path)
    store = PictureStore(data, sorted({row.shard for row in rows}))
    views = np.stack([augmented_view(store.read(row), row, PREPROCESSING, 0) for row in rows[:4]])
    index = np.arange(4)
    with torch.no_grad():
        expected = model.trunk(torch.from_numpy(views))
        assert torch.allclose(cache.features(index), expected, atol=1e-5)
        assert torch.allclose(model.trunk.finish(cache.shared(index), None), expected, atol=2e-2)


class Interrupted(Exception):
    pass


def test_an_interrupted_cache_is_continued(data, rows, tmp_path, monkeypatch):
    monkeypatch.setattr("detector.features.CHUNK", 4)

    def stop(done: int) -> None:
        if done >= 40:
            raise Interrupted

    with pytest.raises(Interrupted):
        make_cache(data, rows, tmp_path / "cut", on_progress=stop)
    seen: list[int] = []
    _, resumed = make_cache(data, rows, tmp_path / "cut", on_progress=seen.append)
    _, whole = make_cache(data, rows, tmp_path / "whole")
    assert 4 < seen[0] <= 44
    assert np.allclose(resumed.frozen, whole.frozen, atol=1e-6)
    assert np.array_equal(resumed.tokens, whole.tokens)


def test_features_of_other_settings_are_refused(data, rows, tmp_path):
    make_cache(data, rows, tmp_path)
    with pytest.raises(RecipeError, match="holds features of other samples or settings"):
        make_cache(data, rows, tmp_path, seed=1)
    with pytest.raises(RecipeError, match="holds features of other samples or settings"):
        make_cache(data, rows[:-1], tmp_path)
