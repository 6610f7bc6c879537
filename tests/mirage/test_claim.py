import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from mirage.build import build as build_with_workers
from mirage.claim import lock
from mirage.errors import BuildError
from mirage.manifest import read_manifest
from tests.mirage.conftest import encode, picture

build = partial(build_with_workers, workers=0)  # in this process: quicker for a few pictures


def folder(tmp_path: Path, name: str, seeds: range, **fields) -> dict:
    (tmp_path / name).mkdir(exist_ok=True)
    for seed in seeds:
        (tmp_path / name / f"{seed}.png").write_bytes(encode(picture(seed)))
    return {"kind": "folder", "name": name, "path": name} | fields


def kept(out: Path) -> dict[str, tuple[str, str]]:
    return {row["key"]: (row["shard"], row["split"]) for row in read_manifest(out) if row["status"] == "kept"}


def test_a_recipe_may_grow_and_what_was_built_stays(tmp_path, write_recipe):
    first = folder(tmp_path, "first", range(6), cap=4)
    out = tmp_path / "out"
    build(write_recipe(first), out)
    before, shards = kept(out), {path.name: path.read_bytes() for path in out.glob("*.tar")}
    folder(tmp_path, "first", range(6, 9))
    second = folder(tmp_path, "second", range(20, 25))
    summary = build(write_recipe(first | {"cap": 7}, second), out)
    assert summary.counts["kept"] == 12
    assert before.items() <= kept(out).items()
    assert all((out / name).read_bytes() == data for name, data in shards.items())


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"seed": 1}, "its seed differs"),
        ({"max_side_px": 100}, "its max_side_px differs"),
        ({"sources": 1}, "it has 2 sources, this one 1"),
        ({"cap": 1}, "its source first has a higher cap"),
        ({"licence": "MIT"}, "its source first differs"),
    ],
)
def test_a_recipe_that_changed_is_refused_with_the_difference(tmp_path, write_recipe, change, sentence):
    first, second = folder(tmp_path, "first", range(2), cap=2), folder(tmp_path, "second", range(5, 7))
    build(write_recipe(first, second), tmp_path / "out")
    settings = {name: value for name, value in change.items() if name in ("seed", "max_side_px")}
    sources = [first | {name: value for name, value in change.items() if name in ("cap", "licence")}, second]
    with pytest.raises(
        BuildError, match=f"holds a build of another recipe: {sentence}; choose another --out"
    ):
        build(write_recipe(*sources[: change.get("sources", 2)], **settings), tmp_path / "out")


def test_two_builds_in_one_folder_are_refused_and_a_killed_one_leaves_no_lock(tmp_path, write_recipe):
    recipe = write_recipe(folder(tmp_path, "first", range(2)))
    program = (
        "import sys, time; from pathlib import Path; from mirage.claim import lock\n"
        "with lock(Path(sys.argv[1])): print('locked', flush=True); time.sleep(60)"
    )
    out = tmp_path / "out"
    out.mkdir()
    other = subprocess.Popen([sys.executable, "-c", program, str(out)], stdout=subprocess.PIPE, text=True)
    assert other.stdout.readline() == "locked\n"
    with pytest.raises(BuildError, match="another build is at work in"):
        build(recipe, out)
    other.kill()
    other.wait()
    with lock(out):
        pass
    assert build(recipe, out).counts["kept"] == 2
