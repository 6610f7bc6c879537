"""Our checkpoint format: the same bits back, and every mismatch named."""

import hashlib
import json

import pytest
import torch
from safetensors.torch import load_file, save_file

from detector.checkpoint import load_checkpoint, read_checkpoint_card, save_checkpoint
from detector.errors import ModelError
from detector.model import ModelConfig, OmniAID, RouterConfig, build_model
from detector.vit import ExpertConfig
from tests.detector.tiny import SIZE, tiny_backbone, tiny_config

MODELS = {
    "svd": {},
    "lora": {"experts": ExpertConfig(kind="lora", rank=2)},
    "uneven ranks": {"experts": ExpertConfig(rank=(1, 2, 3, 1, 2, 3), on="attention+mlp")},
    "some blocks": {"experts": ExpertConfig(rank=2, blocks=(2, 3))},
    "main router": {"router": RouterConfig(mode="main", tap=1, hidden=8)},
    "another size": {"image_px": 2 * SIZE},
}


def model_of(name: str) -> OmniAID:
    """A tiny model whose experts have moved."""
    values = tiny_config().model_dump() | MODELS[name]
    model = build_model(ModelConfig(**values), backbone=tiny_backbone())
    with torch.no_grad():
        for index, layer in enumerate(model.expert_layers()):
            generator = torch.Generator().manual_seed(index)
            for factor in (layer.u, layer.v):
                factor += 0.1 * torch.randn(factor.shape, generator=generator)
    return model.eval()


@pytest.mark.parametrize("name", MODELS)
def test_a_loaded_model_is_the_saved_one_bit_for_bit(name, tmp_path):
    model = model_of(name)
    save_checkpoint(model, tmp_path / "saved", {"note": "a"})
    loaded = load_checkpoint(tmp_path / "saved")
    mine, theirs = model.state_dict(), loaded.state_dict()
    assert mine.keys() == theirs.keys()
    assert all(torch.equal(mine[key], theirs[key]) for key in mine)
    side = model.trunk.config.image_px
    pixels = torch.randint(0, 256, (2, 3, side, side), dtype=torch.uint8)
    with torch.no_grad():
        assert all(torch.equal(a, b) for a, b in zip(model(pixels)[:3], loaded(pixels)[:3], strict=True))
    assert loaded.config == model.config
    assert loaded.trainable_state().keys() == model.trainable_state().keys()
    trained, again = (
        {name for name, p in each.named_parameters() if p.requires_grad} for each in (model, loaded)
    )
    assert trained == again
    assert [layer.ranks for layer in loaded.expert_layers()] == [
        layer.ranks for layer in model.expert_layers()
    ]


def test_saving_twice_gives_the_same_files_and_leaves_nothing_else(tmp_path):
    model = model_of("svd")
    for _ in range(2):
        save_checkpoint(model, tmp_path / "a", {"seed": 1})
    save_checkpoint(model, tmp_path / "b", {"seed": 1})
    assert sorted(path.name for path in (tmp_path / "a").iterdir()) == ["model.json", "model.safetensors"]
    for name in ("model.json", "model.safetensors"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()
    assert read_checkpoint_card(tmp_path / "a").facts == {"seed": 1}


@pytest.fixture
def saved(tmp_path):
    save_checkpoint(model_of("svd"), tmp_path, {})
    return tmp_path


def rewrite(folder, change) -> None:
    """Change the tensors and have the description belong to them again."""
    path = folder / "model.safetensors"
    tensors = load_file(path)
    change(tensors)
    save_file(tensors, path)
    card = json.loads((folder / "model.json").read_text())
    card["sha256"] = hashlib.sha256(path.read_bytes()).hexdigest()
    (folder / "model.json").write_text(json.dumps(card))


FAULTS = {
    "missing": (lambda t: t.pop("router.network.0.bias"), "misses weight router.network.0.bias"),
    "unexpected": (lambda t: t.update(a=torch.ones(1), b=torch.ones(1)), "unexpected weight a and 1 more"),
    "shape": (
        lambda t: t.update({"head.center": torch.zeros(3)}),
        r"head.center of .* is torch.float32 \(3,\); torch.float32 \(128,\) is expected",
    ),
    "type": (
        lambda t: t.update({"head.center": t["head.center"].half()}),
        r"is torch.float16 \(128,\); torch.float32 \(128,\) is expected",
    ),
    "table": (
        lambda t: t.update({"trunk.embeddings.positions": torch.ones(3, 4)}),
        r"trunk.embeddings.positions of .* is torch.float32 \(3, 4\)",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_weights_that_do_not_fit_are_named(fault, saved):
    change, message = FAULTS[fault]
    rewrite(saved, change)
    with pytest.raises(ModelError, match=message):
        load_checkpoint(saved)


def test_files_of_two_checkpoints_are_not_mixed(saved):
    tensors = load_file(saved / "model.safetensors")
    tensors["head.center"] += 1
    save_file(tensors, saved / "model.safetensors")
    with pytest.raises(ModelError, match=r"model\.json belongs to a file with"):
        load_checkpoint(saved)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "describes no checkpoint: Invalid JSON"),
        ('{"format": "other"}', "describes no checkpoint: format: Input should be"),
        (b"\xff", "describes no checkpoint"),
    ],
)
def test_a_damaged_description_is_refused(text, message, saved):
    (saved / "model.json").write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(ModelError, match=message) as caught:
        load_checkpoint(saved)
    assert "\n" not in str(caught.value)


def test_missing_files_are_named(saved):
    (saved / "model.safetensors").unlink()
    with pytest.raises(ModelError, match=r"model\.safetensors cannot be read"):
        load_checkpoint(saved)
    with pytest.raises(ModelError, match=r"model\.json cannot be read: No such file"):
        load_checkpoint(saved / "absent")
