import subprocess
from pathlib import Path

import pytest
from markdown_it import MarkdownIt
from PIL import Image

from mirage.bias.audit import Audit, AuditSettings, Leak, SourceAudit, SplitAudit
from mirage.cards.card import MARK, compose, size_category, write_card
from mirage.cards.counts import Counts, count
from mirage.cards.plots import PLOTS
from mirage.cards.thumbnails import COLUMNS, GAP_PX, TILE_PX, Selection
from mirage.errors import BuildError
from tests.mirage.written_set import WrittenSet, write_small


@pytest.fixture(scope="module")
def small(tmp_path_factory) -> Path:
    folder = write_small(tmp_path_factory.mktemp("sets") / "small")
    write_card(folder, workers=0)
    return folder


@pytest.fixture(scope="module")
def text(small) -> str:
    return (small / "README.md").read_text("utf-8")


def section(text: str, title: str) -> str:
    return text.partition(f"\n## {title}\n")[2].partition("\n## ")[0]


def cells(markdown: str) -> list[list[str]]:
    """The cells of all tables in Markdown, as a reader sees them."""
    rows: list[list[str]] = []
    inside = False
    for token in MarkdownIt("commonmark").enable("table").parse(markdown):
        if token.type in ("tr_open", "tr_close"):
            inside = token.type == "tr_open"
            rows += [[]] if inside else []
        elif token.type == "inline" and inside:
            rows[-1].append("".join(child.content for child in token.children))
    return rows


def composed(folder: Path) -> str:
    """The card's text without plots and pictures, which take longer to make."""
    return compose(folder, count(folder), (), {})


def test_the_header_is_what_the_hub_reads(text):
    hub = pytest.importorskip("huggingface_hub")
    card = hub.DatasetCard(text)
    assert isinstance(card.data, hub.DatasetCardData)
    assert card.data.pretty_name == "drawn"
    assert card.data.license == "other"
    assert card.data.task_categories == ["image-classification"]
    assert card.data.size_categories == ["n<1K"]
    assert card.data.annotations_creators == ["found"]
    assert card.data.configs == [
        {
            "config_name": "default",
            "data_files": [
                {"split": "train", "path": "train-*.tar"},
                {"split": "devtest", "path": "devtest-*.tar"},
            ],
        }
    ]


def test_the_datasets_library_loads_the_shards_by_the_header(small, tmp_path, monkeypatch):
    """Shards hold several picture formats, which it refuses unless the header names them."""
    pytest.importorskip("datasets")
    monkeypatch.setattr("datasets.config.HF_DATASETS_OFFLINE", True)
    monkeypatch.setattr("datasets.config.HF_HUB_OFFLINE", True)
    from datasets import load_dataset

    loaded = load_dataset(str(small), cache_dir=str(tmp_path / "cache"))
    assert {split: len(rows) for split, rows in loaded.items()} == {"train": 12, "devtest": 2}
    row = next(row for row in loaded["train"] if row["jpg"])
    assert row["jpg"].size == (row["json"]["width"], row["json"]["height"])
    assert row["json"]["label"] == "real"


def test_the_card_says_how_to_make_the_same_set(small, text):
    told = section(text, "Rebuild it")
    assert "omniaid mirage build drawn.yaml --out DIR --mirrors CLONES" in told
    facts = dict(cells(told))
    assert facts["recipe"] == "drawn"
    assert facts["sha256 of the recipe"] == "ab" * 32
    assert facts["seed"] == "7"
    command = "export LC_ALL=C; sha256sum *.tar | sha256sum"
    summed = subprocess.run(["bash", "-c", command], cwd=small, capture_output=True, text=True, check=True)
    assert facts["sha256 over all shards"] == summed.stdout.split()[0]
    assert command.removeprefix("export ") in told


def test_tables_hold_the_counts(text):
    assert ["all", "7", "7", "14"] in cells(section(text, "Splits"))
    contents = cells(section(text, "Contents"))
    assert ["Painter 2", "Painter", "2023-05-01", "5", "0"] in contents
    assert ["scene", "0", "0", "1", "1"] in contents
    assert ["rejected", "too small", "2"] in cells(section(text, "Not kept"))
    assert "seen 19 = kept 14 + rejected 2 + duplicate 3" in text
    places = section(text, "Sources and licences")
    assert ["scans", "real", "o/s@aaaaaaaaaa", "CC0-1.0", "1"] in cells(places)
    assert f"(https://github.com/o/s/tree/{'a' * 40})" in places
    assert ["paintings", "AI", "folder", "none stated", "5"] in cells(places)


def test_splits_and_limits_are_told_from_the_numbers(text):
    assert "Generators that only devtest holds: Painter 3." in section(text, "Splits")
    assert "No source stands in two splits." in section(text, "Splits")
    limits = section(text, "Known limits")
    assert "In train there are no pictures of: AI animal, real human, real scene, AI scene." in limits
    assert "5 pictures come from sources that state no licence." in limits
    assert "The largest source of AI pictures is paintings, with 71% of them." in limits
    assert "Generators without a known release date: up-and-down." in limits


def test_what_the_recipe_says_of_splits_and_alignment_is_told(tmp_path):
    drawn = WrittenSet(tmp_path / "set")
    drawn.keep("train", "ai", "paintings", "Painter")
    drawn.keep("devtest", "ai", "paintings", "Painter")
    folder = drawn.write()
    splits = {
        "hold_out": ["Painter_3"],
        "released_after": "2024-06-01",
        "shares": {"train": 0.9, "devtest": 0.1},
    }
    align = {"splits": ["train"], "quality": [60, 95]}
    drawn.write_json("build.json", {"recipe": "r", "content": {"splits": splits, "align": align}})
    text = composed(folder)
    told = section(text, "Splits")
    assert "Held out whole for devtest: Painter\\_3." in told
    assert "released after 2024-06-01 go to devtest" in told
    assert "train 90%, devtest 10%" in told
    assert "Generators in both train and devtest: Painter." in told
    assert "Sources divided between splits: paintings." in told
    assert ["quality", "[60, 95]"] in cells(section(text, "Sizes and codecs"))


def test_images_of_the_card_are_there_and_described(small, text):
    tokens = MarkdownIt("commonmark").parse(text.partition(MARK)[2])
    images = [child for token in tokens for child in token.children or () if child.type == "image"]
    paths = {image.attrs["src"] for image in images}
    assert {f"card/{name}.png" for name in PLOTS} <= paths
    assert all((small / path).is_file() for path in paths)
    assert all(image.content for image in images)


def test_contact_sheets_show_every_split_and_class(small, text):
    for split, label, tiles in (("train", "real", 6), ("train", "ai", 6), ("devtest", "ai", 1)):
        sheet = Image.open(small / "card" / f"sheet-{split}-{label}.webp")
        assert sheet.width == min(tiles, COLUMNS) * (TILE_PX + GAP_PX) + GAP_PX
        assert f"card/sheet-{split}-{label}.webp" in section(text, "Contact sheets")
    assert len(list((small / "card" / "thumbnails").iterdir())) == 14


def test_without_pictures_no_pixel_of_a_source_is_passed_on(small, tmp_path):
    card = write_card(small, out=tmp_path / "public", pictures=False)
    names = {str(path.relative_to(tmp_path / "public")) for path in card.parent.rglob("*") if path.is_file()}
    assert names == {"README.md", "card/counts.json", *(f"card/{name}.png" for name in PLOTS)}
    assert "sheet" not in card.read_text("utf-8")
    assert Counts.model_validate_json((card.parent / "card" / "counts.json").read_text("utf-8")).kept == 14


def test_pictures_never_leave_the_data_set_s_folder(small, tmp_path):
    with pytest.raises(BuildError, match=r"pictures stay in .* because rights are mixed"):
        write_card(small, out=tmp_path / "public")
    assert not (tmp_path / "public").exists()


def test_the_same_set_gives_the_same_card_and_earlier_pictures_are_removed(small, tmp_path):
    folder = write_small(tmp_path / "small")
    (folder / ".card-new").mkdir()
    (folder / ".card-new" / "left.png").write_bytes(b"by a killed run")
    write_card(folder, workers=0)
    cards = [{path.name: path.read_bytes() for path in place.glob("card/*.*")} for place in (folder, small)]
    assert cards[0] == cards[1]
    write_card(folder, pictures=False)
    assert list(folder.rglob("*.webp")) == []
    assert not (folder / ".card-new").exists()


def test_nothing_but_an_earlier_card_is_overwritten(small, tmp_path):
    readme = tmp_path / "README.md"
    readme.write_text("# Mine\n")
    with pytest.raises(BuildError, match=r"README\.md is not a card written by this command"):
        write_card(small, out=tmp_path, pictures=False)
    assert readme.read_text() == "# Mine\n"
    (tmp_path / "other" / "card").mkdir(parents=True)
    (tmp_path / "other" / "card" / "mine.txt").write_text("mine")
    with pytest.raises(BuildError, match="holds other files than a card's"):
        write_card(small, out=tmp_path / "other", pictures=False)


def test_names_from_strangers_stay_text(tmp_path):
    hostile = [
        "a|b",
        "<img src=x onerror=alert(1)>",
        "[x](javascript:y)",
        "`*_~#",
        "two\nlines",
        "$x$ &amp; \\",
    ]
    drawn = WrittenSet(tmp_path / "set")
    for name in hostile:
        drawn.keep("train", "ai", "paintings", name, licence=name)
    text = composed(drawn.write())
    rendered = MarkdownIt("commonmark").enable("table").render(text.partition(MARK)[2])
    assert "<img src=x" not in rendered and "javascript:" not in rendered.replace("[x](javascript:y)", "")
    names = [row[0] for row in cells(section(text, "Contents")) if len(row) == 4]
    assert {" ".join(name.split()) for name in hostile} <= set(names)


AUDIT = Audit(
    splits={
        "train": SplitAudit(
            pictures={"real": 90, "ai": 80},
            sources={"real": 4, "ai": 5},
            judged_by="source",
            folds=4,
            auc=0.571,
            macro_auc=0.532,
            auc_range=(0.52, 0.58),
            auc_by_picture=0.71,
            leaks=(Leak(feature="quality", drop=0.1, auc=0.6), Leak(feature="exif", drop=0.0, auc=0.5)),
            easiest_sources=(SourceAudit(source="photos", label="real", pictures=9, right=0.83),),
        ),
        "devtest": SplitAudit(
            pictures={"real": 1, "ai": 1}, sources={"real": 1, "ai": 1}, judged_by="nothing", note="too few"
        ),
    },
    settings=AuditSettings(),
    versions={},
)


def test_the_audit_is_told_when_there_is_one(tmp_path):
    folder = write_small(tmp_path / "small")
    assert "No audit was recorded" in composed(folder)
    (folder / "audit.json").write_text(AUDIT.model_dump_json(), "utf-8")
    told = section(composed(folder), "Bias audit")
    assert ["train", "source", "quality, exif", "0.57", "0.53", "0.52 to 0.58", "0.71"] in cells(told)
    assert "devtest: too few" in told
    assert "In train easiest: photos (real, 0.83)." in told


def test_a_damaged_record_is_named(tmp_path):
    folder = write_small(tmp_path / "small")
    (folder / "audit.json").write_text("{", "utf-8")
    with pytest.raises(BuildError, match=r"audit\.json is not JSON"):
        composed(folder)


def test_an_undecodable_picture_costs_only_its_thumbnail(tmp_path):
    drawn = WrittenSet(tmp_path / "set")
    drawn.keep("train", "real", "photos", "camera")
    drawn.store(drawn.keep("train", "real", "photos", "camera"), b"\x89PNG broken")
    write_card(drawn.write(), workers=0)
    assert len(list((tmp_path / "set" / "card" / "thumbnails").iterdir())) == 1


def test_a_place_that_cannot_be_written_is_named(small, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(BuildError, match=r"file.*: Not a directory"):
        write_card(small, out=tmp_path / "file" / "card", pictures=False)


@pytest.mark.parametrize(
    ("pictures", "name"),
    [(0, "n<1K"), (999, "n<1K"), (1000, "1K<n<10K"), (17_245, "10K<n<100K"), (10**12, "n>1T")],
)
def test_sizes_have_the_hub_s_names(pictures, name):
    assert size_category(pictures) == name


def test_a_selection_is_even_and_keeps_its_choice():
    rows = [
        {"key": f"{group}-{number}"}
        for group, size in (("a", 50), ("b", 3), ("c", 50))
        for number in range(size)
    ]

    def select(most: int, rows: list[dict]) -> list[str]:
        selection = Selection(most)
        for row in rows:
            selection.add((row["key"][0],), row)
        return [row["key"] for row in selection.rows()]

    chosen = select(13, rows)
    assert sorted(key[0] for key in chosen) == ["a"] * 5 + ["b"] * 3 + ["c"] * 5
    assert select(13, rows[::-1]) == chosen, "the order of the rows does not matter"
    without_c = [row for row in rows if row["key"][0] != "c"]
    assert [key for key in chosen if key[0] == "a"] == [
        key for key in select(13, without_c) if key[0] == "a"
    ][:5]
    assert len(select(1000, rows)) == len(rows)
    letters = [{"key": f"{letter}-0"} for letter in "abcdefghijklmnopqrst"]
    assert sorted(select(5, letters)) != [row["key"] for row in letters[:5]], "no group is preferred"
