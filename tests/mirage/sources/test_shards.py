"""Tar files of the WebDataset layout, sound and broken."""

import gzip
import io
import json
import tarfile
from pathlib import Path

import pytest
import webdataset

from mirage.sources.candidate import MissingSource
from mirage.sources.shards import ShardsSource, open_shards
from tests.mirage.conftest import encode, picture
from tests.mirage.sources.conftest import FIELDS, around, by_path

PNGS = [encode(picture(number)) for number in range(4)]


def tar(*members: tuple[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name, data in members:
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return buffer.getvalue()


def write(tmp_path: Path, name: str, data: bytes) -> None:
    path = tmp_path / "shards" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


def source(**settings) -> ShardsSource:
    return ShardsSource(**FIELDS, kind="webdataset", path="shards", **settings)


def found(tmp_path: Path, *members: tuple[str, bytes], **settings):
    write(tmp_path, "0.tar", tar(*members))
    return by_path(open_shards(source(**settings), around(tmp_path)))


def test_sidecars_become_columns(tmp_path):
    sidecar = {"model": "m", "seed": 7, "url": "http://a.test/", "boxes": [1], "none": None, "key": "other"}
    candidates = found(
        tmp_path,
        ("a.json", json.dumps(sidecar).encode()),
        ("a.png", PNGS[0]),
        ("a.txt", " a красный cat\n".encode()),
        ("a.npy", b"numbers"),
        ("b.jpg", PNGS[1]),
        ("b.cls", b"3"),
    )
    assert candidates["0.tar/a.png"].data == PNGS[0]
    assert candidates["0.tar/a.png"].columns == {
        "model": "m",
        "seed": "7",
        "url": "http://a.test/",
        "caption": "a красный cat",
        "key": "a",
    }
    assert candidates["0.tar/b.jpg"].columns == {"class": "3", "key": "b"}


def test_what_the_webdataset_library_writes_is_read(tmp_path):
    (tmp_path / "shards").mkdir()
    with webdataset.TarWriter(str(tmp_path / "shards" / "0.tar")) as writer:
        for number, data in enumerate(PNGS):
            writer.write({"__key__": f"dir/{number:04d}", "png": data, "json": {"n": number}, "txt": "cat"})
    candidates = list(open_shards(source(), around(tmp_path)))
    assert [c.data for c in candidates] == PNGS
    assert [c.columns["n"] for c in candidates] == ["0", "1", "2", "3"]
    assert candidates[0].path == "0.tar/dir/0000.png" and candidates[0].columns["key"] == "dir/0000"


def test_dots_in_names_do_not_join_samples(tmp_path):
    names = ["v1.0/photo.1", "v1.0/photo.2", "IMG 3.5 (copy)"]
    members = []
    for number, name in enumerate(names):
        members += [(f"{name}.PNG", PNGS[number]), (f"{name}.json", b'{"n": %d}' % number)]
    candidates = found(tmp_path, *members)
    assert [c.data for c in candidates.values()] == PNGS[:3]
    assert [c.columns for c in candidates.values()] == [
        {"n": str(number), "key": name} for number, name in enumerate(names)
    ]


def test_keys_may_end_at_the_first_dot_as_in_the_library(tmp_path):
    members = [("d.1/1.image.png", PNGS[0]), ("d.1/1.meta.json", b'{"n": 1}'), ("d.1/2.image.png", PNGS[1])]
    candidates = found(tmp_path, *members, key="first-dot")
    assert candidates["0.tar/d.1/1.image.png"].columns == {"n": "1", "key": "d.1/1"}
    assert candidates["0.tar/d.1/2.image.png"].data == PNGS[1]


def test_unusable_samples_are_errors_and_the_others_are_used(tmp_path):
    candidates = found(
        tmp_path,
        ("none.json", b"{}"),
        ("two.png", PNGS[0]),
        ("two.jpg", PNGS[1]),
        ("bad.png", PNGS[0]),
        ("bad.json", b"{"),
        ("list.png", PNGS[0]),
        ("list.json", b"[1]"),
        ("deep.png", PNGS[0]),
        ("deep.json", b"[" * 100_000),
        ("long.png", PNGS[0]),
        ("long.txt", bytes(2**20 + 1)),
        ("big.png", bytes(10**6 + 1)),
        ("good.png", PNGS[2]),
        ("two.png", PNGS[3]),
    )
    assert candidates.pop("0.tar/good.png").data == PNGS[2]
    errors = {path: candidate.error for path, candidate in candidates.items()}
    assert errors["0.tar/none.json"] == "the sample none has 0 pictures; it needs one"
    assert errors["0.tar/two.png"] == "the sample two has 2 pictures; it needs one"
    assert errors["0.tar/bad.png"].startswith("sidecar .json cannot be used: Expecting")
    assert errors["0.tar/list.png"] == "sidecar .json cannot be used: it holds no JSON object"
    assert "sidecar .json cannot be used" in errors["0.tar/deep.png"]
    assert errors["0.tar/long.png"].startswith("sidecar .txt: the file has 1,048,577 bytes")
    assert errors["0.tar/big.png"].endswith("at most 1,000,000 are read")
    assert errors["0.tar/two.png (sample 9)"] == "the tar file holds this member twice"
    assert all(candidate.data is None for candidate in candidates.values())


FOUR = tar(*[(f"{number}.png", data) for number, data in enumerate(PNGS)])


def broken_header() -> bytes:
    """A sound archive but for one byte in the third member's name, so that its checksum is wrong."""
    start = FOUR.index(b"2.png\0")
    return FOUR[:start] + b"X" + FOUR[start + 1 :]


@pytest.mark.parametrize(
    ("data", "sound"),
    [
        (FOUR[: FOUR.index(b"3.png\0") + 700], 3),  # in the middle of a picture
        (FOUR[: FOUR.index(b"3.png\0") + 100], 2),  # in a header: sidecars of the third may be missing
        (FOUR[: FOUR.index(b"3.png\0")], 2),  # between two members: the end mark is missing
        (broken_header(), 1),
        (b"", 0),
        (b"this is no tar file" * 100, 0),
        (gzip.compress(FOUR)[:-2000], None),
    ],
)
def test_a_broken_tar_file_is_one_error_and_what_came_before_is_used(tmp_path, data, sound):
    write(tmp_path, "broken.tar", data)
    write(tmp_path, "sound.tar", FOUR)
    candidates = by_path(open_shards(source(), around(tmp_path)))
    assert "the tar file is broken after" in candidates["broken.tar"].error
    used = [c for path, c in candidates.items() if path.startswith("broken.tar/")]
    assert sound is None or len(used) == sound
    assert [c.data for c in used] == PNGS[: len(used)]
    assert sum(path.startswith("sound.tar/") for path in candidates) == 4


def test_a_tar_file_without_a_sample_is_told(tmp_path):
    assert found(tmp_path, ("readme.md", b"x"))["0.tar/readme.md"].error.startswith("the sample readme has 0")
    write(tmp_path, "0.tar", tar())
    (candidate,) = open_shards(source(), around(tmp_path))
    assert candidate.error == "the tar file holds no sample"


def test_compressed_tar_files_and_patterns(tmp_path):
    write(tmp_path, "train/0.tar.gz", gzip.compress(FOUR))
    write(tmp_path, "test/0.tar.gz", gzip.compress(FOUR))
    candidates = list(open_shards(source(pattern="train/*.tar.gz"), around(tmp_path)))
    assert [c.path for c in candidates] == [f"train/0.tar.gz/{number}.png" for number in range(4)]
    assert [c.data for c in candidates] == PNGS


def test_shards_come_in_hash_order_and_samples_as_stored(tmp_path):
    for number in range(6):
        write(tmp_path, f"{number}.tar", FOUR)
    orders = [[c.path for c in open_shards(source(), around(tmp_path, seed=seed))] for seed in range(3)]
    assert orders[0] != orders[1] and sorted(orders[0]) == sorted(orders[1])
    for order in orders:
        assert [path[-5] for path in order] == list("0123" * 6)
    assert orders[0] == [c.path for c in open_shards(source(), around(tmp_path))]


def test_finished_ones_keep_their_columns_and_are_not_read(tmp_path):
    write(tmp_path, "0.tar", tar(("a.png", PNGS[0]), ("a.txt", b"cat"), ("b.png", PNGS[1])))
    candidates = by_path(open_shards(source(), around(tmp_path, finished=frozenset(["0.tar/a.png"]))))
    assert candidates["0.tar/a.png"].data is None and candidates["0.tar/a.png"].error is None
    assert candidates["0.tar/a.png"].columns == {"caption": "cat", "key": "a"}
    assert candidates["0.tar/b.png"].data == PNGS[1]


def test_names_that_are_not_utf8_are_printable(tmp_path):
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.GNU_FORMAT, encoding="latin-1") as archive:
        member = tarfile.TarInfo("é.png")
        member.size = len(PNGS[0])
        archive.addfile(member, io.BytesIO(PNGS[0]))
    write(tmp_path, "0.tar", buffer.getvalue())
    (candidate,) = open_shards(source(), around(tmp_path))
    assert (candidate.path, candidate.data) == ("0.tar/\\xe9.png", PNGS[0])
    assert candidate.columns == {"key": "\\xe9"}


def test_links_and_folders_are_no_members(tmp_path):
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name, kind in (("d", tarfile.DIRTYPE), ("x.png", tarfile.SYMTYPE), ("y.png", tarfile.LNKTYPE)):
            member = tarfile.TarInfo(name)
            member.type, member.linkname = kind, "/etc/hostname"
            archive.addfile(member)
    write(tmp_path, "0.tar", buffer.getvalue())
    (candidate,) = open_shards(source(), around(tmp_path))
    assert candidate.error == "the tar file holds no sample"


def test_a_folder_without_shards_is_a_missing_source(tmp_path):
    with pytest.raises(MissingSource, match="shards does not exist"):
        list(open_shards(source(), around(tmp_path)))
    (tmp_path / "shards").mkdir()
    with pytest.raises(MissingSource, match="no file below"):
        list(open_shards(source(), around(tmp_path)))
