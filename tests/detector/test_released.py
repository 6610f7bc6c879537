"""Released checkpoints: tiny ones of the same structure against the published forward pass, written out."""

import json
import math
import os

import numpy as np
import pytest
import torch
import typer
from typer.testing import CliRunner

from detector.checkpoint import load_checkpoint, read_checkpoint_card
from detector.errors import ModelError
from detector.import_commands import register
from detector.preprocess import Preprocessing
from detector.released import STRUCTURES, Choices, convert_release, import_release, read_archive
from detector.vit import TrunkConfig, weight_shapes
from tests.detector.published_forward import published
from tests.detector.tiny_releases import (
    CLIP,
    DINO,
    HIDDEN,
    PATCH,
    SIZE,
    WIDTH,
    WRAPPERS,
    clip_state,
    dino_state,
)


def pictures(batch: int, seed: int = 0) -> torch.Tensor:
    values = np.random.default_rng(seed).integers(0, 256, (batch, 3, SIZE, SIZE), dtype=np.uint8)
    return torch.from_numpy(values)


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
    assert Preprocessing(**card.facts["preprocessing"]).resized_first_px == 512
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
    assert card.facts["preprocessing"] == {"size_px": SIZE, "views": ["global"]}


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
