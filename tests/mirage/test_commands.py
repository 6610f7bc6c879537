import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from mirage.commands import app
from mirage.errors import BuildError
from mirage.manifest import read_manifest
from tests.mirage.conftest import encode, picture, snapshot, textured


def test_build_then_stats(tmp_path: Path, write_recipe):
    (tmp_path / "pictures").mkdir()
    for seed in range(3):
        (tmp_path / "pictures" / f"{seed}.png").write_bytes(encode(picture(seed)))
    recipe = write_recipe({"kind": "folder", "name": "drawn", "path": "pictures"})
    runner = CliRunner()
    built = runner.invoke(app, ["build", str(recipe), "--out", str(tmp_path / "out"), "--workers", "1"])
    assert built.exit_code == 0
    assert "seen 3 = kept 3 + rejected 0 + duplicate 0" in built.output
    shown = runner.invoke(app, ["stats", str(tmp_path / "out")])
    assert shown.exit_code == 0
    assert "camera" in shown.output
    assert "seen 3 = kept 3 + rejected 0 + duplicate 0" in shown.output


@pytest.fixture(scope="module")
def leaky(tmp_path_factory) -> Path:
    """A folder of pictures whose class shows in the JPEG quality, and nowhere else."""
    folder = tmp_path_factory.mktemp("leaky")
    for label, quality in (("real", 75), ("ai", 90)):
        (folder / label).mkdir()
        for seed in range(60):
            image = textured(seed + 1000 * (label == "ai")).resize((300, 260))
            (folder / label / f"{seed}.jpg").write_bytes(encode(image, "JPEG", quality=quality))
    return folder


def write_leaky_recipe(folder: Path, **settings: object) -> Path:
    common = {"kind": "folder", "domain": "mixed", "split": "train", "licence": "CC0"}
    sources = [
        common | {"name": label, "path": label, "label": label, "generator": "someone's"}
        for label in ("real", "ai")
    ]
    path = folder / "recipe.yaml"
    path.write_text(yaml.safe_dump({"name": "leaky", **settings, "sources": sources}), "utf-8")
    return path


def invoke(*arguments: object):
    return CliRunner().invoke(app, [*map(str, arguments), "--workers", "0"])


def test_a_set_that_file_headers_solve_is_refused_unless_told_otherwise(leaky, tmp_path):
    recipe = write_leaky_recipe(leaky)
    refused = invoke("build", recipe, "--out", tmp_path / "out")
    assert refused.exit_code == 1
    assert "headers alone tell real from AI in split train (AUC 1.00" in refused.output
    assert "seen 120 = kept 120 + rejected 0 + duplicate 0" in refused.output
    allowed = invoke("build", recipe, "--out", tmp_path / "out", "--allow-bias")
    assert allowed.exit_code == 0
    assert "headers alone tell" in allowed.output, "said, though not refused"
    audited = CliRunner().invoke(app, ["audit", str(tmp_path / "out")])
    assert audited.exit_code == 1
    assert "what gives the label away" in audited.output and "file_bytes" in audited.output


def test_the_same_set_passes_when_it_is_aligned(leaky, tmp_path):
    recipe = write_leaky_recipe(leaky, align={"splits": ["train"]})
    built = invoke("build", recipe, "--out", tmp_path / "out")
    assert built.exit_code == 0, built.output
    for row in read_manifest(tmp_path / "out"):
        assert row["transforms"], "every picture says how it was aligned"
    again = invoke("build", recipe, "--out", tmp_path / "again")
    assert again.exit_code == 0
    assert snapshot(tmp_path / "out") == snapshot(tmp_path / "again")


def test_a_folder_that_is_not_empty_is_refused_without_resuming(leaky, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine.txt").write_text("mine")
    refused = invoke("build", write_leaky_recipe(leaky), "--out", tmp_path / "out", "--no-resume")
    assert isinstance(refused.exception, BuildError)
    assert "is not empty" in str(refused.exception)


def test_verify_finds_what_was_changed(leaky, tmp_path):
    invoke("build", write_leaky_recipe(leaky), "--out", tmp_path / "out", "--allow-bias")
    sound = invoke("verify", tmp_path / "out")
    assert sound.exit_code == 0
    assert "1 shards, 120 pictures, 120 rows: 0 problems" in sound.output
    shard = tmp_path / "out" / "train-000000.tar"
    data = bytearray(shard.read_bytes())
    data[5000] ^= 1
    shard.write_bytes(data)
    damaged = invoke("verify", tmp_path / "out")
    assert damaged.exit_code == 1
    assert "train-000000.tar" in damaged.output


BLOCKED = """
import sys
for name in ("yaml", "pyarrow", "webdataset", "torch", "ncnn", "openvino"):
    sys.modules[name] = None
import mirage.commands, mirage.decode, mirage.transforms, mirage.read, mirage.build
from mirage.errors import MirageError
from pathlib import Path
try:
    mirage.build.build(Path("x.yaml"), Path("out"))
except MirageError as error:
    print(error)
"""


def test_everything_imports_on_the_base_install_and_names_the_missing_extra():
    answer = subprocess.run(
        [sys.executable, "-c", BLOCKED], capture_output=True, text=True, env=os.environ | {"PYTHONPATH": "."}
    )
    assert answer.stderr == ""
    assert answer.stdout == (
        "this needs the package yaml, which is not installed: pip install 'omniaid[train]'\n"
    )


def test_reading_shards_needs_no_torch(tmp_path: Path, write_recipe):
    (tmp_path / "pictures").mkdir()
    (tmp_path / "pictures" / "a.png").write_bytes(encode(picture(1)))
    recipe = write_recipe({"kind": "folder", "name": "drawn", "path": "pictures"})
    CliRunner().invoke(app, ["build", str(recipe), "--out", str(tmp_path / "out"), "--workers", "1"])
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "from pathlib import Path; from mirage.read import list_shards, read_shards\n"
        f"print(len(list(read_shards(list_shards(Path({str(tmp_path / 'out')!r}), 'train')))))"
    )
    answer = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=os.environ | {"PYTHONPATH": "."}
    )
    assert answer.stdout == "1\n", answer.stderr
