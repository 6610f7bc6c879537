"""Ablations: variants on one set of cached features, each trained, judged and compared with the probe."""

import io

import numpy as np
import pytest
import yaml
from PIL import Image

from detector.ablation import change, read_ablations, run_ablations
from detector.errors import RecipeError
from detector.probe import fit_probe
from detector.recipe import TrainRecipe
from mirage.build import build
from tests.detector.tiny import save_tiny_backbone

SPLITS = ("train", "calibration", "devtest")
DOMAINS = ("human", "animal", "object")
VARIANTS = {
    "two-stage": {},
    "lora": {"model": {"experts": {"kind": "lora"}}},
    "dense": {
        "scheme": "dense",
        "model": {
            "domains": ["all"],
            "artifact_gate": 0.0,
            "router": {"top_k": 1},
            "experts": {"kind": "lora", "rank": 4},
        },
    },
    "no-artifact": {"model": {"artifact_gate": 0.0}},
    "stage-one": {"scheme": "experts-only", "model": {"router": {"top_k": 3, "temperature": 1e6}}},
    "joint": {"scheme": "joint"},
    "two-experts": {
        "model": {"domains": ["living", "object"]},
        "merged_domains": {"human": "living", "animal": "living"},
    },
}


def picture(seed: int, ai: bool) -> bytes:
    pixels = np.random.default_rng(seed).integers(0, 256, (40, 48, 3), dtype=np.uint8)
    if ai:
        pixels[:, ::2] //= 2
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "PNG")
    return buffer.getvalue()


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder, sources, seed = tmp_path_factory.mktemp("ablation"), [], 0
    for split in SPLITS:
        for domain in (*DOMAINS, "mixed", *(("artifact",) if split == "train" else ())):
            for label in ("real", "ai"):
                name = f"{split}-{domain}-{label}"
                (folder / name).mkdir()
                for number in range(6):
                    (folder / name / f"{number}.png").write_bytes(picture(seed := seed + 1, label == "ai"))
                facts = {"label": label, "domain": domain, "split": split, "licence": "X"}
                sources.append(
                    {"kind": "folder", "name": name, "path": name, "generator": f"g-{label}"} | facts
                )
    recipe = {"name": "small", "min_side_px": 32, "near_copies": False, "sources": sources}
    (folder / "small.yaml").write_text(yaml.safe_dump(recipe))
    build(folder / "small.yaml", folder / "data")
    return folder / "data"


def write_recipes(folder, variants):
    backbone = save_tiny_backbone(folder / "tower.safetensors")
    model = {
        "backbone": str(backbone),
        "depth": 3,
        "taps": [1, 3],
        "mean_taps": [2],
        "domains": list(DOMAINS),
        "experts": {"rank": 2, "blocks": [3]},
        "router": {"hidden": 8},
    }
    stage = {"batch": 8, "lr": 5e-3}
    base = {"version": "1", "threads": 1, "model": model, "experts": stage, "router": stage}
    base |= {"preprocessing": {"size_px": 32}, "samples": {"draws": 2}, "tiers": ["clean", "web"]}
    (folder / "base.yaml").write_text(yaml.safe_dump(base))
    listed = [{"name": name, "why": f"asks {name}", "changes": changes} for name, changes in variants.items()]
    (folder / "ablations.yaml").write_text(
        yaml.safe_dump({"base": "base.yaml", "rounds": 20, "variants": listed})
    )
    return folder / "ablations.yaml"


def test_every_variant_is_trained_and_compared_on_the_same_features(data, tmp_path, monkeypatch):
    fitted = []
    monkeypatch.setattr(
        "detector.ablation.fit_probe", lambda *given: fitted.append(given) or fit_probe(*given)
    )
    recipe, base = read_ablations(write_recipes(tmp_path, VARIANTS))
    steps = []
    result = run_ablations(recipe, base, data, tmp_path / "run", lambda step, *_: steps.append(step))
    assert [row["variant"] for row in result["rows"] if row["tier"] == "web"] == list(VARIANTS)
    assert {step.split()[0] for step in steps if ":" in step} == set(VARIANTS)
    phases = {step.split(": ")[1] for step in steps if step.startswith("joint ")}
    assert phases == {"joint"}
    assert not any(step.startswith("no-artifact ") and step.endswith("expert-artifact") for step in steps)
    for row in result["rows"]:
        assert 0 <= row["auroc"]["mean"] <= 1
        assert -1 <= row["minus_probe"][0]["value"] <= 1
    assert len({row["changed_numbers"] for row in result["rows"]}) > 3
    # One probe for each way to name the domains: as they are, all alike, two of them merged.
    assert len(fitted) == 3
    page = (tmp_path / "run" / "ablations.md").read_text()
    assert all(f"| {name} |" in page for name in VARIANTS)
    again = run_ablations(recipe, base, data, tmp_path / "run", lambda *_: None)
    assert again == result


def test_a_variant_that_needs_other_features_is_refused(data, tmp_path):
    variants = {"as-is": {}, "other-taps": {"model": {"taps": [3]}}}
    recipe, base = read_ablations(write_recipes(tmp_path, variants))
    with pytest.raises(RecipeError, match="holds features of other samples or settings"):
        run_ablations(recipe, base, data, tmp_path / "run", lambda *_: None)


def test_changes_are_nested_and_checked():
    base = TrainRecipe(version="1", seed=4)
    changed = change(base, {"model": {"experts": {"rank": 1}}}, seed=9)
    assert (changed.seed, changed.samples.seed, changed.model.experts.rank) == (9, 4, 1)
    assert changed.model.experts.kind == base.model.experts.kind
    with pytest.raises(RecipeError, match=r"model\.experts\.size"):
        change(base, {"model": {"experts": {"size": 1}}}, seed=0)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("base: x.yaml\nvariants: []\n", "variants"),
        ("base: x.yaml\nvariants: [{name: A b, why: y}]\n", "name"),
        ("base: x.yaml\nvariants: [{name: a, why: y}, {name: a, why: z}]\n", "two variants have one name"),
        ("{", "is not YAML"),
    ],
)
def test_a_wrong_recipe_is_named(tmp_path, content, message):
    (tmp_path / "a.yaml").write_text(content)
    with pytest.raises(RecipeError, match=message):
        read_ablations(tmp_path / "a.yaml")
