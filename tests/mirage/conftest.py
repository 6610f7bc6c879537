"""Small pictures, a real git repository and recipes, made for each test."""

import io
import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import yaml
from PIL import Image

GIT = ["git", "-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "commit.gpgsign=false"]


def picture(seed: int, width: int = 96, height: int = 80) -> Image.Image:
    """A picture with structure at several scales, different for every seed."""
    coarse = np.random.default_rng(seed).integers(0, 256, (6, 6, 3), dtype=np.uint8)
    return Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC)


def textured(seed: int) -> Image.Image:
    """A picture whose finest structure is still larger than a pixel, as in photographs."""
    fine = np.random.default_rng(seed).integers(0, 256, (30, 40, 3), dtype=np.uint8)
    return Image.fromarray(fine).resize((480, 360), Image.Resampling.BICUBIC)


def encode(image: Image.Image, codec: str = "PNG", **options: object) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, codec, **options)
    return buffer.getvalue()


def folder_source(tmp_path: Path, count: int, **fields) -> dict:
    """A source of pictures 0.png, 1.png, ... in `tmp_path/pictures`."""
    place = tmp_path / "pictures"
    place.mkdir(exist_ok=True)
    for seed in range(count):
        (place / f"{seed}.png").write_bytes(encode(picture(seed, *fields.get("size", (96, 80)))))
    fields.pop("size", None)
    return {"kind": "folder", "name": "drawn", "path": "pictures"} | fields


def snapshot(folder: Path) -> dict[str, bytes]:
    """The shards of a data set."""
    return {path.name: path.read_bytes() for path in folder.glob("*.tar")}


@pytest.fixture
def make_clone(tmp_path: Path) -> Callable[..., str]:
    """Makes a bare clone `owner/name` under `tmp_path/mirrors`; returns its revision."""

    def make(repo: str, files: dict[str, bytes], links: dict[str, str] | None = None) -> str:
        work = tmp_path / "work" / repo.replace("/", "+")
        work.mkdir(parents=True)
        for name, data in files.items():
            (work / name).parent.mkdir(parents=True, exist_ok=True)
            (work / name).write_bytes(data)
        for name, target in (links or {}).items():
            (work / name).symlink_to(target)
        subprocess.run([*GIT, "init", "-q", str(work)], check=True)
        subprocess.run([*GIT, "-C", str(work), "add", "-A"], check=True)
        subprocess.run([*GIT, "-C", str(work), "commit", "-q", "-m", "pictures"], check=True)
        bare = tmp_path / "mirrors" / repo.replace("/", "+") / "repo"
        subprocess.run([*GIT, "clone", "-q", "--bare", str(work), str(bare)], check=True)
        revision = subprocess.run(
            [*GIT, "-C", str(work), "rev-parse", "HEAD"], check=True, capture_output=True
        )
        return revision.stdout.decode().strip()

    return make


@pytest.fixture
def write_recipe(tmp_path: Path) -> Callable[..., Path]:
    """Writes a recipe beside the mirrors; sources get the fields that every source needs."""

    def write(*sources: dict, **settings: object) -> Path:
        filled = [
            {"label": "real", "generator": "camera", "domain": "mixed", "split": "train", "licence": "CC0"}
            | source
            for source in sources
        ]
        path = tmp_path / "recipe.yaml"
        content = {"name": "small", "audit": None, **settings, "sources": filled}
        path.write_text(yaml.safe_dump(content), "utf-8")
        return path

    return write
