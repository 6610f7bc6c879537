"""The page of an evaluation in a real browser, opened from a file."""

from pathlib import Path

import numpy as np
import pytest

from detector.evaluation.bootstrap import Plan
from detector.evaluation.documents import write_report
from detector.evaluation.predictions import DataInfo, Origin, write_predictions
from detector.evaluation.run import Settings, evaluate_predictions
from detector.report import ModelIdentity

pytestmark = pytest.mark.browser

HOSTILE = "<img src=x onerror=alert(1)></script>"
ORIGIN = Origin(
    model=ModelIdentity(name="drawn", version="1", sha256="ab" * 32),
    experts=("human", "artifact"),
    views=("global", "native"),
    temperature=1.0,
    bias=0.0,
    threshold_ai=0.8,
    threshold_real=0.2,
    min_side_px=0,
    trained_on=("Painter 1",),
    data=DataInfo(name="drawn", layout="plain", split="test"),
)


@pytest.fixture(scope="module")
def written(tmp_path_factory) -> Path:
    """A report with every table, long and hostile names, errors, and a baseline."""
    folder, rng, rows = tmp_path_factory.mktemp("report"), np.random.default_rng(0), []
    for number in range(120):
        label = number % 2
        known = {"key": f"{number}.png", "source": f"source-{number % 6}", "label": ("real", "ai")[label]}
        known |= {"generator": ("camera", f"Painter {number % 3}", HOSTILE)[label + (number % 5 == 1)]}
        known |= {
            "domain": "scene",
            "family": "Painters" if label else "",
            "subset": f"part {number % 4 // 2}",
        }
        for transform, noise in (("clean", 1.0), ("jpeg-50", 1.5), ("jpeg-30", 2.0), ("web", 2.0)):
            margins = rng.normal(3.0 * label - 1.5, noise, 2)
            scores = {"margin": float(margins.mean()), "logits": [0.0, margins[0], 0.0, margins[1]]}
            broken = {"error": f"the picture is cut short {HOSTILE}"}
            rows.append(known | {"transform": transform} | (broken if number == 7 else scores))
    write_predictions(rows, folder / "predictions.parquet", ORIGIN)
    settings = Settings(plan=Plan(rounds=30), views=("native",))
    write_report(evaluate_predictions(folder / "predictions.parquet", settings), folder)
    return folder


@pytest.mark.parametrize(("scheme", "width"), [("light", 1200), ("dark", 420)])
def test_the_page_needs_nothing_and_shows_everything(browser, written, tmp_path, scheme, width):
    # Alone in another folder: whatever it shows must be inside it.
    page_file = tmp_path / "page.html"
    page_file.write_bytes((written / "report.html").read_bytes())
    context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
    page, requests, failures = context.new_page(), [], []
    page.on("request", lambda request: requests.append(request.url))
    page.on("requestfailed", lambda request: failures.append(request.url))
    page.on("pageerror", lambda error: failures.append(str(error)))
    page.on("console", lambda message: failures.append(message.text))
    page.on("dialog", lambda dialog: failures.append(dialog.message))
    page.goto(page_file.as_uri())
    titles = page.locator("h2").all_inner_texts()
    images = page.locator("img")
    loaded = [one.evaluate("one => one.complete && one.naturalWidth > 100") for one in images.all()]
    assert loaded == [True] * 6 and all(one.get_attribute("alt") for one in images.all())
    assert {"All pictures", "By generator", "Held-out generators", "By family of generators"} <= set(titles)
    assert {"Baselines", "Verdicts against clean", "What is missing", "How it was measured"} <= set(titles)
    assert page.get_by_text("4 of 480 rows could not be read").is_visible()
    assert page.get_by_text(HOSTILE).first.is_visible()
    folded = page.locator("details").first
    assert not folded.locator("table").is_visible()
    folded.locator("summary").click()
    assert folded.locator("table").is_visible()
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth"), "tables scroll alone"
    assert [url for url in requests if not url.startswith(("data:", page_file.as_uri()))] == []
    assert failures == []
    context.close()
