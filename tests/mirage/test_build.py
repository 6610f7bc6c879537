import hashlib
import json
import re
import tarfile
from functools import partial
from pathlib import Path

import pytest
from PIL import Image

from mirage.build import build as build_with_workers
from mirage.decode import decode
from mirage.errors import BuildError, RecipeError
from mirage.manifest import read_manifest
from mirage.read import list_shards, read_shards
from mirage.transforms import jpeg, resize
from tests.mirage.conftest import encode, folder_source, picture, textured

build = partial(build_with_workers, workers=0)  # in this process: quicker for a few pictures


def git_source(revision: str, **fields) -> dict:
    return {
        "kind": "git",
        "name": "photos",
        "repo": "owner/photos",
        "revision": revision,
        "select": ".",
    } | fields


def rows_by_status(folder: Path) -> dict[str, list[dict]]:
    rows: dict[str, list[dict]] = {"kept": [], "rejected": [], "duplicate": []}
    for row in read_manifest(folder):
        rows[row["status"]].append(row)
    return rows


def all_samples(folder: Path) -> list:
    return list(read_shards(sorted(folder.glob("*.tar"))))


def test_pictures_of_a_git_revision_arrive_with_their_provenance(tmp_path, make_clone, write_recipe):
    files = {
        "a.b.c.png": encode(picture(1)),
        "deep/ünï çode\n.jpg": encode(picture(2), "JPEG"),
        "one-colour.png": encode(Image.new("RGB", (80, 80), "grey")),
        "tiny.png": encode(picture(3, 20, 20)),
        "broken.jpg": encode(picture(4), "JPEG")[:300],
        "pointer.png": b"version https://git-lfs.github.com/spec/v1\n",
        "copy.png": encode(picture(1)),
        "README.md": b"not looked at",
    }
    revision = make_clone("owner/photos", files)
    summary = build(write_recipe(git_source(revision)), tmp_path / "out", mirrors=tmp_path / "mirrors")
    assert summary.counts == {"seen": 7, "kept": 2, "rejected": 4, "duplicate": 1}
    rows = rows_by_status(tmp_path / "out")
    reasons = {row["path"]: row["reason"] for row in rows["rejected"]}
    assert "all one colour" in reasons["one-colour.png"]
    assert "20 x 20 px" in reasons["tiny.png"]
    assert "damaged" in reasons["broken.jpg"]
    assert "Git LFS pointer" in reasons["pointer.png"]
    samples = {sample.metadata["path"]: sample for sample in all_samples(tmp_path / "out")}
    photo = samples["deep/ünï çode\n.jpg"]
    assert photo.data == files["deep/ünï çode\n.jpg"], "an unchanged picture keeps its bytes"
    assert photo.metadata["revision"] == revision
    assert photo.metadata["repo"] == "owner/photos"
    kept = next(row for row in rows["kept"] if row["path"] == photo.metadata["path"])
    assert (kept["key"], kept["shard"], kept["sha256"]) == (
        photo.key,
        "train-000000.tar",
        photo.metadata["sha256"],
    )
    assert not any("." in sample.key for sample in samples.values())


def test_opposite_labels_are_listed_for_a_person(tmp_path, make_clone, write_recipe):
    revision = make_clone("owner/photos", {"x.png": encode(picture(1))})
    (tmp_path / "ai").mkdir()
    (tmp_path / "ai" / "same.png").write_bytes(encode(picture(1)))
    fakes = {"kind": "folder", "name": "fakes", "path": "ai", "label": "ai", "generator": "someone's"}
    summary = build(write_recipe(git_source(revision), fakes), tmp_path / "out", mirrors=tmp_path / "mirrors")
    assert summary.counts == {"seen": 2, "kept": 1, "rejected": 0, "duplicate": 1}
    assert summary.conflicts == (
        "fakes: same.png: conflict: labelled ai here, but same bytes as x.png of photos, labelled real",
    )


def test_a_grid_is_cut_and_pieces_are_chosen_by_hash(tmp_path, write_recipe):
    whole = Image.new("RGB", (160, 160))
    for number, place in enumerate([(0, 0), (80, 0), (0, 80), (80, 80)]):
        whole.paste(picture(number, 80, 80), place)
    (tmp_path / "pictures").mkdir()
    (tmp_path / "pictures" / "grid.png").write_bytes(encode(whole))
    source = {"kind": "folder", "name": "grids", "path": "pictures", "rules": {"grid": [2, 2]}}
    build(write_recipe(source), tmp_path / "all")
    cuts = {sample.metadata["piece"]: decode(sample.data).image for sample in all_samples(tmp_path / "all")}
    assert cuts.keys() == {"r0c0", "r0c1", "r1c0", "r1c1"}
    assert cuts["r1c0"].tobytes() == picture(2, 80, 80).tobytes()
    source["rules"]["keep_pieces"] = 1
    assert build(write_recipe(source), tmp_path / "one").counts["kept"] == 1


def test_rules_and_the_size_limit_change_pixels_and_say_so(tmp_path, write_recipe):
    source = folder_source(
        tmp_path, 1, size=(400, 300), rules={"crop": [0, 0, 0.5, 1], "crop_bottom_px": 100}
    )
    build(write_recipe(source, max_side_px=100), tmp_path / "out")
    (sample,) = all_samples(tmp_path / "out")
    assert decode(sample.data).image.size == (100, 100)
    assert sample.metadata["transforms"] == [
        "crop 0 0 0.5 1",
        "crop-bottom 100 px",
        "resize 200x200 to 100x100 lanczos",
        "stored as lossless WebP",
    ]


def test_twins_stand_side_by_side_and_never_straddle_a_split(tmp_path, write_recipe):
    pytest.importorskip("ncnn")
    pytest.importorskip("webdataset")
    source = folder_source(tmp_path, 2, size=(120, 100))
    rules = {"reconstruct": {"method": "realesr-video-x4", "crop_px": 64}}
    twins = source | {"name": "twins", "domain": "artifact", "rules": rules}
    build(write_recipe(source, twins), tmp_path / "out")
    pairs: dict[str, list] = {}
    for sample in all_samples(tmp_path / "out"):
        if sample.metadata["pair"]:
            pairs.setdefault(sample.metadata["pair"], []).append(sample)
    assert len(pairs) == 2
    for real, rebuilt in pairs.values():
        assert (real.metadata["label"], rebuilt.metadata["label"]) == ("real", "ai")
        assert rebuilt.metadata["generator"] == "realesr-video-x4"
        assert {real.metadata["domain"], rebuilt.metadata["domain"]} == {"artifact"}
        assert real.metadata["stored_format"] == rebuilt.metadata["stored_format"] == "webp"
        left, right = decode(real.data).image, decode(rebuilt.data).image
        assert left.size == right.size == (64, 64)
        assert left.tobytes() != right.tobytes()
    summary = build(write_recipe(source, twins | {"split": "devtest"}), tmp_path / "apart")
    assert summary.counts == {"seen": 4, "kept": 2, "rejected": 0, "duplicate": 2}


def test_listed_paths_choose_files(tmp_path, make_clone, write_recipe):
    revision = make_clone("owner/photos", {f"{n}.png": encode(picture(n)) for n in range(4)})
    table = "repo\tpath\tgenerator\nowner/photos\t1.png\tA\nowner/photos\t2.png\tB\nother/x\t3.png\tA\n"
    (tmp_path / "labels.tsv").write_text(table, "utf-8")
    chosen = git_source(revision, paths_file="labels.tsv", paths_value="A", select=None)
    build(write_recipe(chosen), tmp_path / "out", mirrors=tmp_path / "mirrors")
    assert [row["path"] for row in read_manifest(tmp_path / "out")] == ["1.png"]


def test_missing_sources_are_named_or_skipped(tmp_path, make_clone, write_recipe):
    revision = make_clone("owner/photos", {"x.png": encode(picture(1))})
    absent = git_source(revision, name="absent", repo="owner/absent")
    recipe = write_recipe(git_source(revision), absent, git_source("b" * 40, name="old"))
    with pytest.raises(RecipeError, match="source absent: no clone of owner/absent under"):
        build(recipe, tmp_path / "out", mirrors=tmp_path / "mirrors")
    summary = build(recipe, tmp_path / "out", mirrors=tmp_path / "mirrors", skip_missing=True)
    assert summary.counts["kept"] == 1
    assert len(summary.skipped) == 2
    assert "does not hold revision " + "b" * 40 in summary.skipped[1]
    with pytest.raises(RecipeError, match="give --mirrors"):
        build(write_recipe(absent), tmp_path / "none")


def test_a_folder_with_another_build_is_refused(tmp_path, write_recipe):
    source = folder_source(tmp_path, 1)
    build(write_recipe(source), tmp_path / "out")
    with pytest.raises(BuildError, match="holds a build of another recipe"):
        build(write_recipe(source, seed=1), tmp_path / "out")


def test_the_same_command_again_changes_nothing(tmp_path, write_recipe):
    recipe = write_recipe(folder_source(tmp_path, 5), shard_count=2)
    first = build(recipe, tmp_path / "out")
    before = {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()}
    assert build(recipe, tmp_path / "out") == first
    assert {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()} == before
    assert len(list_shards(tmp_path / "out", "train")) == 3


def test_shards_are_plain_tars_with_one_picture_and_one_sidecar_per_key(tmp_path, write_recipe):
    build(write_recipe(folder_source(tmp_path, 3)), tmp_path / "out")
    with tarfile.open(tmp_path / "out" / "train-000000.tar") as shard:
        names = shard.getnames()
        sidecar = json.load(shard.extractfile(names[1]))
    assert len(names) == 6
    assert all(re.fullmatch(r"drawn-[0-9a-f]{16}\.(png|json)", name) for name in names)
    assert sidecar["licence"] == "CC0"


def test_reading_a_damaged_shard_is_an_error(tmp_path, write_recipe):
    build(write_recipe(folder_source(tmp_path, 3)), tmp_path / "out")
    (shard,) = list_shards(tmp_path / "out", "train")
    shard.write_bytes(shard.read_bytes()[:700])
    with pytest.raises(BuildError):
        list(read_shards([shard]))
    with pytest.raises(BuildError, match="no finished shard of split 'devtest'"):
        list_shards(tmp_path / "out", "devtest")


def test_near_copies_are_duplicates_across_sources_and_splits(tmp_path, write_recipe):
    source = folder_source(tmp_path, 0)
    (tmp_path / "again").mkdir()
    for seed in range(3):
        (tmp_path / "pictures" / f"{seed}.png").write_bytes(encode(textured(seed)))
        copy = resize(jpeg(textured(seed), 60), 0.7)
        (tmp_path / "again" / f"copy-{seed}.jpg").write_bytes(encode(copy, "JPEG"))
    again = {"kind": "folder", "name": "again", "path": "again", "split": "devtest"}
    assert build(write_recipe(source, again), tmp_path / "out").counts["duplicate"] == 3
    reasons = [row["reason"] for row in rows_by_status(tmp_path / "out")["duplicate"]]
    assert all(re.fullmatch(r"near copy \(\d+ of 256 bits differ\) of \d\.png of drawn", r) for r in reasons)
    both = build(write_recipe(source, again, near_copies=True), tmp_path / "both")
    assert both.counts["kept"] == 6
    fakes = again | {"label": "ai", "generator": "someone's", "split": "train"}
    conflicts = build(write_recipe(source, fakes), tmp_path / "fakes").conflicts
    assert len(conflicts) == 3
    assert "conflict: labelled ai here, but near copy" in conflicts[0]


def test_a_picture_that_a_person_ruled_out_is_rejected(tmp_path, write_recipe):
    source = folder_source(tmp_path, 2)
    digest = hashlib.sha256(encode(picture(1))).hexdigest()
    summary = build(write_recipe(source, exclude=[digest]), tmp_path / "out")
    assert (summary.counts["kept"], summary.counts["rejected"]) == (1, 1)
    assert rows_by_status(tmp_path / "out")["rejected"][0]["reason"] == "the recipe excludes it"


def test_facts_reach_the_manifest_and_unusable_ones_are_rows(tmp_path, write_recipe):
    (tmp_path / "tree" / "fake" / "glide").mkdir(parents=True)
    (tmp_path / "tree" / "other").mkdir()
    (tmp_path / "tree" / "fake" / "glide" / "1.png").write_bytes(encode(picture(1)))
    (tmp_path / "tree" / "other" / "2.png").write_bytes(encode(picture(2)))
    rules = {"path": "^(?P<label>fake|real)/(?P<generator>[^/]+)/", "values": {"label": {"fake": "ai"}}}
    source = {"kind": "folder", "name": "tree", "path": "tree", "facts": rules, "label": None}
    known = {"glide": {"family": "GLIDE", "released": "2021-12"}}
    build(write_recipe(source, generators=known), tmp_path / "out")
    rows = rows_by_status(tmp_path / "out")
    (kept,), (rejected,) = rows["kept"], rows["rejected"]
    assert (kept["label"], kept["generator"], kept["family"], kept["released"], kept["group"]) == (
        *("ai", "glide", "GLIDE", "2021-12-01", "tree"),
    )
    assert kept["stored_sha256"] == kept["sha256"] and len(kept["phash"]) == 16
    assert rejected["reason"] == "its label is ''; it must be one of real, ai"


def test_only_what_failed_is_tried_again(tmp_path, write_recipe):
    source = folder_source(tmp_path, 2)
    absent = tmp_path / "pictures" / "locked.png"
    absent.write_bytes(encode(picture(7)))
    (tmp_path / "pictures" / "broken.png").write_bytes(b"no picture")
    recipe = write_recipe(source, limits={"max_bytes": 50_000})
    absent.write_bytes(bytes(100_000))
    assert build(recipe, tmp_path / "out").counts == {"seen": 4, "kept": 2, "rejected": 2, "duplicate": 0}
    absent.write_bytes(encode(picture(7)))
    assert build(recipe, tmp_path / "out").counts["kept"] == 2, "without the flag nothing is tried again"
    again = build(recipe, tmp_path / "out", retry_failed=True)
    assert again.counts == {"seen": 4, "kept": 3, "rejected": 1, "duplicate": 0}
