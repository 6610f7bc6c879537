"""Released checkpoints: tiny ones of the same structure against the published forward pass, written out."""

import argparse
import json
import math
import os

import numpy as np
import pytest
import torch
import torch.nn.functional as F
import typer
from typer.testing import CliRunner

from detector.checkpoint import load_checkpoint, read_checkpoint_card
from detector.errors import ModelError
from detector.import_commands import register
from detector.released import STRUCTURES, Choices, convert_release, import_release, read_archive
from detector.vit import TrunkConfig, weight_shapes
from detector.vit.shapes import IMAGENET_MEAN, IMAGENET_STD

WIDTH, DEPTH, PATCH, SIZE, MLP, HIDDEN = 32, 2, 8, 32, 48, 6
SHAPE = {"width": WIDTH, "depth": DEPTH, "heads": 2, "patch_px": PATCH, "image_px": SIZE, "mlp_width": MLP}
CLIP = TrunkConfig(**SHAPE, final_norm=True)
DINO = TrunkConfig(
    **SHAPE,
    mean=IMAGENET_MEAN,
    std=IMAGENET_STD,
    activation="gelu",
    positions="rotary",
    registers=2,
    patch_bias=True,
    embedding_norm=False,
    layer_scale=True,
    final_norm=True,
)
PROJECTIONS = ("q", "k", "v", "out")
State = dict[str, torch.Tensor]


class Draw:
    """Seeded random tensors."""

    def __init__(self, seed: int) -> None:
        self.generator = torch.Generator().manual_seed(seed)

    def __call__(self, *shape: int, scale: float | None = None) -> torch.Tensor:
        values = torch.randn(*shape, generator=self.generator)
        return values * (shape[-1] ** -0.5 if scale is None else scale)

    def norm(self, name: str) -> State:
        return {f"{name}.weight": 1 + self(WIDTH, scale=0.1), f"{name}.bias": self(WIDTH, scale=0.1)}


def expert_parts(draw: Draw, weight: torch.Tensor, kind: str, experts: int, rank: int) -> State:
    """What the release keeps of one projection with trained experts."""
    if kind == "lora":
        parts = {"weight_main": weight}
        for e in range(experts):
            parts |= {f"lora_A_experts.{e}": draw(rank, WIDTH), f"lora_B_experts.{e}": draw(WIDTH, rank)}
        return parts
    u, s, v = torch.linalg.svd(weight.double(), full_matrices=False)
    main = WIDTH - rank
    parts = {
        "weight_main": (u[:, :main] * s[:main]) @ v[:main],
        "U_r": u[:, :main],
        "V_r": v[:main],
        "weight_original_fnorm": weight.double().norm(),
    }
    for e in range(experts):
        parts |= {
            f"U_experts.{e}": u[:, main:] + draw(WIDTH, rank, scale=0.3),
            f"S_experts.{e}": s[main:] + draw(rank, scale=0.3),
            f"V_experts.{e}": v[main:] + draw(rank, WIDTH, scale=0.3),
        }
    return {name: value.float().contiguous() for name, value in parts.items()}


def head_and_router(draw: Draw, experts: int) -> State:
    return {
        "gating_network.network.0.weight": draw(HIDDEN, WIDTH),
        "gating_network.network.0.bias": draw(HIDDEN),
        "gating_network.network.2.weight": draw(experts - 1, HIDDEN),
        "gating_network.network.2.bias": draw(experts - 1),
        "head.weight": draw(2, WIDTH),
        "head.bias": draw(2),
    }


def clip_state(kind: str = "svd", experts: int = 6, rank: int = 3, seed: int = 0) -> State:
    draw, state, frozen = Draw(seed), {}, "feature_extractor.vision_model."
    for name, value in {
        "class_embedding": draw(WIDTH),
        "patch_embedding.weight": draw(WIDTH, 3, PATCH, PATCH, scale=0.1),
        "position_embedding.weight": draw((SIZE // PATCH) ** 2 + 1, WIDTH),
    }.items():
        state |= {f"embeddings.{name}": value, f"{frozen}embeddings.{name}": value.clone()}
    state[f"{frozen}embeddings.position_ids"] = torch.arange(17).unsqueeze(0)
    pairs = [("ln_pre", "pre_layrnorm"), ("ln_post", "post_layernorm")]
    pairs += [
        (f"encoder_layers.{i}.layer_norm{n}", f"encoder.layers.{i}.layer_norm{n}")
        for i in range(DEPTH)
        for n in (1, 2)
    ]
    for mine, theirs in pairs:
        for name, value in draw.norm("").items():
            state |= {mine + name: value, frozen + theirs + name: value.clone()}
    for i in range(DEPTH):
        for name, shape in (("fc1", (MLP, WIDTH)), ("fc2", (WIDTH, MLP))):
            for part, value in {"weight": draw(*shape), "bias": draw(shape[0], scale=0.1)}.items():
                state[f"encoder_layers.{i}.mlp.{name}.{part}"] = value
                state[f"{frozen}encoder.layers.{i}.mlp.{name}.{part}"] = value.clone()
        for p in PROJECTIONS:
            weight, bias = draw(WIDTH, WIDTH), draw(WIDTH, scale=0.1)
            stem = f"encoder_layers.{i}.self_attn.{p}_proj."
            parts = expert_parts(draw, weight, kind, experts, rank) | {"bias": bias}
            state |= {stem + name: value for name, value in parts.items()}
            own = f"{frozen}encoder.layers.{i}.self_attn.{p}_proj."
            state |= {own + "weight": weight.clone(), own + "bias": bias.clone()}
    return state | head_and_router(draw, experts)


def dino_state(experts: int = 6, rank: int = 1, seed: int = 0) -> State:
    """Hugging Face's DINOv3 names in the frozen copy; no bias on keys."""
    draw, state, frozen = Draw(seed), {}, "feature_extractor."
    for name, value in {
        "cls_token": draw(1, 1, WIDTH),
        "register_tokens": draw(1, 2, WIDTH),
        "mask_token": draw(1, 1, WIDTH),
        "patch_embeddings.weight": draw(WIDTH, 3, PATCH, PATCH, scale=0.1),
        "patch_embeddings.bias": draw(WIDTH),
    }.items():
        state |= {f"embeddings.{name}": value, f"{frozen}embeddings.{name}": value.clone()}
    for name, value in draw.norm("").items():
        state |= {f"ln_post{name}": value, f"{frozen}norm{name}": value.clone()}
    for i in range(DEPTH):
        mine, theirs = f"encoder_layers.{i}.", f"{frozen}layer.{i}."
        for n in (1, 2):
            for name, value in draw.norm("").items():
                state |= {f"{mine}layer_norm{n}{name}": value, f"{theirs}norm{n}{name}": value.clone()}
            scale = draw(WIDTH, scale=1.0)
            state |= {
                f"{mine}layer_scale{n}.lambda1": scale,
                f"{theirs}layer_scale{n}.lambda1": scale.clone(),
            }
        for a, b, shape in (("fc1", "up_proj", (MLP, WIDTH)), ("fc2", "down_proj", (WIDTH, MLP))):
            for part, value in {"weight": draw(*shape), "bias": draw(shape[0], scale=0.1)}.items():
                state |= {f"{mine}mlp.{a}.{part}": value, f"{theirs}mlp.{b}.{part}": value.clone()}
        for p in PROJECTIONS:
            weight, bias = draw(WIDTH, WIDTH), draw(WIDTH, scale=0.1)
            stem, own = f"{mine}self_attn.{p}_proj.", f"{theirs}attention.{'o' if p == 'out' else p}_proj."
            parts = expert_parts(draw, weight, "svd", experts, rank)
            state |= {stem + name: value for name, value in parts.items()}
            state[own + "weight"] = weight.clone()
            if p != "k":
                state |= {stem + "bias": bias, own + "bias": bias.clone()}
    return state | head_and_router(draw, experts)


def linear(state: State, name: str, x: torch.Tensor) -> torch.Tensor:
    return F.linear(x, state[f"{name}.weight"], state.get(f"{name}.bias"))


def norm(state: State, name: str, x: torch.Tensor) -> torch.Tensor:
    return F.layer_norm(x, (WIDTH,), state[f"{name}.weight"], state[f"{name}.bias"], 1e-5)


def with_experts(state: State, name: str, x: torch.Tensor, gates: torch.Tensor) -> torch.Tensor:
    """One picture's tokens (T, D): W_main x + b, then one expert after another."""
    y = F.linear(x, state[f"{name}.weight_main"], state.get(f"{name}.bias"))
    for e, gate in enumerate(gates):
        if f"{name}.lora_A_experts.{e}" in state:
            low = x @ state[f"{name}.lora_A_experts.{e}"].T
            y = y + gate * (low @ state[f"{name}.lora_B_experts.{e}"].T)
        else:
            u, s, v = (state[f"{name}.{part}_experts.{e}"] for part in "USV")
            y = y + gate * (x @ v.T @ torch.diag(s) @ u.T)
    return y


def turned(x: torch.Tensor) -> torch.Tensor:
    """Heads of one picture (H, T, d) with DINOv3's rotary positions, channel by channel."""
    side, d, y = SIZE // PATCH, x.shape[-1], x.clone()
    for row in range(side):
        for column in range(side):
            token = 3 + row * side + column
            for axis, place in enumerate((row, column)):
                for k in range(d // 4):
                    angle = 2 * math.pi * ((place + 0.5) / side * 2 - 1) / 100 ** (4 * k / d)
                    a, b = axis * (d // 4) + k, axis * (d // 4) + k + d // 2
                    y[:, token, a] = x[:, token, a] * math.cos(angle) - x[:, token, b] * math.sin(angle)
                    y[:, token, b] = x[:, token, b] * math.cos(angle) + x[:, token, a] * math.sin(angle)
    return y


def features(state: State, names: dict, pixels: torch.Tensor, gates: torch.Tensor | None) -> torch.Tensor:
    """Final class token (D,) of one normalised picture (3, S, S), with experts where gates are given."""
    dino = "cls" in names
    e, patch = names["embeddings"], "patch_embeddings" if dino else "patch_embedding"
    x = F.conv2d(pixels[None], state[f"{e}{patch}.weight"], state.get(f"{e}{patch}.bias"), PATCH)
    x = x.flatten(2)[0].T
    if dino:
        x = torch.cat([state[f"{e}cls_token"][0], state[f"{e}register_tokens"][0], x])
    else:
        x = torch.cat([state[f"{e}class_embedding"][None], x]) + state[f"{e}position_embedding.weight"]
        x = norm(state, names["pre"], x)
    for i in range(DEPTH):
        layer = names["layer"].format(i)

        def project(part: str, y: torch.Tensor, layer: str = layer) -> torch.Tensor:
            name = f"{layer}{names['attention']}.{names.get(part, part)}_proj"
            return linear(state, name, y) if gates is None else with_experts(state, name, y, gates)

        y = norm(state, f"{layer}{names['norm']}1", x)
        q, k, v = (project(part, y).view(-1, 2, WIDTH // 2).transpose(0, 1) for part in "qkv")
        if dino:
            q, k = turned(q), turned(k)
        mixed = (q @ k.transpose(1, 2) / (WIDTH // 2) ** 0.5).softmax(-1) @ v
        y = project("out", mixed.transpose(0, 1).reshape(-1, WIDTH))
        x = x + (y * state[f"{layer}layer_scale1.lambda1"] if dino else y)
        y = linear(state, f"{layer}mlp.{names['fc1']}", norm(state, f"{layer}{names['norm']}2", x))
        y = F.gelu(y) if dino else y * torch.sigmoid(1.702 * y)
        y = linear(state, f"{layer}mlp.{names['fc2']}", y)
        x = x + (y * state[f"{layer}layer_scale2.lambda1"] if dino else y)
    return norm(state, names["post"], x)[0]


MAIN = {
    "embeddings": "embeddings.",
    "pre": "ln_pre",
    "post": "ln_post",
    "layer": "encoder_layers.{}.",
    "attention": "self_attn",
    "norm": "layer_norm",
    "fc1": "fc1",
    "fc2": "fc2",
}
FROZEN_CLIP = MAIN | {
    "embeddings": "feature_extractor.vision_model.embeddings.",
    "pre": "feature_extractor.vision_model.pre_layrnorm",
    "post": "feature_extractor.vision_model.post_layernorm",
    "layer": "feature_extractor.vision_model.encoder.layers.{}.",
}
FROZEN_DINO = MAIN | {
    "embeddings": "feature_extractor.embeddings.",
    "post": "feature_extractor.norm",
    "layer": "feature_extractor.layer.{}.",
    "attention": "attention",
    "out": "o",
    "norm": "norm",
    "fc1": "up_proj",
    "fc2": "down_proj",
    "cls": "",
}


def published(state: State, pixels: torch.Tensor, trunk: TrunkConfig, top_k: int):
    """Logits (B, 2) and gates (B, E) as the release computes them, picture by picture."""
    dino, all_logits, all_gates = trunk.positions == "rotary", [], []
    mean, std = (torch.tensor(value).view(3, 1, 1) for value in (trunk.mean, trunk.std))
    for picture in pixels:
        x = (picture / 255 - mean) / std
        read = features(state, FROZEN_DINO if dino else FROZEN_CLIP, x, None)
        hidden = linear(state, "gating_network.network.0", read).relu()
        scores = linear(state, "gating_network.network.2", hidden)
        values, chosen = scores.topk(top_k)
        gates = torch.zeros(len(scores) + 1)
        for expert, weight in zip(chosen.tolist(), values.softmax(0), strict=True):
            gates[expert] = weight
        gates[-1] = 1
        last = features(state, MAIN | ({"cls": ""} if dino else {}), x, gates)
        all_logits.append(linear(state, "head", last))
        all_gates.append(gates)
    return torch.stack(all_logits), torch.stack(all_gates)


def pictures(batch: int, seed: int = 0) -> torch.Tensor:
    values = np.random.default_rng(seed).integers(0, 256, (batch, 3, SIZE, SIZE), dtype=np.uint8)
    return torch.from_numpy(values)


WRAPPERS = {
    "model": lambda state: {"model": state, "epoch": 1, "args": argparse.Namespace(lr=2e-4)},
    "model_ema": lambda state: {"model_ema": state},
    "module": lambda state: {"model": {f"module.{name}": value for name, value in state.items()}},
    "bare": lambda state: state,
}


@pytest.fixture(autouse=True)
def tiny_structures(monkeypatch):
    monkeypatch.setitem(STRUCTURES, "tiny-clip", CLIP)
    monkeypatch.setitem(STRUCTURES, "tiny-dino", DINO)


@pytest.fixture
def store(tmp_path):
    def write(state, name: str = "checkpoint_v2.pth"):
        torch.save(state, tmp_path / name)
        return tmp_path / name

    return write


def convert(path, trunk: TrunkConfig = CLIP, **changes):
    return convert_release(read_archive(path), "tiny", trunk, **changes)


CASES = {
    "clip-svd": (lambda: clip_state("svd", 6, 3), CLIP, 2, "model"),
    "clip-svd-rank-1": (lambda: clip_state("svd", 6, 1, seed=1), CLIP, 2, "model_ema"),
    "clip-svd-genimage": (lambda: clip_state("svd", 3, 4, seed=2), CLIP, 1, "module"),
    "clip-lora": (lambda: clip_state("lora", 6, 4, seed=3), CLIP, 2, "bare"),
    "dino-svd": (dino_state, DINO, 2, "model"),
}


@pytest.mark.parametrize("case", CASES)
def test_an_imported_model_computes_what_the_release_does(case, store):
    make, trunk, top_k, wrapper = CASES[case]
    state = make()
    release = convert(store(WRAPPERS[wrapper](state)), trunk)
    for batch in (1, 3):
        pixels = pictures(batch, seed=batch)
        with torch.no_grad():
            output = release.model(pixels)
        logits, gates = published(state, pixels, trunk, top_k)
        assert torch.allclose(output.logits, logits, rtol=0, atol=1e-5)
        assert torch.allclose(output.gates, gates, rtol=0, atol=1e-5)
    assert release.model.config.router.top_k == top_k
    assert release.deviation < 1e-6


@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_every_wrapping_gives_the_same_model(wrapper, store):
    state = clip_state()
    mine = convert(store(WRAPPERS[wrapper](state), f"{wrapper}.pth")).model.state_dict()
    other = convert(store(state, "plain.pth")).model.state_dict()
    assert all(torch.equal(value, other[name]) for name, value in mine.items())


def test_files_of_the_format_before_zip_are_read_too(tmp_path):
    state = clip_state()
    torch.save({"model": state}, tmp_path / "old.pth", _use_new_zipfile_serialization=False)
    read = read_archive(tmp_path / "old.pth").tensors
    assert read.keys() == state.keys()
    assert all(torch.equal(value, state[name]) for name, value in read.items())


def test_shapes_decide_and_the_number_of_experts_names_the_domains(store):
    six, three = convert(store(clip_state())), convert(store(clip_state(experts=3, rank=4)))
    assert six.model.config.expert_names == ("human", "animal", "object", "scene", "anime", "artifact")
    assert three.model.config.expert_names == ("human_animal", "object_scene", "artifact")
    assert (three.sizes.rank, three.sizes.experts, three.sizes.hidden) == (4, 3, HIDDEN)
    assert three.model.config.experts.rank == 4
    table = clip_state()
    for name in ("embeddings.", "feature_extractor.vision_model.embeddings."):
        table[f"{name}position_embedding.weight"] = torch.ones(9 + 1, WIDTH)
    assert convert(store(table)).model.trunk.config.image_px == 3 * PATCH


def test_names_taken_over_from_dinov3_blocks_are_understood(store):
    state = {}
    for name, value in dino_state().items():
        if name.startswith("encoder_layers."):
            name = name.replace("self_attn.out_proj", "attention.o_proj").replace("self_attn", "attention")
            name = name.replace("layer_norm", "norm").replace("mlp.fc1", "mlp.up_proj")
            name = name.replace("mlp.fc2", "mlp.down_proj")
        state[name.replace("ln_post", "norm") if name.startswith("ln_post") else name] = value
    mine, other = convert(store(state, "a.pth"), DINO), convert(store(dino_state(), "b.pth"), DINO)
    pixels = pictures(1)
    with torch.no_grad():
        assert torch.equal(mine.model(pixels).logits, other.model(pixels).logits)


def test_other_numbers_of_experts_need_names(store):
    path = store(clip_state(experts=4))
    with pytest.raises(ModelError, match=r"holds 4 experts; their domains and top-k are only known for 3 or"):
        convert(path)
    with pytest.raises(ModelError, match="has 3 semantic experts; as many different domains are needed"):
        convert(path, domains=("a", "b", "a"), top_k=2)
    with pytest.raises(ModelError, match="top-k is 4; the 3 semantic experts"):
        convert(path, domains=("a", "b", "c"), top_k=4)
    assert convert(path, domains=("a", "b", "c"), top_k=2).model.config.expert_names[-1] == "artifact"


Q = "encoder_layers.1.self_attn.q_proj"
FAULTS = {
    "missing": (
        lambda s: [s.pop(f"{Q}.U_experts.{e}") for e in (1, 2, 3, 4)],
        rf"4 missing \({Q}.U_experts.1, {Q}.U_experts.2, {Q}.U_experts.3, ...\)",
    ),
    "missing frozen": (
        lambda s: s.pop("feature_extractor.vision_model.post_layernorm.bias"),
        r"1 missing \(feature_extractor.post_layernorm.bias\)",
    ),
    "unexpected": (
        lambda s: s.update({"head.extra": torch.ones(1), f"{Q}.lora_A_experts.0": torch.ones(1)}),
        r"unexpected \(encoder_layers.1.self_attn.q_proj.lora_A_experts.0, head.extra\)",
    ),
    "one more expert": (
        lambda s: s.update({f"{Q}.S_experts.6": torch.ones(3)}),
        rf"1 unexpected \({Q}.S_experts.6\)",
    ),
    "shape": (
        lambda s: s.update({f"{Q}.S_experts.2": torch.ones(2), "head.weight": torch.ones(3, WIDTH)}),
        rf"2 of a wrong shape \({Q}.S_experts.2 is \(2,\), not \(3,\), head.weight is \(3, 32\), not \(2, 32",
    ),
    "both kinds": (
        lambda s: s.update({"encoder_layers.0.self_attn.q_proj.lora_A_experts.0": torch.ones(3, WIDTH)}),
        "holds experts of both kinds",
    ),
    "no router": (
        lambda s: s.pop("gating_network.network.0.weight"),
        "misses gating_network.network.0.weight",
    ),
    "not finite": (lambda s: s["head.bias"].fill_(math.nan), r"1 not finite \(head.bias\)"),
    "two names": (
        lambda s: s.update({"norm.weight": torch.ones(WIDTH)}),
        "holds ln_post.weight twice, the second time as norm.weight",
    ),
    "other mlp": (
        lambda s: s["encoder_layers.0.mlp.fc1.bias"].add_(0.1),
        r"another backbone .*: 1 weights differ \(encoder_layers.0.mlp.fc1.bias\)",
    ),
    "other main weight": (
        lambda s: s[f"{Q}.weight_main"].add_(0.1 * torch.randn(WIDTH, WIDTH)),
        rf"{Q}.weight_main of checkpoint_v2.pth differs .* by more than 3 triplets",
    ),
    "other space": (
        lambda s: s.update({f"{Q}.U_r": s[f"{Q}.U_r"].flip(0)}),
        rf"{Q}.U_r of checkpoint_v2.pth does not belong",
    ),
    "other norm": (
        lambda s: s[f"{Q}.weight_original_fnorm"].mul_(2),
        rf"{Q}.weight_original_fnorm of .* does not belong",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_what_does_not_fit_is_named(fault, store):
    change, message = FAULTS[fault]
    state = clip_state()
    change(state)
    with pytest.raises(ModelError, match=message) as caught:
        convert(store({"model": state}))
    assert "\n" not in str(caught.value)


def test_another_backbone_is_refused(store):
    with pytest.raises(ModelError, match=r"missing \(.*\); \d+ unexpected \("):
        convert(store(clip_state()), DINO)
    with pytest.raises(ModelError, match=r"missing \(encoder_layers.2"):
        convert(store(clip_state()), CLIP.model_copy(update={"depth": 3}))


class Harmful:
    def __init__(self, function, argument):
        self.call = function, (argument,)

    def __reduce__(self):
        return self.call


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            {"model": {"a": Harmful(print, "code was run")}},
            "would run print when unpickled; only tensors and",
        ),
        (
            {"a": Harmful(os.system, "echo code was run")},
            "would run posix.system when unpickled; only tensors",
        ),
        ([torch.ones(1)], "holds a list; a dictionary of tensors is needed"),
        ({"model": {}}, "holds no tensors"),
        ({"optimizer": {"lr": 1}}, "holds 'optimizer', which is no tensor"),
    ],
)
def test_other_contents_are_refused_and_nothing_runs(content, message, store, capfd):
    with pytest.raises(ModelError, match=message) as caught:
        read_archive(store(content))
    assert "\n" not in str(caught.value)
    assert "code was run" not in capfd.readouterr().out


def test_damaged_and_missing_files_are_refused(tmp_path, store):
    path = store({"model": clip_state()})
    path.write_bytes(path.read_bytes()[:2000])
    for content in (path, tmp_path / "noise.pth"):
        if content != path:
            content.write_bytes(b"noise" * 10)
        with pytest.raises(
            ModelError, match=r"it is no file of tensors written by torch\.save, or it is dam"
        ):
            read_archive(content)
    with pytest.raises(ModelError, match="No such file"):
        read_archive(tmp_path / "absent.pth")


@pytest.mark.parametrize(("make", "backbone"), [(clip_state, "tiny-clip"), (dino_state, "tiny-dino")])
def test_our_format_gives_the_same_model_back(make, backbone, store, tmp_path):
    path, out = store(make(), "checkpoint_omniaid_v1.pth"), tmp_path / "out"
    release, loaded = import_release(path, backbone, out), load_checkpoint(tmp_path / "out")
    mine, theirs = release.model.state_dict(), loaded.state_dict()
    assert mine.keys() == theirs.keys()
    assert all(torch.equal(mine[name], theirs[name]) for name in mine)
    with torch.no_grad():
        assert torch.equal(release.model(pictures(3)).logits, loaded(pictures(3)).logits)
    card = read_checkpoint_card(out)
    assert card.model.backbone == backbone
    assert card.facts["preprocessing"] == {"size_px": SIZE, "views": ["global"], "resized_first_px": 512}
    assert card.facts["origin"]["sha256"] == read_archive(path).sha256
    with pytest.raises(ModelError, match="holds a checkpoint already"):
        import_release(path, backbone, out)
    with pytest.raises(ModelError, match="is a file; the folder to write is needed"):
        import_release(path, backbone, path)


def test_the_variant_is_never_guessed(store, tmp_path):
    path = store(clip_state(experts=3, rank=4), "checkpoint_omniaid_genimage_sd14.pth")
    with pytest.raises(ModelError, match="does not end in _v1 or _v2; say with --variant"):
        import_release(path, "tiny-clip", tmp_path / "out")
    assert not (tmp_path / "out").exists()
    import_release(path, "tiny-clip", tmp_path / "out", Choices(variant="v2"))
    card = read_checkpoint_card(tmp_path / "out")
    assert card.facts["preprocessing"]["resized_first_px"] is None


def test_rotary_positions_take_another_size_and_tables_do_not(store, tmp_path):
    release = import_release(store(dino_state()), "tiny-dino", tmp_path / "a", Choices(size_px=48))
    assert load_checkpoint(tmp_path / "a").trunk.config.image_px == 48
    assert release.model(torch.zeros(1, 3, 48, 48, dtype=torch.uint8)).logits.shape == (1, 2)
    with pytest.raises(ModelError, match="cannot be cut into patches of 8 px"):
        import_release(store(dino_state()), "tiny-dino", tmp_path / "b", Choices(size_px=50))
    with pytest.raises(ModelError, match="the position table decides the input size"):
        import_release(store(clip_state()), "tiny-clip", tmp_path / "b", Choices(size_px=48))


def test_the_backbone_stands_in_for_a_missing_frozen_copy(store, tmp_path):
    state, prefix = clip_state(), "feature_extractor.vision_model."
    frozen = {n.removeprefix(prefix): v for n, v in state.items() if n.startswith(prefix)}
    rest = {name: value for name, value in state.items() if not name.startswith(prefix)}
    frozen.pop("embeddings.position_ids")
    with pytest.raises(ModelError, match=r"missing \(feature_extractor.embeddings"):
        import_release(store(rest), "tiny-clip", tmp_path / "out")
    release = convert_release(read_archive(store(rest)), "tiny", CLIP, frozen=frozen)
    whole = convert(store(state)).model.state_dict()
    assert release.frozen_from == "backbone"
    assert all(torch.equal(value, whole[name]) for name, value in release.model.state_dict().items())
    other = {name: value + 0.01 for name, value in frozen.items()}
    with pytest.raises(ModelError, match="is another backbone"):
        convert_release(read_archive(store(rest)), "tiny", CLIP, frozen=other)


def test_the_released_structures_have_their_published_sizes():
    clip, dino = (weight_shapes(STRUCTURES[name]) for name in ("clip-vit-l14-336", "dinov3-vit-l16"))
    assert clip["embeddings.position_embedding.weight"] == (24 * 24 + 1, 1024)
    assert clip["encoder.layers.23.mlp.fc1.weight"] == (4096, 1024)
    assert dino["embeddings.register_embedding"] == (4, 1024)
    assert STRUCTURES["dinov3-vit-l16"].image_px == 448


@pytest.mark.slow
@pytest.mark.parametrize(("make", "trunk"), [(clip_state, CLIP), (dino_state, DINO)])
def test_an_imported_model_exports_to_onnx(make, trunk, store, tmp_path):
    from detector.export import check_export, export_onnx

    model = convert(store(make()), trunk).model
    export_onnx(model, tmp_path / "model.onnx")
    assert check_export(model, tmp_path / "model.onnx", batches=(1, 3)) <= 1e-4


def test_the_command_writes_a_checkpoint_and_says_what_is_in_it(store, tmp_path):
    app = typer.Typer()
    app.callback()(lambda: None)
    register(app)
    path, out = store({"model": clip_state("lora", 4)}), tmp_path / "out"
    told = ["--domains", "a, b,c", "--top-k", "1", "--variant", "v2"]
    result = CliRunner().invoke(
        app, ["import", str(path), "--backbone", "tiny-clip", "--out", str(out), *told]
    )
    assert result.exit_code == 0, result.exception
    assert result.stdout.strip() == str(out / "model.safetensors")
    assert "4 lora experts of rank 3, router 6 wide, input 32 px" in result.stderr
    assert json.loads((out / "model.json").read_text())["model"]["domains"] == ["a", "b", "c"]
    assert sorted(file.name for file in out.iterdir()) == ["model.json", "model.safetensors"]


def test_a_backbone_file_names_the_structure(store, tmp_path):
    """Any backbone that training knows can be named; the file here is 64 wide, so nothing of it fits."""
    from tests.detector.tiny import save_tiny_backbone

    path = save_tiny_backbone(tmp_path / "tiny.safetensors")
    with pytest.raises(ModelError, match=r"missing .*of a wrong shape"):
        import_release(store(clip_state()), str(path), tmp_path / "out")
