"""From a folder of pictures to a model that scans, by the command line alone, on a tiny backbone."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import yaml
from PIL import Image

from detector.card import read_card
from tests.detector.tiny import DEPTH, SIZE, save_tiny_backbone

DOMAINS = ("human", "animal", "object", "scene", "anime")
COUNTS = {"train": 16, "calibration": 6, "devtest": 6}


def omniaid(*arguments: object, **options: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "service", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=280, **options)


def make_picture(rng: np.random.Generator, label: str) -> Image.Image:
    """Noise; `ai` pictures darken every fourth row, which survives no resize but teaches a tiny model."""
    pixels = rng.integers(0, 256, (150, 160, 3), dtype=np.uint8)
    if label == "ai":
        pixels //= 2
    return Image.fromarray(pixels)


@pytest.fixture(scope="module")
def workplace(tmp_path_factory) -> Path:
    """Pictures, a data recipe, a training recipe and a tiny backbone."""
    folder, rng, sources = tmp_path_factory.mktemp("train"), np.random.default_rng(0), []
    kinds = [(split, domain) for split in COUNTS for domain in DOMAINS] + [("train", "artifact")]
    for split, domain in kinds:
        for label in ("real", "ai"):
            name = f"{split}-{domain}-{label}"
            (folder / name).mkdir()
            for i in range(COUNTS[split]):
                make_picture(rng, label).save(folder / name / f"{i}.png")
            sources.append(
                {
                    "kind": "folder",
                    "name": name,
                    "path": name,
                    "label": label,
                    "generator": f"{label}-{split}",
                }
                | {"domain": domain, "split": split, "licence": "CC0-1.0"}
            )
    (folder / "data.yaml").write_text(yaml.safe_dump({"name": "tiny", "audit": None, "sources": sources}))
    backbone = save_tiny_backbone(folder / "tiny.safetensors")
    stage = {"batch": 8, "lr": 1e-3}
    recipe = {
        "name": "tiny",
        "version": "0.0.1",
        "threads": 1,
        "model": {
            "backbone": str(backbone),
            "depth": DEPTH,
            "taps": [1, 3],
            "experts": {"rank": 2, "blocks": [2, 3]},
            "router_hidden": 8,
        },
        "preprocessing": {"size_px": SIZE},
        "experts": stage,
        "router": stage,
        "tiers": ["clean", "hard"],
    }
    (folder / "train.yaml").write_text(yaml.safe_dump(recipe))
    built = omniaid("mirage", "build", folder / "data.yaml", "--out", folder / "data")
    assert built.returncode == 0, built.stderr
    return folder


@pytest.fixture(scope="module")
def trained(workplace) -> Path:
    done = omniaid(
        "train", workplace / "train.yaml", "--data", workplace / "data", "--out", workplace / "run"
    )
    assert done.returncode == 0, done.stderr
    return Path(done.stdout.strip())


def test_the_card_tells_what_was_done(trained, workplace):
    card = read_card(trained.with_suffix(".json"))
    assert card.experts == (*DOMAINS, "artifact")
    assert card.training["data"]["train"]["pictures"] == 2 * 16 * 6
    assert card.training["onnx_against_torch"] <= 1e-4
    for name in ("model", "frozen_linear_probe"):
        tiers = card.metrics[name]["tiers"]
        assert set(tiers) == {"clean", "hard"}
        assert tiers["clean"]["pictures"] == {"real": 30, "ai": 30}
        assert tiers["clean"]["auroc"] > 0.9
    log = [json.loads(line) for line in (workplace / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [row["phase"] for row in log if row["step"] == 0][-1] == "router"


def test_the_trained_model_scans(trained, workplace):
    folders = [workplace / "devtest-scene-real", workplace / "devtest-scene-ai"]
    done = omniaid("scan", *folders, "--model", trained, "--format", "jsonl")
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(rows) == 12
    means = [
        np.mean([row["probability"] for row in rows if name in row["path"]]) for name in ("-real", "-ai")
    ]
    assert means[1] > means[0] + 0.3
    assert all(row["calibrated"] and row["model"]["version"] == "0.0.1" for row in rows)


def test_an_unusable_recipe_or_data_set_is_one_line(workplace, tmp_path):
    done = omniaid("train", tmp_path / "no.yaml", "--data", workplace / "data", "--out", tmp_path)
    assert (done.returncode, done.stderr) == (
        2,
        f"omniaid: training recipe {tmp_path / 'no.yaml'} does not exist\n",
    )
    (tmp_path / "bad.yaml").write_text("version: '1'\nlerning_rate: 3\n")
    done = omniaid("train", tmp_path / "bad.yaml", "--data", workplace / "data", "--out", tmp_path)
    assert done.returncode == 2
    assert "lerning_rate: Extra inputs are not permitted (given: 3)" in done.stderr
    done = omniaid("train", workplace / "train.yaml", "--data", tmp_path, "--out", tmp_path)
    assert done.returncode == 2
    assert "holds no manifest.parquet" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.slow
def test_a_run_killed_with_sigkill_and_started_again_ends_in_the_same_model(trained, workplace, tmp_path):
    arguments = ("train", workplace / "train.yaml", "--data", workplace / "data", "--out", tmp_path / "run")
    for landmark in ("features-train/features.json", "checkpoint.pt"):
        process = subprocess.Popen(
            [sys.executable, "-m", "service", *map(str, arguments)],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        deadline = time.monotonic() + 120
        while not (tmp_path / "run" / landmark).exists():
            assert time.monotonic() < deadline
            assert process.poll() is None
            time.sleep(0.01)
        os.kill(process.pid, signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL
    done = omniaid(*arguments)
    assert done.returncode == 0, done.stderr
    cards = [read_card(path.with_suffix(".json")) for path in (trained, Path(done.stdout.strip()))]
    assert cards[0].metrics == cards[1].metrics
    assert cards[0].thresholds == cards[1].thresholds
    logs = [(run / "metrics.jsonl").read_text() for run in (workplace / "run", tmp_path / "run")]
    assert logs[0] == logs[1]
