"""Data sets in folders of this machine, opened as the Hub's are."""

from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import parquet

from mirage.errors import RecipeError
from mirage.sources.candidate import MissingSource
from mirage.sources.hub import HubSource, open_hub
from tests.mirage.conftest import encode, picture
from tests.mirage.sources.conftest import FIELDS, around, by_path

datasets = pytest.importorskip("datasets")

PNGS = [encode(picture(number)) for number in range(6)]
JPEG = encode(picture(9), "JPEG", quality=71)


@pytest.fixture(autouse=True)
def offline(monkeypatch) -> None:
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)


def source(**settings) -> HubSource:
    return HubSource(**FIELDS, kind="hub", dataset="set", **settings)


@pytest.fixture
def image_folder(tmp_path: Path) -> Path:
    folder = tmp_path / "set" / "train"
    for number, data in enumerate(PNGS):
        (folder / f"part.{number % 2}").mkdir(parents=True, exist_ok=True)
        (folder / f"part.{number % 2}" / f"pic {number}.png").write_bytes(data)
    lines = [f"part.{number % 2}/pic {number}.png,words {number},{number}" for number in range(6)]
    (folder / "metadata.csv").write_text("\n".join(["file_name,text,seed", *lines]), "utf-8")
    return folder


def write_parquet(tmp_path: Path, rows: list[dict], name: str = "train-0", **features) -> None:
    path = tmp_path / "set" / "data" / f"{name}.parquet"
    path.parent.mkdir(parents=True, exist_ok=True)
    kinds = datasets.Features({"image": datasets.Image(), **features})
    # Not through the library's own writer, which would put files that a path names into the table.
    parquet.write_table(pa.Table.from_pylist(rows, schema=kinds.arrow_schema), path)


@pytest.fixture
def embedded(tmp_path: Path) -> Path:
    rows = [
        {"image": {"bytes": data, "path": "same.png"}, "label": number % 2, "text": f"t{number}", "box": [1]}
        for number, data in enumerate([*PNGS, JPEG])
    ]
    kinds = {"label": datasets.ClassLabel(names=["cat", "dog"]), "text": datasets.Value("string")}
    write_parquet(tmp_path, rows, **kinds, box=datasets.Sequence(datasets.Value("int32")))
    return tmp_path / "set"


def test_a_folder_of_pictures_gives_files_by_their_paths(tmp_path, image_folder):
    candidates = by_path(open_hub(source(), around(tmp_path)))
    assert {path: c.data for path, c in candidates.items()} == {
        f"train/part.{number % 2}/pic {number}.png": PNGS[number] for number in range(6)
    }
    assert candidates["train/part.1/pic 3.png"].columns == {"text": "words 3", "seed": "3"}


@pytest.mark.parametrize("streaming", [False, True])
def test_pictures_inside_parquet_keep_their_bytes(tmp_path, embedded, streaming):
    candidates = by_path(open_hub(source(streaming=streaming), around(tmp_path)))
    assert sorted(c.data for c in candidates.values()) == sorted([*PNGS, JPEG])
    last = next(c for c in candidates.values() if c.data == JPEG)
    assert last.columns == {"label": "cat", "text": "t6"}
    assert last.path == ("train/0-6" if streaming else "train/6")


def test_the_order_is_by_hash_and_stays(tmp_path, embedded):
    orders = [[c.path for c in open_hub(source(), around(tmp_path, seed=seed))] for seed in (0, 0, 1)]
    assert orders[0] == orders[1] != orders[2]
    assert sorted(orders[0]) == sorted(orders[2]) != orders[0]


def test_streamed_files_come_in_hash_order(tmp_path):
    for file in range(5):
        write_parquet(tmp_path, [{"image": {"bytes": data, "path": None}} for data in PNGS], f"train-{file}")
    orders = [[c.path for c in open_hub(source(streaming=True), around(tmp_path, seed=s))] for s in (0, 0, 1)]
    assert orders[0] == orders[1] != orders[2] and len(set(orders[0])) == 30
    assert [path[-1] for path in orders[0]] == list("012345" * 5)


def test_pictures_in_a_binary_column_and_other_splits(tmp_path):
    rows = [{"photo": data, "text": "x"} for data in PNGS]
    path = tmp_path / "set" / "test.parquet"
    path.parent.mkdir()
    kinds = datasets.Features({"photo": datasets.Value("binary"), "text": datasets.Value("string")})
    datasets.Dataset.from_list(rows, features=kinds).to_parquet(str(path))
    candidates = by_path(open_hub(source(image_column="photo", hub_split="test"), around(tmp_path)))
    assert candidates["test/3"].data == PNGS[3] and candidates["test/3"].columns == {"text": "x"}


@pytest.mark.parametrize("streaming", [False, True])
def test_a_row_may_not_name_any_file_it_likes(tmp_path, streaming):
    (tmp_path / "secret.png").write_bytes(PNGS[0])
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / "link.png").symlink_to(tmp_path / "secret.png")
    names = [
        str(tmp_path / "secret.png"),
        str(tmp_path / "set" / ".." / "secret.png"),
        str(tmp_path / "set" / "link.png"),
        f"file://{tmp_path}/secret.png",
        "http://127.0.0.1:9/secret.png",
        f"zip://a.png::file://{tmp_path}/secret.zip",
        "http://127.0.0.1:9/::hf://datasets/a/b/c.png",
        "secret.png",
        None,
    ]
    write_parquet(tmp_path, [{"image": {"bytes": None, "path": name}} for name in names])
    candidates = list(open_hub(source(streaming=streaming), around(tmp_path)))
    assert len(candidates) == len(names) and all(c.data is None for c in candidates)
    errors = sorted(c.error for c in candidates)
    assert sum("which is no file of the data set" in error for error in errors) == len(names) - 1
    assert sum(error == "the row holds no picture" for error in errors) == 1


def test_pictures_inside_an_archive_are_read(tmp_path):
    import zipfile

    (tmp_path / "set").mkdir()
    with zipfile.ZipFile(tmp_path / "set" / "train.zip", "w") as archive:
        for number, data in enumerate(PNGS):
            archive.writestr(f"{number}.png", data)
    for streaming in (False, True):
        candidates = by_path(open_hub(source(streaming=streaming), around(tmp_path)))
        assert sorted(c.data for c in candidates.values()) == sorted(PNGS)


def test_large_pictures_and_rows_without_one_are_errors(tmp_path):
    rows = [{"image": {"bytes": PNGS[0] + bytes(10**6), "path": None}}, {"image": None}]
    write_parquet(tmp_path, rows)
    candidates = by_path(open_hub(source(), around(tmp_path)))
    assert candidates["train/0"].error.endswith("at most 1,000,000 are read")
    assert candidates["train/1"].error == "the row holds no picture"


def test_finished_ones_keep_their_columns(tmp_path, embedded):
    candidates = by_path(open_hub(source(), around(tmp_path, finished=frozenset(["train/1"]))))
    assert (candidates["train/1"].data, candidates["train/1"].error) == (None, None)
    assert candidates["train/1"].columns == {"label": "dog", "text": "t1"}
    assert candidates["train/2"].data == PNGS[2]


@pytest.mark.parametrize("streaming", [False, True])
def test_finished_ones_of_a_data_set_without_other_columns(tmp_path, streaming):
    write_parquet(tmp_path, [{"image": {"bytes": data, "path": None}} for data in PNGS])
    first = [c.path for c in open_hub(source(streaming=streaming), around(tmp_path))]
    again = open_hub(source(streaming=streaming), around(tmp_path, finished=frozenset(first)))
    assert [(c.path, c.data, c.error, c.columns) for c in again] == [(path, None, None, {}) for path in first]


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"image_column": "photo"}, "has no column 'photo'; it has image, label, text, box"),
        ({"image_column": "text"}, "column text holds .*; it must be Image or binary"),
        ({"hub_split": "test"}, "test.*train"),
        ({"config": "large"}, "large"),
    ],
)
@pytest.mark.parametrize("streaming", [False, True])
def test_what_the_data_set_lacks_is_told(tmp_path, embedded, settings, reason, streaming):
    with pytest.raises(RecipeError, match=reason) as caught:
        list(open_hub(source(streaming=streaming, **settings), around(tmp_path)))
    assert not isinstance(caught.value, MissingSource)


def test_a_data_set_that_is_not_there_is_a_missing_source(tmp_path):
    for name in ("nobody/nothing", "nowhere"):
        absent = HubSource(**FIELDS, kind="hub", dataset=name)
        with pytest.raises(MissingSource, match="source photos: "):
            list(open_hub(absent, around(tmp_path)))
