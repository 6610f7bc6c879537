"""Builds that are killed, that run out of space, that share a machine with others."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from mirage.build import build
from mirage.errors import BuildError
from mirage.manifest import read_manifest
from tests.mirage.conftest import encode, folder_source, snapshot

# Twelve groups, so that files of one source go to several splits.
BY_LAST_DIGIT = {"path": r"(?P<group>\d)\.png$"}


def start_build(recipe: Path, folder: Path, workers: int) -> subprocess.Popen:
    code = (
        "import sys; from pathlib import Path; from mirage.build import build\n"
        "if __name__ == '__main__':\n"
        "    build(Path(sys.argv[1]), Path(sys.argv[2]), workers=int(sys.argv[3]))\n"
    )
    script = recipe.parent / "run.py"
    script.write_text(code, "utf-8")
    environment = os.environ | {"PYTHONPATH": str(Path.cwd()), "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        [sys.executable, str(script), str(recipe), str(folder), str(workers)],
        env=environment,
        start_new_session=True,
    )


def test_killed_at_many_moments_it_ends_as_if_never_killed(tmp_path, write_recipe):
    """SIGKILL whenever two more shards are out, then at once after a start; nothing lost, nothing doubled."""
    source = folder_source(tmp_path, 60, size=(300, 200), split=None, facts=BY_LAST_DIGIT)
    (tmp_path / "pictures" / "bad.png").write_bytes(b"no picture")
    (tmp_path / "pictures" / "twice.png").write_bytes((tmp_path / "pictures" / "1.png").read_bytes())
    recipe = write_recipe(source, source | {"name": "again", "cap": 5}, shard_count=4)
    build(recipe, tmp_path / "whole")
    folder, kills, process = tmp_path / "killed", 0, None
    try:
        for wanted in (1, 3, 6, 10):
            process = start_build(recipe, folder, workers=2 if wanted == 6 else 1)
            while process.poll() is None and len(list(folder.glob("*.tar"))) < wanted:
                time.sleep(0.002)
            if process.poll() is None:
                os.kill(process.pid, signal.SIGKILL)
                kills += 1
            process.wait()
    finally:
        if process and process.poll() is None:
            process.kill()
    assert kills >= 3, "the build must have been killed while it worked"
    (folder / "train-999999.tar.partial").write_bytes(b"left by a kill")
    build(recipe, folder)
    assert snapshot(folder) == snapshot(tmp_path / "whole")
    assert list(read_manifest(folder)) == list(read_manifest(tmp_path / "whole"))
    assert not list(folder.glob("*.partial"))


def test_workers_of_a_killed_build_end_too(tmp_path, write_recipe):
    recipe = write_recipe(folder_source(tmp_path, 80, size=(300, 200)), shard_count=2)
    process = start_build(recipe, tmp_path / "out", workers=2)
    while process.poll() is None and not list((tmp_path / "out").glob("*.tar")):
        time.sleep(0.002)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline and members(process.pid):
        time.sleep(0.05)
    assert not members(process.pid)


def members(session: int) -> list[str]:
    """Living processes of a session (start_new_session made the builder its leader)."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = re.sub(r"\(.*\)", "()", stat.read_text()).split()
        except OSError:
            continue
        if fields[5] == str(session) and fields[2] != "Z":
            found.append(fields[0])
    return found


def test_workers_change_nothing(tmp_path, write_recipe):
    recipe = write_recipe(folder_source(tmp_path, 12), shard_count=5)
    build(recipe, tmp_path / "one", workers=1)
    build(recipe, tmp_path / "two", workers=2)
    assert snapshot(tmp_path / "one") == snapshot(tmp_path / "two")


STAGES = {
    "while a shard is open": ("mirage.shards.ShardWriter.add", 7),
    "before the first shard has its name": ("mirage.shards.publish", 2),
    "between a shard and its journal": ("mirage.shards.write_journal", 2),
    "while the last journal is written": ("mirage.shards.write_journal", 5),
    "before the manifest": ("mirage.build.write_manifest", 1),
    "while the manifest is written": ("mirage.manifest.publish", 1),
    "before the counts": ("mirage.build._summarise", 1),
}
KILL_AT = """
import importlib, os, signal, sys
from pathlib import Path
from mirage.build import build

def arm(place, call):
    module, name = place.rsplit(".", 1)
    try:
        owner = importlib.import_module(module)
    except ModuleNotFoundError:
        module, cls = module.rsplit(".", 1)
        owner = getattr(importlib.import_module(module), cls)
    original, calls = getattr(owner, name), []
    def deadly(*arguments, **options):
        calls.append(1)
        if len(calls) == call:
            os.kill(os.getpid(), signal.SIGKILL)
        return original(*arguments, **options)
    setattr(owner, name, deadly)

if __name__ == "__main__":
    arm(sys.argv[3], int(sys.argv[4]))
    build(Path(sys.argv[1]), Path(sys.argv[2]), workers=0)
"""


@pytest.mark.parametrize("stage", STAGES)
def test_killed_in_any_stage_it_ends_as_if_never_killed(tmp_path, write_recipe, stage):
    source = folder_source(tmp_path, 14, split=None, facts=BY_LAST_DIGIT)
    (tmp_path / "pictures" / "bad.png").write_bytes(b"no picture")
    recipe = write_recipe(source, shard_count=4)
    build(recipe, tmp_path / "whole", workers=0)
    (tmp_path / "run.py").write_text(KILL_AT, "utf-8")
    place, call = STAGES[stage]
    command = [sys.executable, str(tmp_path / "run.py"), str(recipe), str(tmp_path / "out"), place, str(call)]
    killed = subprocess.run(command, env=os.environ | {"PYTHONPATH": str(Path.cwd())}, timeout=60)
    assert killed.returncode == -signal.SIGKILL
    build(recipe, tmp_path / "out", workers=0)
    assert files(tmp_path / "out") == files(tmp_path / "whole")


def files(folder: Path) -> dict[str, bytes]:
    """Everything that a build leaves, but for journals whose rows may be spread otherwise."""
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.suffix != ".jsonl"}


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 1 MB, mounted for the test."""
    place = tmp_path / "disk"
    place.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(place)], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip("mounting a file system needs more rights")
    yield place
    subprocess.run(["umount", str(place)], check=True)


def test_a_full_disk_is_one_sentence_and_resumable(tmp_path, write_recipe, small_disk):
    noisy = np.random.default_rng(0).integers(0, 256, (40, 150, 150, 3), dtype=np.uint8)
    (tmp_path / "pictures").mkdir()
    for number, pixels in enumerate(noisy):
        (tmp_path / "pictures" / f"{number}.png").write_bytes(encode(Image.fromarray(pixels)))
    recipe = write_recipe({"kind": "folder", "name": "drawn", "path": "pictures"}, shard_count=4)
    out = small_disk / "out"
    with pytest.raises(
        BuildError, match=r"(No space left on device|disk is full); finished shards are kept"
    ) as caught:
        build(recipe, out, workers=0)
    assert "\n" not in str(caught.value)
    assert snapshot(out), "some shards were finished before"
    subprocess.run(["mount", "-o", "remount,size=20m", str(small_disk)], check=True)
    assert build(recipe, out, workers=0).counts["kept"] == 40
    build(recipe, tmp_path / "whole", workers=0)
    assert snapshot(out) == snapshot(tmp_path / "whole")
