"""Tables of every format that name pictures on this machine."""

import json
from datetime import date
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import parquet

from mirage.errors import RecipeError
from mirage.sources.candidate import MissingSource
from mirage.sources.entries import Entry, by_hash, read_entries, scalars
from mirage.sources.table import TableSource, open_table
from tests.mirage.conftest import encode, picture
from tests.mirage.sources.conftest import FIELDS, around, by_path

PNG = encode(picture(1))
ROWS = [
    {"path": "a/1.png", "model": "007", "seed": 5, "good": True},
    {"path": "b.v2.png", "model": 'say "hi", twice', "seed": 12, "good": False},
    {"path": "ключ.png", "model": "", "seed": 3, "good": True},
]


def write_csv(path: Path, rows: list[dict]) -> None:
    texts = [
        [str(value).lower() if isinstance(value, bool) else str(value) for value in r.values()] for r in rows
    ]
    quoted = [
        ",".join('"' + text.replace('"', '""') + '"' for text in line) for line in [list(rows[0]), *texts]
    ]
    path.write_text("\n".join(quoted), "utf-8-sig")


def write_tsv(path: Path, rows: list[dict]) -> None:
    lines = [
        "\t".join(str(v).lower() if isinstance(v, bool) else str(v) for v in row.values()) for row in rows
    ]
    path.write_text("\n".join(["\t".join(rows[0]), *lines]) + "\n", "utf-8")


def write_jsonl(path: Path, rows: list[dict]) -> None:
    path.write_text("\n".join(json.dumps(row) for row in rows) + "\n\n", "utf-8")


WRITERS = {
    "csv": write_csv,
    "tsv": write_tsv,
    "jsonl": write_jsonl,
    "parquet": lambda path, rows: parquet.write_table(pa.Table.from_pylist(rows), path),
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for row in ROWS:
        file = tmp_path / "set" / row["path"]
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(PNG)
    return tmp_path / "set"


def table(name: str, **settings) -> TableSource:
    return TableSource(**FIELDS, kind="table", path=f"set/{name}", **settings)


@pytest.mark.parametrize("suffix", WRITERS)
def test_every_format_says_the_same(tmp_path, folder, suffix):
    WRITERS[suffix](folder / f"rows.{suffix}", ROWS)
    found = by_path(open_table(table(f"rows.{suffix}"), around(tmp_path)))
    assert {path: candidate.columns for path, candidate in found.items()} == {
        "a/1.png": {"model": "007", "seed": "5", "good": "true"},
        "b.v2.png": {"model": 'say "hi", twice', "seed": "12", "good": "false"},
        "ключ.png": {"seed": "3", "good": "true"},
    }
    assert all(candidate.data == PNG for candidate in found.values())


def test_the_order_is_by_hash_whatever_the_order_of_the_rows(tmp_path, folder):
    write_jsonl(folder / "rows.jsonl", ROWS)
    write_jsonl(folder / "turned.jsonl", ROWS[::-1])
    paths = {
        (name, seed): [c.path for c in open_table(table(name), around(tmp_path, seed=seed))]
        for name in ("rows.jsonl", "turned.jsonl")
        for seed in range(8)
    }
    assert all(paths["rows.jsonl", seed] == paths["turned.jsonl", seed] for seed in range(8))
    assert len({tuple(order) for order in paths.values()}) > 2


def test_what_a_row_must_not_name(tmp_path, folder):
    (tmp_path / "secret.png").write_bytes(PNG)
    (folder / "link.png").symlink_to(tmp_path / "secret.png")
    (folder / "loop.png").symlink_to("loop.png")
    (folder / "big.png").write_bytes(PNG + bytes(10**6))
    names = [
        "../secret.png",
        str(tmp_path / "secret.png"),
        "link.png",
        "gone.png",
        "a",
        "x\0y",
        "loop.png",
        "big.png",
        "n" * 5000,
    ]
    write_jsonl(folder / "rows.jsonl", [{"path": name} for name in [*names, "a/1.png", "a/1.png", ""]])
    found = by_path(open_table(table("rows.jsonl"), around(tmp_path)))
    assert found.pop("a/1.png").data == PNG
    errors = {path: candidate.error for path, candidate in found.items()}
    assert all(candidate.data is None for candidate in found.values())
    for name in names[:3]:
        assert errors[name] == "the path leads outside the folder that is its root"
    assert not any(str(tmp_path) in error for error in errors.values())
    assert errors["gone.png"] == "there is no file of this path"
    assert errors["loop.png"] in ("the path is a link that leads to itself", "there is no file of this path")
    assert errors["a"] == "there is no file of this path"
    assert "cannot be used" in errors["x\0y"] and "File name too long" in errors["n" * 5000]
    assert errors["big.png"].endswith("at most 1,000,000 are read")
    assert errors["a/1.png (row 11)"] == "row 10 names a/1.png already"
    assert errors["row 12"] == "column path of row 12 is empty"


def test_root_moves_the_start_of_relative_paths(tmp_path, folder):
    write_jsonl(tmp_path / "rows.jsonl", [{"file": "1.png"}, {"file": str(folder / "a" / "1.png")}])
    source = TableSource(**FIELDS, kind="table", path="rows.jsonl", path_column="file", root="set/a")
    found = by_path(open_table(source, around(tmp_path)))
    assert [candidate.data for candidate in found.values()] == [PNG, PNG]


def test_finished_ones_keep_their_columns_and_are_not_read(tmp_path, folder):
    write_jsonl(folder / "rows.jsonl", [ROWS[0], {"path": "gone.png", "model": "x"}])
    found = by_path(open_table(table("rows.jsonl"), around(tmp_path, finished=frozenset(["gone.png"]))))
    assert (found["gone.png"].data, found["gone.png"].error) == (None, None)
    assert found["gone.png"].columns == {"model": "x"}
    assert found["a/1.png"].data == PNG


@pytest.mark.parametrize("suffix", WRITERS)
def test_a_missing_column_is_told_with_the_ones_there_are(tmp_path, folder, suffix):
    WRITERS[suffix](folder / f"rows.{suffix}", ROWS)
    with pytest.raises(
        RecipeError, match=rf"rows.{suffix} has no column 'file'; it has (\w+, )+\w+"
    ) as caught:
        list(open_table(table(f"rows.{suffix}", path_column="file"), around(tmp_path)))
    assert all(column in str(caught.value) for column in ROWS[0])


def test_damaged_rows_are_errors_and_the_others_are_used(tmp_path, folder):
    (folder / "rows.jsonl").write_text('{"path": "a/1.png"}\n{"path": \n[1]\n{"path": 5}\n', "utf-8")
    found = by_path(open_table(table("rows.jsonl"), around(tmp_path)))
    assert found["a/1.png"].data == PNG
    assert found["row 2"].error.startswith("line 2 is not JSON")
    assert found["row 3"].error == "line 3 holds no JSON object"
    (folder / "rows.csv").write_text('path,text\na/1.png,a, b\n"b.v2.png"x,c\nb.v2.png,d\n\n', "utf-8")
    found = by_path(open_table(table("rows.csv"), around(tmp_path)))
    assert found["row 1"].error == "line 2 has 3 fields; the header has 2"
    assert found["row 2"].error.startswith("line 3 is no row of the table")
    assert found["b.v2.png"].data == PNG and len(found) == 3


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("rows.csv", b"path\n\xff\xfe.png\n", "cannot be read: .*utf-8"),
        ("rows.parquet", b"PAR1 no table", "cannot be read"),
        ("rows.xlsx", b"", r"must end in one of .parquet, .csv"),
        ("rows.csv", b"", "has no column 'path'"),
    ],
)
def test_what_is_no_table_is_told(tmp_path, folder, name, content, reason):
    (folder / name).write_bytes(content)
    with pytest.raises(RecipeError, match=reason):
        list(open_table(table(name), around(tmp_path)))


def test_a_table_that_is_not_there_is_a_missing_source(tmp_path, folder):
    with pytest.raises(MissingSource, match=r"the table .*rows.csv does not exist"):
        list(open_table(table("rows.csv"), around(tmp_path)))
    write_jsonl(folder / "rows.jsonl", ROWS)
    with pytest.raises(MissingSource, match=r"the folder .*nowhere does not exist"):
        list(open_table(table("rows.jsonl", root="nowhere"), around(tmp_path)))


def test_pictures_and_lists_in_a_table_do_not_travel(tmp_path, folder):
    row = {"path": "a/1.png", "image": PNG, "boxes": [1, 2], "meta": {"a": 1}, "taken": date(2024, 5, 6)}
    parquet.write_table(pa.Table.from_pylist([row]), folder / "rows.parquet")
    (candidate,) = open_table(table("rows.parquet"), around(tmp_path))
    assert candidate.columns == {"taken": "2024-05-06"}


def test_scalars_read_back_equal_and_emptiness_is_left_out():
    values = {
        "f": 0.1,
        "i": 2**70,
        "b": True,
        "n": None,
        "nan": float("nan"),
        "e": "",
        "l": [],
        "s": "\ud800",
    }
    assert scalars(values) == {"f": "0.1", "i": str(2**70), "b": "true", "s": "\\ud800"}


def test_order_and_repetitions_do_not_depend_on_how_many_there_are():
    entries = [Entry(f"{number % 5000}.png", number) for number in range(6000)]
    ordered = list(by_hash(entries, seed=3))
    assert len(ordered) == 6000 and len({entry.name for entry in ordered}) == 6000
    assert sum(entry.error is not None for entry in ordered) == 1000
    few = [entry.name for entry in by_hash(entries[:100], seed=3)]
    assert few == [entry.name for entry in ordered if entry.name in set(few)]


def test_entries_are_read_one_after_another(tmp_path):
    """The first row is there before the last line, which is damaged, is met."""
    (tmp_path / "rows.csv").write_bytes(b"path\n1.png\n" + b"2.png\n" * 100_000 + b"\xff\n")
    assert next(iter(read_entries(tmp_path / "rows.csv", "path", "photos"))).name == "1.png"
