"""Domain labels: by a head judged on sources it never saw, by sentences, and what training makes of them."""

import hashlib
import json
from pathlib import Path

import numpy as np
import open_clip
import pyarrow.parquet
import pytest
import torch
import typer
import yaml
from PIL import Image
from safetensors.torch import save_file
from typer.testing import CliRunner

from detector.domain_commands import register
from detector.domain_head import ARTIFACT_PAIR, NO_DOMAIN, balance_sources, cross_fit, index_domains
from detector.domains import DomainSettings, Scored, label_domains, measure_agreement, shipped_recipe
from detector.errors import ModelError, RecipeError
from detector.pipeline import train_model
from detector.recipe import TrainRecipe
from detector.samples import PictureStore, SampleRow, choose, list_samples, read_domains
from detector.zero_shot import SUBJECTS, ZeroShotLabeller, zero_shot_labeller
from mirage.build import build
from mirage.errors import BuildError
from tests.detector.tiny import SIZE, save_tiny_backbone, tiny_config

COUNT = 6  # pictures per source
DOMAINS = ("human", "animal", "object", "scene", "anime")
COLOURS = {"human": (200, 60, 60), "animal": (60, 200, 60), "scene": (60, 60, 200)}
MODEL = "tiny-clip-for-domains"
TINY_CLIP = {
    "embed_dim": 16,
    "vision_cfg": {"image_size": 32, "layers": 2, "width": 64, "head_width": 32, "patch_size": 8},
    "text_cfg": {"context_length": 77, "vocab_size": 49408, "width": 32, "heads": 2, "layers": 2},
}


def picture(domain: str, seed: int) -> Image.Image:
    """Noise around the domain's colour."""
    noise = np.random.default_rng(seed).integers(-50, 51, (64, 72, 3))
    return Image.fromarray((np.array(COLOURS[domain]) + noise).clip(0, 255).astype(np.uint8))


def add_source(folder: Path, name: str, colour: str, **fields: str) -> dict[str, object]:
    (folder / name).mkdir()
    for i in range(COUNT):
        number = int.from_bytes(hashlib.sha256(f"{name}{i}".encode()).digest()[:4], "big")
        picture(colour, number).save(folder / name / f"{i}.png")
    source = {"kind": "folder", "name": name, "path": name, "label": "real", "generator": "g", "licence": "X"}
    return source | {"domain": colour, "split": "train"} | fields


@pytest.fixture(scope="module")
def scratch(tmp_path_factory) -> Path:
    """A data set with two sources per known domain, mixed pictures of known colour, and a tiny backbone."""
    folder = tmp_path_factory.mktemp("domains")
    sources = [add_source(folder, f"{domain}-{n}", domain) for domain in COLOURS for n in range(2)]
    sources += [
        add_source(folder, "held-human", "human", split="devtest"),
        add_source(folder, "twins", "human", domain="artifact"),
        add_source(folder, "unknown-animal", "animal", domain="mixed", label="ai"),
        add_source(folder, "unknown-scene", "scene", domain="mixed"),
        add_source(folder, "calibration-real", "scene", split="calibration"),
        add_source(folder, "calibration-ai", "animal", split="calibration", label="ai"),
        add_source(folder, "devtest-ai", "scene", split="devtest", label="ai"),
    ]
    recipe = {"name": "tiny", "min_side_px": 32, "sources": sources}
    (folder / "data.yaml").write_text(yaml.safe_dump(recipe))
    build(folder / "data.yaml", folder / "data")
    save_tiny_backbone(folder / "tiny.safetensors")
    return folder


@pytest.fixture(scope="module")
def recipe(scratch) -> TrainRecipe:
    model = tiny_config(backbone=str(scratch / "tiny.safetensors"))
    return TrainRecipe(version="0", threads=1, model=model, preprocessing={"size_px": SIZE})


@pytest.fixture(scope="module")
def settings(scratch, recipe) -> DomainSettings:
    return DomainSettings(recipe=recipe, features=scratch / "run")


def contents(folder: Path) -> dict[str, str]:
    paths = [path for path in folder.iterdir() if not path.name.startswith("domain")]
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in paths}


def labels_in(folder: Path) -> list[dict]:
    return pyarrow.parquet.read_table(folder / "domains.parquet").to_pylist()


def test_the_head_labels_mixed_pictures_and_is_judged_by_source(scratch, settings):
    data = scratch / "data"
    before = contents(data)
    report = label_domains(data, "head", settings)
    assert contents(data) == before
    assert not list(data.glob("*.partial"))
    rows = labels_in(data)
    assert set(rows[0]) == {"key", "domain", "probability", "method", "agrees"}
    assert len(rows) == report.pictures == sum(report.counts.values()) == 12 * COUNT
    assert {row["method"] for row in rows} == {"head"}
    for domain in ("animal", "scene"):
        mine = [row for row in rows if row["key"].startswith(f"unknown-{domain}")]
        assert [(row["domain"], row["agrees"]) for row in mine] == [(domain, None)] * COUNT
    assert report.mixed["ai"] == {**dict.fromkeys((*DOMAINS, "mixed"), 0), "animal": COUNT}
    agreement = report.agreement
    assert agreement["pictures"] == 10 * COUNT
    assert agreement["accuracy"] == agreement["balanced_accuracy"] > 0.9
    assert agreement["per_domain"]["human"]["sources"] == 3
    assert set(agreement["per_label"]) == {"real", "ai"}
    assert report.details["folds"] == 10
    assert report.details["taught_by"] == {"pictures": 6 * COUNT, "sources": 6}
    assert json.loads((data / "domains.json").read_text()) == report.model_dump(mode="json")
    assert len(report.weights_sha256) == 64


def test_the_same_run_writes_the_same_bytes_from_cached_features(scratch, settings):
    data, steps = scratch / "data", []
    label_domains(data, "head", settings)
    first = [(data / name).read_bytes() for name in ("domains.parquet", "domains.json")]
    label_domains(data, "head", settings, lambda *step: steps.append(step))
    assert [(data / name).read_bytes() for name in ("domains.parquet", "domains.json")] == first
    assert steps == []


def test_pictures_below_the_confidence_stay_mixed(scratch, settings):
    report = label_domains(scratch / "data", "head", settings.model_copy(update={"confidence": 1.0}))
    assert report.counts["mixed"] == report.pictures
    assert report.agreement["decided"] == 0
    assert report.agreement["accuracy_decided"] is None
    assert report.agreement["accuracy"] > 0.9
    assert {row["agrees"] for row in labels_in(scratch / "data")} == {None}


def test_a_limit_holds_per_source(scratch, settings, tmp_path):
    few = settings.model_copy(update={"limit": 3, "features": tmp_path})
    assert label_domains(scratch / "data", "head", few).pictures == 12 * 3


def clusters(shared: float, seed: int = 0) -> tuple[np.ndarray, np.ndarray, list[str]]:
    """Features of 3 domains, 4 sources each: a direction per source, and one per domain of size `shared`."""
    rng = np.random.default_rng(seed)
    labels = np.repeat(np.arange(3), 4 * 20)
    sources = [f"{label}-{i // 20 % 4}" for i, label in enumerate(labels)]
    features = rng.standard_normal((len(labels), 40)).astype(np.float32)
    features[np.arange(len(labels)), labels] += shared
    features[np.arange(len(labels)), 10 + np.unique(sources, return_inverse=True)[1]] += 12
    return features, labels, sources


@pytest.mark.parametrize(("shared", "least", "most"), [(0.0, 0.0, 0.55), (12.0, 0.95, 1.0)])
def test_a_source_is_judged_by_a_head_that_never_saw_it(shared, least, most):
    """A head that only remembers sources is perfect on what it saw, and worthless on a new source."""
    features, labels, sources = clusters(shared)
    head, held_out, _ = cross_fit(features, labels, sources, 5, teaches=labels >= 0, seed=0)
    assert (head.probabilities(features).argmax(axis=1) == labels).mean() > 0.99
    assert least <= (held_out.argmax(axis=1) == labels).mean() <= most
    assert np.allclose(held_out.sum(axis=1), 1)
    assert not held_out[:, 3:].any()


def test_the_temperature_takes_back_what_the_head_boasts():
    features, labels, sources = clusters(1.5)
    head, held_out, _ = cross_fit(features, labels, sources, 3, teaches=labels >= 0, seed=0)
    accuracy = (held_out.argmax(axis=1) == labels).mean()
    boast = held_out**head.temperature
    boast /= boast.sum(axis=1, keepdims=True)
    assert abs(held_out.max(axis=1).mean() - accuracy) < abs(boast.max(axis=1).mean() - accuracy)
    right = np.arange(len(labels)), labels
    assert np.log(held_out[right]).mean() > np.log(boast[right]).mean()


def test_a_domain_of_one_source_is_not_judged():
    features, labels, sources = clusters(12.0)
    sources = ["only" if label == 2 else source for label, source in zip(labels, sources, strict=True)]
    _, held_out, _ = cross_fit(features, labels, sources, 3, teaches=labels >= 0, seed=0)
    assert np.isnan(held_out[labels == 2]).all()
    assert not np.isnan(held_out[labels != 2]).any()


def test_other_splits_are_judged_but_do_not_teach():
    features, labels, sources = clusters(12.0)
    teaches = np.array([not source.endswith("-0") for source in sources])
    poisoned = np.where(teaches, labels, (labels + 1) % 3)
    head, held_out, _ = cross_fit(features, poisoned, sources, 3, teaches=teaches, seed=0)
    for probabilities in (head.probabilities(features), held_out):
        assert (probabilities[~teaches].argmax(axis=1) == labels[~teaches]).mean() > 0.8


def test_two_domains_are_enough_and_one_is_not():
    features, labels, sources = clusters(12.0)
    two = labels < 2
    known = np.where(two, labels, -1)
    head, held_out, _ = cross_fit(features, known, sources, 3, teaches=two, seed=0)
    assert (head.probabilities(features[two]).argmax(axis=1) == labels[two]).all()
    assert np.isnan(held_out[~two]).all()
    with pytest.raises(RecipeError, match="at least two known domains, and there are 1"):
        cross_fit(features, np.where(labels == 0, 0, -1), sources, 3, teaches=two, seed=0)


def test_a_big_source_counts_as_much_as_a_small_one():
    labels = np.array([0] * 100 + [1] * 40)
    sources = np.array(["big"] * 70 + ["small"] * 30 + ["other"] * 40)
    weights = balance_sources(labels, sources)
    assert weights.mean() == pytest.approx(1)
    assert weights[sources == "big"].sum() == pytest.approx(weights[sources == "small"].sum())
    assert weights[labels == 0].sum() == pytest.approx(weights[labels == 1].sum())


def rows_of(domains: list[str], sources: list[str]) -> list[SampleRow]:
    pairs = enumerate(zip(domains, sources, strict=True))
    return [SampleRow(f"k-{i}", "s", "train", 0, domain, "g", source, None) for i, (domain, source) in pairs]


def test_training_believes_the_recipe_then_the_labels_then_the_head():
    features, labels, sources = clusters(12.0)
    names = ("human", "animal", "object")
    domains = [names[label] for label in labels]
    for i in (0, 80, 81, 82, 160):
        domains[i] = "mixed"
    domains[1] = "artifact"
    told = {"k-0": "object", "k-2": "object", "k-80": "mixed", "k-81": "scene"}
    result = index_domains(features, rows_of(domains, sources), told, names)
    assert result[0] == 2
    assert result[1] == ARTIFACT_PAIR
    assert result[2] == 0
    assert result[80] == result[81] == NO_DOMAIN
    assert (result[82], result[160]) == (1, 2)
    rest = np.setdiff1d(np.arange(len(labels)), [0, 1, 80, 81])
    assert (result[rest] == labels[rest]).all()


def test_without_two_known_domains_nothing_is_guessed():
    features, labels, sources = clusters(12.0)
    result = index_domains(features, rows_of(["mixed"] * len(labels), sources), {}, DOMAINS)
    assert (result == NO_DOMAIN).all()


class Stopped(Exception):
    pass


def domains_taught(recipe: TrainRecipe, data: Path, run: Path, monkeypatch) -> dict[str, int]:
    """Gate index by source, as training hands it to the experts."""
    seen = []

    def stop(model, training, *_: object) -> None:
        seen.extend(training.domains.tolist())
        raise Stopped

    monkeypatch.setattr("detector.pipeline.Trainer", stop)
    with pytest.raises(Stopped):
        train_model(recipe, data, run, lambda *step: None)
    return {
        row.source: index for row, index in zip(choose(list_samples(data), "train", 99), seen, strict=True)
    }


def test_training_picks_up_the_labels_of_the_folder(scratch, recipe, settings, monkeypatch):
    data = scratch / "data"
    label_domains(data, "head", settings)
    keys = list(read_domains(data))
    (data / "domains.parquet").unlink()
    guessed = domains_taught(recipe, data, settings.features, monkeypatch)
    named = ["mixed" if key.startswith("unknown-scene") else "object" for key in keys]
    pyarrow.parquet.write_table(pyarrow.table({"key": keys, "domain": named}), data / "domains.parquet")
    told = domains_taught(recipe, data, settings.features, monkeypatch)
    human, animal, scene, object_ = (DOMAINS.index(name) for name in ("human", "animal", "scene", "object"))
    assert (guessed["human-0"], told["human-0"]) == (human, human)
    assert (guessed["unknown-animal"], told["unknown-animal"]) == (animal, object_)
    assert (guessed["unknown-scene"], told["unknown-scene"]) == (scene, NO_DOMAIN)
    assert guessed["twins"] == told["twins"] == ARTIFACT_PAIR


@pytest.fixture(scope="module")
def clip(tmp_path_factory) -> Path:
    """A checkpoint of a tiny CLIP whose image projection was fitted to the sentences, by colour."""
    folder = tmp_path_factory.mktemp("clip")
    (folder / f"{MODEL}.json").write_text(json.dumps(TINY_CLIP))
    open_clip.add_model_config(folder / f"{MODEL}.json")
    torch.manual_seed(0)
    network, _, preprocess = open_clip.create_model_and_transforms(MODEL)
    path = folder / "tiny.pt"
    torch.save(network.state_dict(), path)
    text = zero_shot_labeller(MODEL, path).text.T
    pixels = torch.stack([preprocess(picture(domain, i)) for domain in COLOURS for i in range(24)])
    wanted = (text - text.mean(dim=0))[[DOMAINS.index(domain) for domain in COLOURS for _ in range(24)]]
    projection, network.visual.proj = network.visual.proj, None
    with torch.no_grad():
        projection.copy_(torch.linalg.lstsq(network.visual(pixels), wanted).solution)
        network.logit_scale.fill_(np.log(100))
    network.visual.proj = projection
    torch.save(network.state_dict(), path)
    return path


@pytest.fixture(scope="module")
def labeller(clip) -> ZeroShotLabeller:
    return zero_shot_labeller(MODEL, clip)


def test_sentences_are_as_many_for_every_domain():
    assert tuple(SUBJECTS) == DOMAINS
    assert len({len(subjects) for subjects in SUBJECTS.values()}) == 1


def test_zero_shot_is_the_softmax_of_scaled_cosines_with_mean_sentences(clip, labeller):
    images = [picture(domain, 500 + i) for domain in COLOURS for i in range(3)]
    probabilities = labeller.probabilities(images)
    network, _, preprocess = open_clip.create_model_and_transforms(MODEL, str(clip))
    tokens = open_clip.get_tokenizer(MODEL)(["a painting or an illustration.", "a drawing of a cartoon."])
    with torch.no_grad():
        features = torch.stack([network.visual(preprocess(image)[None])[0] for image in images])
        cosines = torch.nn.functional.normalize(features, dim=1) @ labeller.text
        sentences = network.eval().encode_text(tokens, normalize=True)
    assert np.allclose(probabilities, (100 * cosines).softmax(dim=1).numpy(), atol=1e-4)
    assert torch.allclose(labeller.text.norm(dim=0), torch.ones(5))
    # A sentence of the domain's own is nearer to the domain's mean than to the others', on average.
    nearness = (sentences @ labeller.text).mean(dim=0)
    assert nearness.argmax() == DOMAINS.index("anime")


def test_zero_shot_labels_agree_with_the_recipe_and_with_the_head(scratch, settings, clip):
    data = scratch / "data"
    for path in data.glob("domains*"):
        path.unlink()
    before, sentences = contents(data), settings.model_copy(update={"model": MODEL, "weights": str(clip)})
    first = label_domains(data, "zero-shot", sentences)
    assert first.cross_agreement is None
    assert first.agreement["accuracy"] > 0.9
    assert first.agreement["pictures"] == 10 * COUNT
    assert first.seed is None
    head = label_domains(data, "head", settings)
    assert {row["method"] for row in labels_in(data)} == {"head"}
    again = label_domains(data, "zero-shot", sentences)
    assert {row["method"] for row in labels_in(data)} == {"zero-shot"}
    for report, other in ((head, "zero-shot"), (again, "head")):
        assert report.cross_agreement["other"] == other
        assert report.cross_agreement["pictures"] == 12 * COUNT
        assert report.cross_agreement["kappa"] > 0.8
    assert contents(data) == before
    assert again.weights_sha256 == first.weights_sha256 != head.weights_sha256


def test_a_local_folder_holds_the_same_model(clip, labeller, tmp_path):
    config = {"model_cfg": TINY_CLIP, "preprocess_cfg": {}}
    (tmp_path / "open_clip_config.json").write_text(json.dumps(config))
    save_file(torch.load(clip, weights_only=True), tmp_path / "open_clip_model.safetensors")
    local, pictures = zero_shot_labeller(f"local-dir:{tmp_path}"), [picture("human", 1)]
    assert local.weights_sha256 == labeller.weights_sha256
    assert np.allclose(local.probabilities(pictures), labeller.probabilities(pictures))


def test_zero_shot_does_not_depend_on_the_batch(scratch, labeller, monkeypatch):
    data = scratch / "data"
    rows = list_samples(data)[:7]
    store, seen = PictureStore(data, sorted({row.shard for row in rows})), []
    whole = labeller.judge(rows, store)
    monkeypatch.setattr("detector.zero_shot.BATCH", 3)
    assert np.allclose(labeller.judge(rows, store, seen.append), whole, atol=1e-5)
    assert seen == [3, 6, 7]


@pytest.mark.parametrize(
    ("model", "weights", "sentence"),
    [
        ("ViT-Z-99", "x", r"open_clip knows no model 'ViT-Z-99'; allowed are its own names"),
        (MODEL, None, "needs weights: a checkpoint file or a tag of the hub"),
        (MODEL, "nobody", "open_clip cannot load .* with weights 'nobody': .*not a known tag or valid file"),
        (MODEL, __file__, "open_clip cannot load .* with weights"),
        ("local-dir:/nowhere", None, "open_clip cannot load model 'local-dir:/nowhere'"),
    ],
)
def test_an_unusable_contrastive_model_is_one_sentence(clip, model, weights, sentence):
    with pytest.raises(ModelError, match=sentence) as caught:
        zero_shot_labeller(model, weights)
    assert "\n" not in str(caught.value)


def test_confusion_and_abstention_are_counted():
    rows = rows_of(["human", "human", "scene", "mixed", "scene"], ["a", "a", "b", "b", "c"])
    chances = np.array([[0.9, 0.1], [0.3, 0.7], [0.45, 0.55], [1.0, 0.0], [np.nan, np.nan]])
    agreement = measure_agreement(Scored(rows, chances, ("human", "scene"), "m", "0"), 0.6)
    assert (agreement["pictures"], agreement["not_judged"], agreement["decided"]) == (3, 1, 2)
    assert (agreement["accuracy"], agreement["accuracy_decided"]) == (pytest.approx(2 / 3, abs=1e-4), 0.5)
    assert agreement["balanced_accuracy"] == 0.75
    assert agreement["confusion"] == {"human": {"human": 1, "scene": 1}, "scene": {"human": 0, "scene": 1}}
    assert agreement["per_domain"]["scene"] == {
        "pictures": 1,
        "decided": 0,
        "accuracy": 1.0,
        "sources": 1,
        "precision": 0.5,
    }
    assert list(agreement["per_source"]) == ["a (human)", "b (scene)"]
    assert measure_agreement(Scored(rows[3:4], chances[3:4], ("human", "scene"), "m", "0"), 0.6) is None


def test_without_a_recipe_the_shipped_backbone_sees_all_pictures():
    recipe = shipped_recipe()
    assert (recipe.model.backbone, recipe.samples.train_per_source) == ("clip-vit-b16", 10_000)


@pytest.fixture(scope="module")
def app() -> typer.Typer:
    app = typer.Typer(pretty_exceptions_enable=False)
    app.command("other")(lambda: None)  # typer drops the command's name when there is only one
    register(app)
    return app


def test_the_command_labels_and_says_how_far_to_trust_it(app, scratch, recipe, clip, monkeypatch):
    monkeypatch.chdir(scratch)
    for path in (scratch / "data").glob("domains*"):
        path.unlink()
    (scratch / "train.yaml").write_text(yaml.safe_dump(recipe.model_dump(mode="json")))
    head = ["domains", "data", "--method", "head", "--recipe", "train.yaml", "--features", "run"]
    done = CliRunner().invoke(app, head, catch_exceptions=False)
    assert done.exit_code == 0
    assert "72 pictures labelled by head" in done.stdout
    assert "without a domain in the recipe, ai: human 0, animal 6," in done.stdout
    assert "of 60 pictures; recall animal 1.00 (3 sources)" in done.stdout
    sentences = ["domains", "data", "--method", "zero-shot", "--model", MODEL, "--weights", str(clip)]
    done = CliRunner().invoke(app, [*sentences, "--limit", "4"], catch_exceptions=False)
    assert done.exit_code == 0
    assert "48 pictures labelled by zero-shot" in done.stdout
    assert "agreement with head:" in done.stdout
    assert json.loads((scratch / "data" / "domains.json").read_text())["limit"] == 4


@pytest.mark.parametrize("arguments", [[], ["--method", "oracle"], ["--method", "head", "--confidence", "2"]])
def test_wrong_usage_is_exit_code_2(app, arguments):
    assert CliRunner().invoke(app, ["domains", ".", *arguments]).exit_code == 2


def test_a_folder_that_is_no_data_set_is_named(scratch, settings, tmp_path):
    with pytest.raises(BuildError, match=r"holds no manifest\.parquet"):
        label_domains(tmp_path, "head", settings)
    with pytest.raises(RecipeError, match="domain method 'oracle' is unknown; allowed: head, zero-shot"):
        label_domains(scratch / "data", "oracle", settings)  # type: ignore[arg-type]
