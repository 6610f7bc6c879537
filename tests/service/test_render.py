"""The result card: escaped text, labelled bands, the right words."""

import re
from html.parser import HTMLParser

import pytest

from detector.card import Thresholds
from detector.report import ImageReport, ModelIdentity
from service import render

HOSTILE = '<img src=x onerror="alert(1)">&\'"'
THRESHOLDS = Thresholds(
    ai=0.8, real=0.3, false_positive_rate=0.05, false_negative_rate=0.02, how="on the calibration split"
)


def report(**changes: object) -> ImageReport:
    values: dict[str, object] = {
        "path": "cat.jpg",
        "sha256": "ab" * 32,
        "status": "ok",
        "verdict": "ai",
        "probability": 0.93,
        "calibrated": True,
        "threshold": 0.8,
        "threshold_real": 0.3,
        "gates": {"human": 0.2, "animal": 0.8, "artifact": 1.0},
        "view_probabilities": {"global": 0.9, "native": 0.96},
        "model": ModelIdentity(name="omniaid", version="1", sha256="cd" * 32),
        "width": 640,
        "height": 480,
        "format": "JPEG",
    }
    return ImageReport.model_validate(values | changes)


def result(**changes: object) -> str:
    return render.result(report(**changes), THRESHOLDS, "data:image/jpeg;base64,AA", 1234)


class Outline(HTMLParser):
    """Collects tags and attributes, and checks that every element is closed in order."""

    VOID = frozenset({"img", "br"})

    def __init__(self, html: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.feed(html)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


@pytest.mark.parametrize(
    "changes",
    [
        {"path": HOSTILE},
        {"format": HOSTILE},
        {"warnings": (HOSTILE,)},
        {"gates": {HOSTILE: 0.5}},
        {"view_probabilities": {HOSTILE: 0.5}},
        {"model": ModelIdentity(name=HOSTILE, version=HOSTILE, sha256="cd" * 32)},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_hostile_text_stays_text(changes):
    html = result(**changes)
    assert "onerror" in html, "the text itself is shown"
    outline = Outline(html)
    assert [attributes for tag, attributes in outline.tags if tag == "img"] == [
        {"class": "oa-preview", "src": "data:image/jpeg;base64,AA", "alt": "The picture that was judged"}
    ]
    assert not any(name.startswith("on") for _, attributes in outline.tags for name in attributes)


def test_refusal_escapes_and_reads_as_one_sentence():
    html = render.refusal(HOSTILE)
    assert "<img" not in html
    assert "<p>The file is empty (0 bytes).</p>" in render.refusal("the file is empty (0 bytes)")


@pytest.mark.parametrize(("verdict", "word"), list(render.WORDS.items()))
def test_the_verdict_is_said_in_words(verdict, word):
    html = result(verdict=verdict)
    assert f'data-verdict="{verdict}"' in html
    assert f'<h2 class="oa-verdict oa-{verdict}">{word}</h2>' in html


def test_explanations_quote_the_measured_error_rates():
    assert "5.0 % of real pictures" in render.explain(report(verdict="ai"), THRESHOLDS)
    assert "2.0 % of AI pictures" in render.explain(report(verdict="real"), THRESHOLDS)
    unsure = render.explain(report(verdict="uncertain", probability=0.5), THRESHOLDS)
    assert "5.0 % of real pictures" in unsure and "2.0 % of AI pictures" in unsure


def test_a_confident_score_without_a_verdict_is_not_explained_by_the_score():
    """A tiny picture is out of scope by its size, however sure the pixels look."""
    small = report(verdict="out_of_scope", probability=0.99, reasons=("Insufficient resolution: 64 px.",))
    assert "does not judge such pictures: Insufficient resolution: 64 px." in render.explain(
        small, THRESHOLDS
    )
    flipped = report(verdict="uncertain", probability=0.99, warnings=("a re-encoding changes the verdict",))
    assert "do not settle" not in render.explain(flipped, THRESHOLDS)
    assert "does not allow a reliable verdict" in render.explain(flipped, THRESHOLDS)


def test_an_uncalibrated_score_is_not_called_a_probability():
    assert "calibrated probability of AI" in result()
    assert "not calibrated" in result(calibrated=False)


@pytest.mark.parametrize(("real", "ai"), [(0.3, 0.8), (0.0, 1.0), (0.5, 0.5)])
def test_bands_fill_the_track_and_the_needle_stands_at_the_probability(real, ai):
    html = render.gauge(0.425, real, ai)
    widths = [float(w) for w in re.findall(r"oa-band[^>]*width:([\d.]+)%", html)]
    assert widths == pytest.approx([100 * real, 100 * (ai - real), 100 * (1 - ai)], abs=0.01)
    assert "left:42.50%" in html
    assert "Probability of AI 42.5 %" in html, "said to those who cannot see it"


def test_experts_are_sorted_and_the_always_on_one_comes_last():
    html = render.experts({"human": 0.1, "artifact": 1.0, "scene": 0.6, "animal": 0.3})
    assert re.findall(r'oa-name">(\w+)', html) == ["scene", "animal", "human", "artifact"]
    assert re.findall(r"width:([\d.]+)%", html) == ["60.00", "30.00", "10.00", "100.00"]


def test_bars_outside_the_range_do_not_leave_the_rail():
    assert re.findall(r"width:([\d.]+)%", render.bars("t", {"a": 1.7, "b": -0.2}, {})) == ["100.00", "0.00"]


@pytest.mark.parametrize(
    ("share", "text"),
    [(0.0, "0.0 %"), (1.0, "100.0 %"), (0.00004, "< 0.1 %"), (0.99996, "> 99.9 %"), (0.5, "50.0 %")],
)
def test_percentages_never_round_to_certainty(share, text):
    assert render.percent(share) == text


def test_the_download_is_the_report():
    import base64

    html = render.download(report())
    encoded = re.search(r"base64,([A-Za-z0-9+/=]+)", html)
    assert encoded
    assert ImageReport.model_validate_json(base64.b64decode(encoded.group(1))) == report()
