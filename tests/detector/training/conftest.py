"""A small built data set with pictures of every domain, and the recipe of a tiny model for it."""

from pathlib import Path

import numpy as np
import pytest
import yaml
from PIL import Image

from detector.model import DOMAINS
from mirage.build import build
from tests.detector.training.runs import PER_GROUP

SIDE_PX = 48
SEEDS = {"real": 0, "ai": 10_000}


def picture(seed: int, label: str) -> Image.Image:
    pixels = np.random.default_rng(seed).integers(0, 256, (SIDE_PX, SIDE_PX, 3), dtype=np.uint8)
    if label == "ai":
        pixels[::4] //= 3
    return Image.fromarray(pixels)


@pytest.fixture(scope="session")
def data(tmp_path_factory) -> Path:
    """Shards of five: fewer pictures of AI than real ones, and most of the first domain."""
    folder = tmp_path_factory.mktemp("training")
    sources, seed = [], 0
    for split in ("train", "devtest"):
        for place, domain in enumerate((*DOMAINS, "artifact")):
            for label in ("real", "ai"):
                name = f"{split}-{domain}-{label}"
                (folder / name).mkdir()
                for _ in range(PER_GROUP[label] * (2 if place == 0 and split == "train" else 1)):
                    seed += 1
                    picture(seed + SEEDS[label], label).save(folder / name / f"{seed}.png")
                rules = {"label": label, "generator": label, "domain": domain, "split": split}
                sources.append({"kind": "folder", "name": name, "path": name, "licence": "X", **rules})
    recipe = {"name": "t", "min_side_px": 32, "shard_count": 5, "audit": None, "sources": sources}
    (folder / "data.yaml").write_text(yaml.safe_dump(recipe))
    build(folder / "data.yaml", folder / "data", workers=0)
    return folder / "data"


@pytest.fixture(scope="session")
def backbone(tmp_path_factory) -> Path:
    """A tiny CLIP image tower as a file that a recipe can name."""
    from tests.detector.tiny import save_tiny_backbone

    return save_tiny_backbone(tmp_path_factory.mktemp("backbone") / "tiny.safetensors")
