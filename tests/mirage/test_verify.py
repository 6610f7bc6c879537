import io
import json
import re
import shutil
import tarfile
from collections.abc import Callable
from pathlib import Path

import pyarrow
import pytest
from pyarrow import parquet

from mirage.build import build
from mirage.errors import BuildError
from mirage.verification.verify import Verification, verify
from tests.mirage.conftest import encode, folder_source, picture
from tests.mirage.written_set import WrittenSet, write_small

SHARD = "train-000000.tar"


@pytest.fixture(scope="module")
def written(tmp_path_factory) -> Path:
    return write_small(tmp_path_factory.mktemp("sets") / "small")


@pytest.fixture
def small(written, tmp_path) -> Path:
    """A copy to damage."""
    return Path(shutil.copytree(written, tmp_path / "small"))


def check(folder: Path) -> Verification:
    return verify(folder, workers=0)


def problems(folder: Path) -> str:
    return "\n".join(check(folder).problems)


def test_a_sound_set_has_no_problems(small):
    found = check(small)
    assert (found.problems, found.notes) == ((), ())
    assert (found.shards, found.samples, found.rows) == (4, 14, 19)
    assert found.bytes == sum(path.stat().st_size for path in small.glob("*.tar"))


def test_what_the_builder_writes_is_sound(tmp_path, write_recipe):
    source = folder_source(tmp_path, 9, cap=8)
    (tmp_path / "pictures" / "broken.png").write_bytes(encode(picture(1))[:200])
    (tmp_path / "pictures" / "twice.png").write_bytes(encode(picture(2)))
    build(write_recipe(source, shard_count=3, audit=None), tmp_path / "out")
    assert check(tmp_path / "out").problems == ()


def test_worker_processes_find_the_same(small):
    (small / SHARD).write_bytes(b"no tar")
    seen = []
    found = verify(small, workers=2, on_progress=lambda *progress: seen.append(progress))
    assert found == check(small)
    assert [number for _, number, _ in seen] == [1, 2, 3, 4]


def edit_file(path: Path, change: Callable[[bytes], bytes]) -> None:
    path.write_bytes(change(path.read_bytes()))


def flip(data: bytes, place: int) -> bytes:
    return data[:place] + bytes([data[place] ^ 255]) + data[place + 1 :]


def rewrite_shard(path: Path, change: Callable[[list[tuple[str, bytes]]], list[tuple[str, bytes]]]) -> None:
    """Write the shard anew with other members, and record its checksum as if it had been built so."""
    with tarfile.open(path) as tar:
        members = [(member.name, tar.extractfile(member).read()) for member in tar]
    with tarfile.open(path, "w", format=tarfile.USTAR_FORMAT) as tar:
        for name, data in change(members):
            member = tarfile.TarInfo(name)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    path.with_name(f"{path.name}.json").unlink()


def edit_json(change: dict) -> Callable[[list[tuple[str, bytes]]], list[tuple[str, bytes]]]:
    def rewrite(members: list[tuple[str, bytes]]) -> list[tuple[str, bytes]]:
        (name, data), *rest = members[1:]
        return [members[0], (name, json.dumps(json.loads(data) | change).encode()), *rest]

    return rewrite


def edit_line(path: Path, number: int, change: dict) -> None:
    lines = path.read_text("utf-8").splitlines()
    lines[number] = json.dumps(json.loads(lines[number]) | change)
    path.write_text("\n".join(lines) + "\n", "utf-8")


def edit_manifest(folder: Path, change: Callable[[list[dict]], list[dict]]) -> None:
    path = folder / "manifest.parquet"
    table = parquet.read_table(path)
    parquet.write_table(pyarrow.Table.from_pylist(change(table.to_pylist()), schema=table.schema), path)


def edit_row(number: int, **change) -> Callable[[list[dict]], list[dict]]:
    return lambda rows: [row | change if place == number else row for place, row in enumerate(rows)]


# Damage -> what is done to the folder, and what must be said; the file's name is part of it.
DAMAGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "a flipped byte in a picture": (
        lambda folder: edit_file(folder / SHARD, lambda data: flip(data, 700)),
        r"train-000000\.tar: photos-\w+: its stored bytes do not have the recorded sha256",
    ),
    "a flipped byte, seen in the shard's checksum": (
        lambda folder: edit_file(folder / SHARD, lambda data: flip(data, len(data) - 5000)),
        r"train-000000\.tar: its sha256 is \w+, recorded was \w+",
    ),
    "a flipped byte in a header": (
        lambda folder: edit_file(folder / SHARD, lambda data: flip(data, data.rfind(b"ustar") - 100)),
        r"train-000000\.tar: the tar file is damaged or cut short: nothing can be read after byte",
    ),
    "cut short within a picture": (
        lambda folder: edit_file(folder / SHARD, lambda data: data[:900]),
        r"train-000000\.tar: the tar file is damaged or cut short: unexpected end of data",
    ),
    "cut short between two files": (
        lambda folder: edit_file(folder / SHARD, lambda data: data[: data.rfind(b"ustar") - 257]),
        r"train-000000\.tar: the tar file is damaged or cut short: nothing can be read after byte",
    ),
    "cut short, so that samples are missing": (
        lambda folder: edit_file(folder / SHARD, lambda data: data[:9000]),
        r"train-000000\.tar: \w+-\w+: the journal lists this sample, but the shard does not hold it",
    ),
    "an empty shard": (
        lambda folder: edit_file(folder / SHARD, lambda _: b""),
        r"train-000000\.tar: the tar file is damaged or cut short: empty file",
    ),
    "a missing shard": (
        lambda folder: (folder / SHARD).unlink(),
        r"train-000000\.tar: the file is missing; its journal lists 4 pictures",
    ),
    "a missing journal": (
        lambda folder: (folder / f"{SHARD}.jsonl").unlink(),
        r"train-000000\.tar: it has no journal",
    ),
    "a deleted sample": (
        lambda folder: rewrite_shard(folder / SHARD, lambda members: members[2:]),
        r"train-000000\.tar: photos-\w+: the journal lists this sample, but the shard does not hold it",
    ),
    "an added sample": (
        lambda folder: rewrite_shard(
            folder / SHARD, lambda members: [*members, ("new.png", members[0][1]), ("new.json", b"{}")]
        ),
        r"train-000000\.tar: new: the journal has no row of this sample",
    ),
    "a sample without its .json file": (
        lambda folder: rewrite_shard(folder / SHARD, lambda members: [members[0], *members[2:]]),
        r"train-000000\.tar: photos-\w+: a sample is one picture and one \.json file, not png",
    ),
    "a key used twice": (
        lambda folder: rewrite_shard(folder / SHARD, lambda members: [*members, *members[:2]]),
        r"train-000000\.tar: photos-\w+: the key is used twice",
    ),
    "a file twice in a sample": (
        lambda folder: rewrite_shard(folder / SHARD, lambda members: [members[0], *members]),
        r"train-000000\.tar: photos-\w+: it has two \.png files",
    ),
    "a key with a dot": (
        lambda folder: rewrite_shard(folder / SHARD, lambda members: [*members, ("a.b.png", b"x")]),
        r"train-000000\.tar: 'a\.b\.png': a file must be named by a key without dots",
    ),
    "a picture that cannot be decoded": (
        lambda folder: rewrite_shard(
            folder / SHARD, lambda members: [(members[0][0], b"x" * len(members[0][1])), *members[1:]]
        ),
        r"train-000000\.tar: photos-\w+: the bytes are not a picture.*: the picture cannot be decoded",
    ),
    "another picture": (
        lambda folder: rewrite_shard(
            folder / SHARD, lambda members: [(members[0][0], encode(picture(1, 50, 50))), *members[1:]]
        ),
        r"train-000000\.tar: photos-\w+: 50 x 50 px instead of 96 x 80 px: its size differs",
    ),
    "another label in a sample": (
        lambda folder: rewrite_shard(folder / SHARD, edit_json({"label": "ai"})),
        r"train-000000\.tar: photos-\w+: its \.json file and the journal differ in label",
    ),
    "a .json file without its key": (
        lambda folder: rewrite_shard(folder / SHARD, lambda members: [members[0], (members[1][0], b"{}")]),
        r"train-000000\.tar: photos-\w+: its \.json file and the journal differ in key, label, sha256, split",
    ),
    "a journal line that is no JSON": (
        lambda folder: edit_file(folder / f"{SHARD}.jsonl", lambda data: b"}\n" + data),
        r"train-000000\.tar\.jsonl: line 1: it is no row of a journal",
    ),
    "a journal line twice": (
        lambda folder: edit_file(
            folder / f"{SHARD}.jsonl", lambda data: data + data[: data.index(b"\n") + 1]
        ),
        r"train-000000\.tar\.jsonl: line 5: another row has the same place in the recipe",
    ),
    "a key used in two shards": (
        lambda folder: edit_line(
            folder / "train-000001.tar.jsonl", 0, {"key": json.loads(first_line(folder))["key"]}
        ),
        r"train-000001\.tar\.jsonl: line 1: photos-\w+: its key is used in train-000000\.tar\.jsonl, too",
    ),
    "an unknown status": (
        lambda folder: edit_line(folder / "rows-000000.jsonl", 0, {"status": "lost"}),
        r"rows-000000\.jsonl: line 1: its status is none of kept, rejected, duplicate",
    ),
    "no reason": (
        lambda folder: edit_line(folder / "rows-000000.jsonl", 0, {"reason": None}),
        r"rows-000000\.jsonl: line 1: it is not kept, but no reason is told",
    ),
    "an edited manifest": (
        lambda folder: edit_manifest(folder, edit_row(0, label="ai", licence="CC0")),
        r"manifest\.parquet: photos: 0\.png: it differs from train-000000\.tar\.jsonl in label, licence",
    ),
    "a row missing in the manifest": (
        lambda folder: edit_manifest(folder, lambda rows: rows[1:]),
        r"manifest\.parquet: photos: 0\.png: it lacks a row of train-000000\.tar\.jsonl",
    ),
    "a row twice in the manifest": (
        lambda folder: edit_manifest(folder, lambda rows: [*rows, rows[0]]),
        r"manifest\.parquet: photos: 0\.png: no journal has this row, or it stands twice",
    ),
    "a manifest without a column": (
        lambda folder: parquet.write_table(
            parquet.read_table(folder / "manifest.parquet").drop_columns("label"), folder / "manifest.parquet"
        ),
        r"manifest\.parquet: it has no columns label",
    ),
    "a damaged manifest": (
        lambda folder: edit_file(folder / "manifest.parquet", lambda data: data[: len(data) // 2]),
        r"manifest\.parquet: it cannot be read: ",
    ),
    "no manifest": (
        lambda folder: (folder / "manifest.parquet").unlink(),
        r"manifest\.parquet: the file is missing",
    ),
    "other sums": (
        lambda folder: edit_file(folder / "stats.json", lambda data: data.replace(b": 14", b": 15")),
        r"stats\.json: it counts 15 kept, the journals hold 14",
    ),
    "no record of the build": (
        lambda folder: (folder / "build.json").unlink(),
        r"build\.json: the file is missing",
    ),
    "damaged statistics": (
        lambda folder: (folder / "stats.json").write_text("[1"),
        r"stats\.json: it is no JSON object",
    ),
    "a damaged record of a shard": (
        lambda folder: (folder / f"{SHARD}.json").write_text("[]"),
        r"train-000000\.tar\.json: it is no record of a shard's sha256, bytes and samples",
    ),
    "something left behind": (
        lambda folder: (folder / "train-000009.tar.partial").write_bytes(b"x"),
        r"train-000009\.tar\.partial: it was left behind by a killed run",
    ),
}


def first_line(folder: Path) -> str:
    return (folder / f"{SHARD}.jsonl").read_text("utf-8").splitlines()[0]


@pytest.mark.parametrize("damage", DAMAGES)
def test_damage_is_found_and_named(small, damage):
    do, said = DAMAGES[damage]
    do(small)
    assert re.search(f"^{said}", problems(small), re.MULTILINE), problems(small)


def test_no_problem_hides_another(small):
    (small / SHARD).write_bytes(b"")
    (small / "devtest-000000.tar").unlink()
    edit_manifest(small, lambda rows: rows[2:])
    (small / "stats.json").unlink()
    named = {sentence.partition(":")[0] for sentence in check(small).problems}
    assert named == {SHARD, "devtest-000000.tar", "manifest.parquet", "stats.json"}


@pytest.mark.parametrize("column", ["sha256", "pair", "group"])
def test_what_belongs_together_stands_in_one_split(tmp_path, column):
    drawn = WrittenSet(tmp_path / "set")
    drawn.keep(
        "train", "real", "photos", "camera", **{column: "c" * 64}, stored_sha256=None, transforms=["x"]
    )
    drawn.keep(
        "train", "real", "photos", "camera", **{column: "c" * 64}, stored_sha256=None, transforms=["x"]
    )
    assert problems(drawn.write()) == ""
    drawn.keep("devtest", "ai", "newer", "P", **{column: "c" * 64}, stored_sha256=None, transforms=["x"])
    text = problems(drawn.write())
    assert re.search(
        rf"train-000000\.tar\.jsonl: line 1: .*stands in train here and in devtest.*{column}", text
    )


@pytest.mark.parametrize("rule", [{"hold_out": ["Painter 3"]}, {"released_after": "2023-12-31"}])
def test_held_out_generators_may_leave_their_group(tmp_path, rule):
    drawn = WrittenSet(tmp_path / "set")
    drawn.keep("train", "ai", "paintings", "Painter 2", group="g", released="2023-12-31")
    drawn.keep("devtest", "ai", "paintings", "Painter 3", group="g", released="2024-01-01")
    assert "one group is in two splits" in problems(drawn.write())
    drawn.write_json("build.json", {"recipe": "r", "content": {"splits": rule}})
    assert problems(tmp_path / "set") == ""
    drawn.keep("devtest", "real", "paintings", "Painter 3", group="g", released="2024-01-01")
    folder = drawn.write()
    drawn.write_json("build.json", {"recipe": "r", "content": {"splits": rule}})
    assert "one group is in two splits" in problems(folder), "a real picture is no generator's"


def test_many_problems_of_one_kind_are_counted(tmp_path):
    drawn = WrittenSet(tmp_path / "set")
    for _ in range(25):
        drawn.keep("train", "real", "photos", "camera", width=1)
    found = check(drawn.write(samples_per_shard=100)).problems
    assert len(found) == 21
    assert found[-1] == "train-000000.tar: 5 more of the kind: its size differs from the journal's"


def test_sets_without_recorded_checksums_say_so(small):
    for path in small.glob("*.tar.json"):
        path.unlink()
    found = check(small)
    assert found.problems == ()
    assert found.notes == ("shards without a recorded checksum, as older builds wrote none: 4 of 4",)


def test_an_unchanged_picture_is_checked_by_its_source_s_hash(tmp_path):
    drawn = WrittenSet(tmp_path / "set")
    drawn.keep("train", "real", "photos", "camera", stored_sha256=None)
    drawn.keep(
        "train", "real", "photos", "camera", stored_sha256=None, sha256="d" * 64, transforms=["resize"]
    )
    found = check(drawn.write())
    assert found.problems == ()
    assert found.notes == ("pictures without a recorded sha256 of their stored bytes, only decoded: 1",)
    edit_file(tmp_path / "set" / SHARD, lambda data: flip(data, 700))
    assert "do not have the recorded sha256" in problems(tmp_path / "set")


def test_a_folder_without_a_data_set_is_an_error(tmp_path):
    with pytest.raises(BuildError, match=r"holds neither shards nor a manifest\.parquet"):
        verify(tmp_path)
