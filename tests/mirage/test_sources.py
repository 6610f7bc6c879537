import hashlib
from pathlib import Path

import pytest

from mirage.sources import Surroundings, open_source
from mirage.sources.git import GitSource
from tests.mirage.conftest import encode, picture

FIELDS = {
    "kind": "git",
    "name": "photos",
    "repo": "owner/photos",
    "select": ".",
    "label": "real",
    "generator": "camera",
    "domain": "mixed",
    "split": "train",
    "licence": "CC0",
}


def around(tmp_path: Path, seed: int = 0, max_bytes: int = 10**6, finished=frozenset()) -> Surroundings:
    return Surroundings(tmp_path / "mirrors", tmp_path, seed, finished, max_bytes, tmp_path / "downloads")


@pytest.mark.parametrize("layout", ["owner+photos/repo/.git", "owner/photos.git", "owner+photos.git"])
def test_clones_are_found_in_every_layout(tmp_path, make_clone, layout):
    revision = make_clone("owner/photos", {"a.png": encode(picture(1))})
    target = tmp_path / "mirrors" / layout
    (tmp_path / "mirrors" / "owner+photos" / "repo").rename(tmp_path / "moved")
    target.parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / "moved").rename(target)
    (candidate,) = open_source(GitSource(**FIELDS, revision=revision), around(tmp_path))
    assert candidate.data == encode(picture(1))


def test_the_order_is_by_content_and_seed(tmp_path, make_clone):
    files = {f"{number:02d}.png": encode(picture(number)) for number in range(12)}
    source = GitSource(**FIELDS, revision=make_clone("owner/photos", files))
    first, again, other = (
        [candidate.path for candidate in open_source(source, around(tmp_path, seed))] for seed in (0, 0, 1)
    )
    assert first == again != other
    assert sorted(first) == sorted(other) == sorted(files)
    assert first != sorted(files)


def test_large_lost_and_finished_files_do_not_stop_the_stream(tmp_path, make_clone):
    files = {f"{number}.png": encode(picture(number)) for number in range(4)} | {"large.png": bytes(20_000)}
    source = GitSource(**FIELDS, revision=make_clone("owner/photos", files))
    git_dir = tmp_path / "mirrors" / "owner+photos" / "repo"
    blob = hashlib.sha1(b"blob %d\0" % len(files["2.png"]) + files["2.png"]).hexdigest()
    (git_dir / "objects" / blob[:2] / blob[2:]).unlink()
    around_them = around(tmp_path, max_bytes=15_000, finished=frozenset({"1.png"}))
    found = {candidate.path: candidate for candidate in open_source(source, around_them)}
    assert found["large.png"].error == "the file has 20,000 bytes; at most 15,000 are read"
    assert (found["1.png"].data, found["1.png"].error) == (None, None)
    assert found["2.png"].error == f"the clone does not hold the file's content (blob {blob})"
    assert found["0.png"].data == files["0.png"]
    assert found["3.png"].data == files["3.png"]


def test_links_in_a_tree_are_not_followed(tmp_path, make_clone):
    revision = make_clone("owner/photos", {"a.png": encode(picture(1))}, {"link.png": "/etc/hostname"})
    source = GitSource(**FIELDS, revision=revision)
    assert [candidate.path for candidate in open_source(source, around(tmp_path))] == ["a.png"]
