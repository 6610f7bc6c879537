import io
import json
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from mirage.cards.counts import EDGES, Counts, count
from mirage.cards.reasons import classify, other_side
from mirage.cards.tables import generator_table, spread_table, stats_table
from mirage.errors import BuildError
from tests.mirage.conftest import encode, picture
from tests.mirage.written_set import WrittenSet, write_small


@pytest.fixture(scope="module")
def small(tmp_path_factory) -> Path:
    return write_small(tmp_path_factory.mktemp("sets") / "small")


@pytest.fixture(scope="module")
def counts(small) -> Counts:
    return count(small, headers=True)


def test_all_pictures_are_counted_once(counts):
    assert (counts.seen, counts.kept, counts.rejected, counts.duplicate) == (19, 14, 2, 3)
    assert counts.by("split", "label") == {
        ("devtest", "ai"): 1,
        ("devtest", "real"): 1,
        ("train", "ai"): 6,
        ("train", "real"): 6,
    }
    assert counts.by("licence") == {("CC0-1.0",): 9, ("none stated",): 5}
    assert sum(source.seen for source in counts.sources) == 19
    assert sum(made.kept for made in counts.generators) == 14
    assert (counts.pairs, counts.near_copies, counts.conflicts) == (1, 1, 1)
    assert counts.released == ("2023-05-01", "2024-01-01")


def test_bytes_are_those_of_the_stored_pictures(small, counts):
    rows = [json.loads(line) for path in small.glob("*.tar.jsonl") for line in path.open(encoding="utf-8")]
    assert counts.bytes == sum(row["bytes"] for row in rows) > 0


def test_spreads_are_those_of_numpy(tmp_path):
    drawn = WrittenSet(tmp_path / "set")
    widths = np.random.default_rng(0).integers(40, 3000, 101).tolist()
    for width in widths:
        drawn.keep("train", "real", "photos", "camera", width=width, height=100, bytes=width * 50)
    spread = count(drawn.write(samples_per_shard=200)).spread("width")["real"]
    wanted = np.quantile(widths, [0, 0.05, 0.5, 0.95, 1], method="inverted_cdf").tolist()
    assert [spread.least, spread.low, spread.median, spread.high, spread.most] == wanted
    assert (
        list(spread.histogram)
        == np.histogram(np.clip(widths, *EDGES["width"][::32]), EDGES["width"])[0].tolist()
    )
    per_pixel = count(tmp_path / "set").spread("bytes per pixel")["real"]
    assert (per_pixel.least, per_pixel.most) == (0.5, 0.5)


def test_values_outside_the_edges_are_counted(tmp_path):
    drawn = WrittenSet(tmp_path / "set")
    for width in (1, 100_000):
        drawn.keep("train", "real", "photos", "camera", width=width)
    histogram = count(drawn.write()).spread("width")["real"].histogram
    assert (histogram[0], histogram[-1], sum(histogram)) == (1, 1, 2)


def test_jpeg_qualities_are_read_from_the_pictures(tmp_path):
    drawn = WrittenSet(tmp_path / "set")
    for quality in (30, 75, 75):
        row = drawn.keep("train", "real", "photos", "camera", "jpg")
        drawn.store(row, encode(picture(quality), "JPEG", quality=quality, comment=b"c" * 60_000))
    drawn.keep("train", "ai", "paintings", "Painter", "png")
    folder = drawn.write()
    assert count(folder).spread("JPEG quality") == {}
    spreads = count(folder, headers=True).spread("JPEG quality")
    assert list(spreads) == ["real"], "other formats have no quality"
    assert (spreads["real"].least, spreads["real"].median, spreads["real"].most) == (30, 75, 75)


def test_a_damaged_shard_is_named(small, tmp_path):
    drawn = WrittenSet(tmp_path / "set")
    drawn.keep("train", "real", "photos", "camera", "jpg")
    folder = drawn.write()
    (folder / "train-000000.tar").write_bytes(b"no tar at all" * 100)
    with pytest.raises(BuildError, match=r"train-000000\.tar cannot be read: .*omniaid mirage verify"):
        count(folder, headers=True)


def test_counts_survive_json(counts):
    assert Counts.model_validate_json(counts.model_dump_json()) == counts


def test_a_manifest_without_planned_columns_is_counted(small, counts):
    """Data sets built before a column existed are still of use."""
    from pyarrow import parquet

    table = parquet.read_table(small / "manifest.parquet")
    old = table.drop_columns(["family", "released", "group", "stored_sha256", "prompt", "url"])
    folder = small.parent / "old"
    folder.mkdir()
    parquet.write_table(old, folder / "manifest.parquet")
    found = count(folder)
    assert found.by("split", "label") == counts.by("split", "label")
    assert found.released is None


def test_the_terminal_shows_every_table_and_the_sum(counts):
    console = Console(width=120, record=True, file=io.StringIO())
    console.print(stats_table(counts))
    text = console.export_text()
    for title in ("by split", "by domain", "AI pictures by generator", "Real pictures by kind", "Not kept"):
        assert title in text
    assert "seen 19 = kept 14 + rejected 2 + duplicate 3" in text
    assert generator_table(counts, "ai").rows[0] == ("Painter 2", "Painter", "2023-05-01", 5, 0)
    assert spread_table(counts).rows[0][:2] == ("width", "real")


def test_markup_in_names_is_shown_as_text(tmp_path):
    drawn = WrittenSet(tmp_path / "set")
    drawn.keep("train", "ai", "paintings", "[bold]Painter[/nothing]")
    console = Console(width=120, record=True, file=io.StringIO())
    console.print(stats_table(count(drawn.write())))
    assert "[bold]Painter[/nothing]" in console.export_text()


@pytest.mark.parametrize(
    ("reason", "kind"),
    [
        ("20 x 31 px; the shorter side must be at least 64 px", "too small"),
        ("the picture is damaged or cut short: image file is truncated (3 bytes)", "damaged or cut short"),
        ("the server answered with status 404 (redirected to https://x.org)", "server answered 4xx"),
        ("the transfer failed: the host x.org cannot be resolved: no name", "host not found"),
        ("its label is 'dog'; it must be one of real, ai", "its label is …; it must be one of real, ai"),
        ("something new about 3,5 of 17 'names' (detail): more", "something new about N of N …"),
        ("same bytes as 7.png of photos", "same bytes as a kept picture"),
        (
            "conflict: labelled ai here, but same bytes as x of y, labelled real",
            "like a kept picture of the other class",
        ),
    ],
)
def test_reasons_are_grouped_by_kind(reason, kind):
    assert classify(reason) == kind


@pytest.mark.parametrize(
    ("reason", "other"),
    [
        ("same bytes as a/b of c.png of photos", ("photos", "a/b of c.png")),
        ("near copy (9 of 256 bits differ) of x.png of old-photos", ("old-photos", "x.png")),
        ("its picture stands in split devtest already, as x.png of photos", ("photos", "x.png")),
        (
            "conflict: labelled ai here, but same bytes as x\ny.png of photos, labelled real",
            ("photos", "x\ny.png"),
        ),
        ("20 x 31 px; the shorter side must be at least 64 px", None),
    ],
)
def test_the_other_side_of_a_repetition_is_found(reason, other):
    assert other_side(reason) == other
