"""The page beside a dataset card in a real browser, opened from a file."""

from pathlib import Path

import pytest

from mirage.cards.card import write_card
from mirage.cards.counts import count
from mirage.cards.gallery import write_gallery
from mirage.manifest import read_manifest
from tests.mirage.written_set import WrittenSet, write_small

pytestmark = pytest.mark.browser

HOSTILE = "<img src=x onerror=alert(1)></script>${1+1}"

# The contrast of every text with the ground behind it, as WCAG computes it; disabled buttons are exempt.
CONTRASTS = """() => {
    const shine = (colour) => {
        const [r, g, b] = colour.match(/[\\d.]+/g).slice(0, 3).map((part) => {
            const value = part / 255;
            return value <= 0.03928 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4;
        });
        return 0.2126 * r + 0.7152 * g + 0.0722 * b;
    };
    const clear = (element) => getComputedStyle(element).backgroundColor === "rgba(0, 0, 0, 0)";
    const texts = "p, .caption, td, th, label, dt, a, select, input, button:not(:disabled)";
    return [...document.querySelectorAll(texts)].map((element) => {
        let ground = element;
        while (ground !== document.body && clear(ground)) ground = ground.parentElement;
        const colours = [getComputedStyle(element).color, getComputedStyle(ground).backgroundColor];
        const [dark, light] = colours.map(shine).sort((left, right) => left - right);
        return (light + 0.05) / (dark + 0.05);
    });
}"""


@pytest.fixture(scope="module")
def small(tmp_path_factory) -> Path:
    folder = write_small(tmp_path_factory.mktemp("sets") / "small")
    write_card(folder, workers=0)
    return folder


@pytest.fixture
def open_page(browser):
    """Opens a card's page; it must ask for nothing but files, and no script may fail."""
    contexts, requests, failures = [], [], []

    def open_(folder: Path, scheme: str = "light", width: int = 1200):
        context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
        contexts.append(context)
        page = context.new_page()
        page.on("request", lambda request: requests.append(request.url))
        page.on("requestfailed", lambda request: failures.append(request.url))
        page.on("pageerror", lambda error: failures.append(str(error)))
        page.on("console", lambda message: failures.append(message.text) if message.type == "error" else None)
        page.goto((folder / "card" / "index.html").as_uri())
        return page

    yield open_
    for context in contexts:
        context.close()
    assert failures == []
    assert requests and all(url.startswith("file://") for url in requests)


def tiles(page) -> list[str]:
    return page.locator("#grid .caption").all_inner_texts()


def test_thumbnails_are_shown_with_what_they_are(small, open_page):
    page = open_page(small)
    assert len(tiles(page)) == 14
    page.wait_for_function(
        "() => [...document.querySelectorAll('#grid img')].every((image) => image.naturalWidth > 0)"
    )
    assert page.locator("#grid img").first.get_attribute("loading") == "lazy"
    assert page.get_by_role("img", name="AI: Painter 3, scene").count() == 1
    plots = page.locator("figure img")
    assert plots.count() == 6
    page.locator("#counts").scroll_into_view_if_needed()
    assert all(plots.evaluate_all("images => images.map((image) => image.alt.length > 5)"))


def test_filters_narrow_down_together(small, open_page):
    page = open_page(small)
    page.get_by_label("label").first.select_option("ai (7)")
    assert len(tiles(page)) == 7
    page.get_by_label("split").first.select_option("devtest (2)")
    assert tiles(page) == ["Painter 3"]
    assert page.locator("#picture-pager [role=status]").inner_text() == "1 of 14, page 1 of 1"
    page.get_by_label("split").first.select_option("all")
    page.get_by_label("label").first.select_option("all")
    page.get_by_label("source").first.select_option("twins (2)")
    assert sorted(tiles(page)) == ["camera", "up-and-down"]
    page.locator("#picture-filters input").fill("no such path")
    assert tiles(page) == []


def test_everything_works_from_the_keyboard(small, open_page):
    page = open_page(small)
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to the pictures"
    page.locator("#grid button").first.focus()
    page.keyboard.press("Enter")
    dialog = page.get_by_role("dialog")
    first = dialog.locator("h2").inner_text()
    assert "sha256" in dialog.inner_text()
    page.keyboard.press("ArrowRight")
    assert dialog.locator("h2").inner_text() != first
    page.keyboard.press("ArrowLeft")
    assert dialog.locator("h2").inner_text() == first
    page.keyboard.press("Escape")
    assert not dialog.is_visible()
    assert page.evaluate("document.activeElement.closest('#grid') !== null"), "the focus returns"


def test_rejected_files_are_searched(small, open_page):
    page = open_page(small)
    rows = page.locator("#rejected-table tbody tr")
    assert rows.count() == 2
    page.locator("#rejected-filters input").fill("21 X 9")
    assert rows.all_inner_texts() == ["photos\tless.png\t21 x 9 px; the shorter side must be at least 64 px"]


def test_both_sides_of_a_conflict_are_shown(small, open_page):
    page = open_page(small)
    cells = page.locator("#repeated-table tbody tr").first.locator("td")
    assert cells.nth(0).inner_text() == "real scans: both.png"
    assert cells.nth(1).inner_text() == "AI paintings: 1.webp"
    assert cells.nth(2).locator("img").get_attribute("alt") == "AI: Painter 2, human"
    assert "same bytes as" in cells.nth(3).inner_text()


def test_more_pictures_are_turned_page_by_page(tmp_path, open_page):
    drawn = WrittenSet(tmp_path / "set")
    for number in range(130):
        drawn.keep("train", "real", "photos", f"camera {number:03}", prompt="x")
    folder = drawn.write(samples_per_shard=200)
    (folder / "card").mkdir()
    rows = list(read_manifest(folder))
    write_gallery(folder, folder / "card" / "index.html", count(folder), rows, {})
    page = open_page(folder)
    first = tiles(page)
    assert len(first) == 120
    pager = page.locator("#picture-pager")
    assert pager.get_by_role("button", name="Previous page").is_disabled()
    pager.get_by_role("button", name="Next page").click()
    assert len(tiles(page)) == 10 and not set(first) & set(tiles(page))
    assert pager.get_by_role("button", name="Next page").is_disabled()


def test_names_from_strangers_are_shown_as_text(tmp_path, open_page):
    drawn = WrittenSet(tmp_path / "set")
    drawn.keep("train", "ai", "paintings", HOSTILE, path=HOSTILE, prompt=HOSTILE)
    drawn.drop("rejected", "photos", HOSTILE, HOSTILE)
    folder = drawn.write()
    write_card(folder, workers=0)
    page = open_page(folder)
    page.on("dialog", lambda dialog: pytest.fail("a script from a name ran"))
    assert tiles(page) == [HOSTILE]
    page.locator("#grid button").click()
    assert page.get_by_role("dialog").locator("dd", has_text="onerror").count() == 3
    page.keyboard.press("Escape")
    assert HOSTILE in page.locator("#rejected-table").inner_text()
    assert page.locator("img[src=x]").count() == 0


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_fits_a_phone_in_both_colours(small, open_page, scheme):
    page = open_page(small, scheme, width=360)
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    light = page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert light == (scheme == "light")
    assert min(page.evaluate(CONTRASTS)) >= 4.5
