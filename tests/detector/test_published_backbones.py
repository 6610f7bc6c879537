"""The published models' own backbones: from files at hand, and from nowhere else."""

import pytest
from safetensors.torch import save_file

from detector.backbones import BACKBONES, load_backbone, published
from detector.errors import ModelError
from detector.vit import TrunkConfig
from tests.detector.tiny import DEPTH, MLP, PATCH, SIZE, WIDTH, save_tiny_backbone, tiny_weights

NAME = "clip-vit-l14-336"
TINY = TrunkConfig(width=WIDTH, depth=DEPTH, heads=1, patch_px=PATCH, image_px=SIZE, mlp_width=MLP)


@pytest.fixture
def tiny(monkeypatch):
    """The tiny tower in place of the large one, of which no weights can be here."""
    monkeypatch.setitem(published.PUBLISHED, NAME, TINY)


def test_a_named_file_is_read_and_held_against_the_structure(tiny, tmp_path):
    path = save_tiny_backbone(tmp_path / "tiny.safetensors")
    config, weights = load_backbone(f"{NAME}:{path}")
    assert config == TINY
    assert weights.keys() == tiny_weights().keys()


def test_the_cache_is_looked_into_and_nothing_is_fetched(tiny, tmp_path, monkeypatch):
    import huggingface_hub.constants

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    sentence = (
        rf"{NAME} needs its weights at hand, .* no model.safetensors of openai/clip-vit-large-patch14-336"
    )
    with pytest.raises(ModelError, match=sentence):
        load_backbone(NAME)
    stored = tmp_path / "models--openai--clip-vit-large-patch14-336"
    (stored / "refs").mkdir(parents=True)
    (stored / "refs" / "main").write_text("0" * 40)
    (stored / "snapshots" / ("0" * 40)).mkdir(parents=True)
    save_tiny_backbone(stored / "snapshots" / ("0" * 40) / "model.safetensors")
    assert load_backbone(NAME)[0] == TINY


@pytest.mark.parametrize("name", published.PUBLISHED)
def test_another_backbones_file_is_refused(name, tmp_path):
    path = save_tiny_backbone(tmp_path / "tiny.safetensors")
    with pytest.raises(ModelError, match=rf"tiny.safetensors is no {name}: width is 64, not 1024"):
        load_backbone(f"{name}:{path}")
    with pytest.raises(ModelError, match=r"absent.safetensors cannot be read as safetensors"):
        load_backbone(f"{name}:{tmp_path / 'absent.safetensors'}")


def test_weights_that_miss_are_named(tiny, tmp_path):
    weights = tiny_weights()
    weights.pop("encoder.layers.1.mlp.fc2.bias")
    save_file(weights, tmp_path / "part.safetensors")
    with pytest.raises(ModelError, match=r"misses weight encoder\.layers\.1\.mlp\.fc2\.bias"):
        load_backbone(f"{NAME}:{tmp_path / 'part.safetensors'}")


def test_the_names_are_among_those_that_a_recipe_may_give():
    assert set(published.PUBLISHED) < set(BACKBONES)
