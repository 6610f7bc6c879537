import base64
import hashlib
import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from mirage.cards import gallery
from mirage.cards.counts import count
from mirage.cards.gallery import write_gallery
from mirage.cards.plots import Plot
from mirage.manifest import read_manifest
from tests.mirage.written_set import WrittenSet, write_small

VOID = {"meta", "img", "input", "br", "link", "hr"}
HOSTILE = "</script><script>alert(1)</script><!--"


class Outline(HTMLParser):
    """Checks that elements are closed in order, and gathers what the tests ask for."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.ids: list[str] = []
        self.references: list[str] = []
        self.addresses: list[str] = []
        self.texts: dict[str, list[str]] = {}
        self.metas: dict[str, str] = {}

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        facts = dict(attributes)
        assert len(facts) == len(attributes), f"{tag} has an attribute twice"
        self.ids += [facts["id"]] if "id" in facts else []
        self.references += [facts[name] for name in ("aria-labelledby", "for") if name in facts]
        self.references += [facts["href"][1:]] if facts.get("href", "").startswith("#") else []
        self.addresses += [facts[name] for name in ("src", "href") if name in facts]
        if tag == "meta" and "http-equiv" in facts:
            self.metas[facts["http-equiv"]] = facts["content"]
        assert tag != "img" or "alt" in facts
        if tag not in VOID:
            self.open.append(tag)
            self.texts.setdefault(tag, []).append("")

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open:
            self.texts[self.open[-1]][-1] += data


def write(folder: Path, plots: tuple[Plot, ...] = ()) -> str:
    rows = [row for row in read_manifest(folder) if row["status"] == "kept"]
    thumbnails = {row["key"]: f"{row['key']}.webp" for row in rows}
    write_gallery(folder, folder / "index.html", count(folder), rows, thumbnails, plots)
    return (folder / "index.html").read_text("utf-8")


def outline(page: str) -> Outline:
    parsed = Outline()
    parsed.feed(page)
    parsed.close()
    return parsed


def data_of(page: str) -> dict[str, list[dict]]:
    data = json.loads(outline(page).texts["script"][0])
    return {
        name: [dict(zip(part["columns"], row, strict=True)) for row in part["rows"]]
        for name, part in data.items()
    }


@pytest.fixture(scope="module")
def page(tmp_path_factory) -> str:
    return write(write_small(tmp_path_factory.mktemp("sets") / "small"))


def test_the_page_is_well_formed(page):
    found = outline(page)
    assert page.startswith('<!DOCTYPE html>\n<html lang="en">')
    assert found.open == []
    assert len(set(found.ids)) == len(found.ids)
    assert set(found.references) <= set(found.ids)
    assert len(found.texts["title"]) == len(found.texts["h1"]) == len(found.texts["main"]) == 1


def test_nothing_outside_its_folder_is_asked_for(tmp_path):
    folder = write_small(tmp_path / "small")
    page = write(folder, (Plot(folder / "card" / "splits.png", "Splits", "Bars."),))
    addresses = outline(page).addresses
    assert "splits.png" in addresses
    assert [address for address in addresses if not re.fullmatch(r"#[\w-]+|[\w-]+\.png", address)] == []
    assert "url(" not in page and "@import" not in page and "fetch(" not in page


def test_only_the_page_s_own_script_and_style_may_run(page):
    found = outline(page)
    policy = found.metas["Content-Security-Policy"]
    assert policy.startswith("default-src 'none';")
    for kind, content in (("script", found.texts["script"][1]), ("style", found.texts["style"][0])):
        digest = base64.b64encode(hashlib.sha256(content.encode("utf-8")).digest()).decode()
        assert f"{kind}-src 'sha256-{digest}'" in policy
    assert "unsafe" not in policy


def test_text_from_strangers_cannot_become_markup(tmp_path):
    drawn = WrittenSet(tmp_path / "set")
    drawn.keep("train", "ai", "paintings", HOSTILE, prompt=HOSTILE, path=HOSTILE, licence="&lt;\x00b\u2028")
    drawn.drop("rejected", "photos", HOSTILE, HOSTILE)
    page = write(drawn.write())
    assert outline(page).open == []
    assert len(outline(page).texts["script"]) == 2
    data = data_of(page)
    assert data["pictures"][0]["prompt"] == data["rejected"][0]["path"] == HOSTILE
    assert data["pictures"][0]["licence"] == "&lt;\x00b\u2028"
    assert HOSTILE in outline(page).texts["td"], "the generator stands in the counts, as text"
    assert "\x00" not in page
    block = page.partition('id="data">')[2].partition("</script>\n<script>")[0]
    assert not set("<>&") & set(block)


def test_every_file_that_was_not_kept_is_listed(page):
    data = data_of(page)
    assert [(row["path"], row["kind"]) for row in data["rejected"]] == [
        ("tiny.png", "too small"),
        ("less.png", "too small"),
    ]
    conflict, *others = data["repeated"]
    assert conflict["path"] == "both.png", "pictures of two classes come first"
    assert (conflict["label"], conflict["other_label"]) == ("real", "ai")
    assert (conflict["other_source"], conflict["other_path"]) == ("paintings", "1.webp")
    assert [(row["other_source"], row["other_path"]) for row in others] == [
        ("photos", "0.png"),
        ("photos", "2.png"),
    ]


def test_counts_can_be_read_without_a_script(page):
    found = outline(page)
    assert "seen 19 = kept 14 + rejected 2 + duplicate 3" in found.texts["p"]
    assert "Pictures by split" in found.texts["caption"]
    assert "Painter 2" in found.texts["td"]


def test_long_lists_are_cut_and_the_page_says_so(tmp_path, monkeypatch):
    monkeypatch.setattr(gallery, "MOST_ROWS", 1)
    page = write(write_small(tmp_path / "small"))
    assert "1 of 2 rejected files and pieces. The manifest has them all." in page
    assert len(data_of(page)["rejected"]) == len(data_of(page)["repeated"]) == 1
    assert data_of(page)["repeated"][0]["path"] == "both.png"


def test_a_page_without_pictures_says_so(tmp_path):
    folder = write_small(tmp_path / "small")
    write_gallery(folder, folder / "index.html", count(folder), [], {})
    assert "Pictures are left out of this page." in (folder / "index.html").read_text("utf-8")
