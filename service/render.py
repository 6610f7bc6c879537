"""A report as accessible HTML: pure functions from data to markup, every text escaped."""

import base64
from collections.abc import Sequence
from html import escape
from urllib.parse import quote

from detector.card import ARTIFACT, Thresholds
from detector.report import ImageReport, Verdict
from service.examples import Example

WORDS: dict[Verdict, str] = {
    "ai": "AI",
    "real": "Real",
    "uncertain": "Not sure",
    "out_of_scope": "Out of scope",
}
HASH = "SHA-256"
EMPTY = (
    '<div class="oa-card oa-empty"><p class="oa-empty-title">No picture yet</p>'
    "<p>Drop, choose or paste one, or press an example. It is judged on this server and not kept.</p></div>"
)
VIEW_NOTES = {"global": "whole picture, made small", "native": "centre, at full resolution"}


def percent(share: float) -> str:
    """`share` of 1 as a percentage that never rounds to certainty."""
    if 0 < share < 0.001:
        return "< 0.1 %"
    if 0.999 < share < 1:
        return "> 99.9 %"
    return f"{100 * share:.1f} %"


def explain(report: ImageReport, thresholds: Thresholds) -> str:
    """What the verdict means, in plain words (not HTML)."""
    flagged = f"about {percent(thresholds.false_positive_rate)} of real pictures are flagged as AI"
    passed = f"about {percent(thresholds.false_negative_rate)} of AI pictures pass as real"
    unsettled = thresholds.real < (report.probability or 0.0) < thresholds.ai
    if report.verdict == "out_of_scope":
        return "This model does not judge such pictures: " + " ".join(report.reasons)
    if report.verdict == "uncertain" and not unsettled:
        return (
            "This picture does not allow a reliable verdict, whatever the score; the reason is given below."
        )
    sentences: dict[Verdict, str] = {
        "ai": f"The pixels look AI-made. At this threshold {flagged}.",
        "real": f"The pixels look like those of a real picture. At this threshold {passed}.",
        "uncertain": "The pixels do not settle it, so there is no verdict. "
        f"At the threshold for AI {flagged}; at the one for real {passed}.",
    }
    return sentences[report.verdict or "uncertain"]


def gauge(probability: float, real: float, ai: float) -> str:
    """The probability of AI on a track of three labelled bands.

    Args:
        probability: of AI, 0 to 1.
        real: the band `Real` ends here.
        ai: the band `AI` begins here.
    """
    bands = (("real", 0.0, real), ("uncertain", real, ai), ("ai", ai, 1.0))
    label = (
        f"Probability of AI {percent(probability)}. Real up to {percent(real)}, "
        f"not sure up to {percent(ai)}, AI from there."
    )
    track = "".join(
        f'<span class="oa-band oa-{name}" style="width:{100 * (end - start):.2f}%"></span>'
        for name, start, end in bands
    )
    legend = "".join(
        f'<li><span class="oa-key oa-{name}"></span><b>{WORDS[name]}</b>'  # type: ignore[index]
        f"<span>{100 * start:.3g}–{100 * end:.3g} %</span></li>"
        for name, start, end in bands
    )
    return (
        f'<div class="oa-gauge"><div role="img" aria-label="{escape(label)}">'
        f'<div class="oa-track">{track}<span class="oa-needle" style="left:{100 * probability:.2f}%"></span>'
        f'</div></div><ul class="oa-legend">{legend}</ul></div>'
    )


def bars(title: str, weights: dict[str, float], notes: dict[str, str]) -> str:
    """Named weights (0 to 1) as a bar plot, in the order given.

    Args:
        title: of the plot.
        weights: name -> weight.
        notes: name -> a few words shown beside the name.
    """
    rows = "".join(_bar(name, weight, notes.get(name, "")) for name, weight in weights.items())
    return f'<section class="oa-bars"><h3>{escape(title)}</h3><ul>{rows}</ul></section>'


def _bar(name: str, weight: float, note: str) -> str:
    width = 100 * min(max(weight, 0.0), 1.0)
    hint = f" <small>{escape(note)}</small>" if note else ""
    return (
        f'<li><span class="oa-name">{escape(name)}{hint}</span>'
        f'<span class="oa-rail"><span class="oa-fill" style="width:{width:.2f}%"></span></span>'
        f'<span class="oa-value">{weight:.2f}</span></li>'
    )


def experts(gates: dict[str, float]) -> str:
    """The expert gates as bars, heaviest first; the always-on expert last."""
    order = sorted(gates, key=lambda name: (name == ARTIFACT, -gates[name]))
    return bars("Which expert judged", {name: gates[name] for name in order}, {ARTIFACT: "always on"})


def facts(report: ImageReport, size_bytes: int) -> str:
    """What is known about the file and the model, as a definition list."""
    model = report.model
    rows = {
        "File": report.path,
        "Format": report.format,
        "Size": f"{report.width} × {report.height} px, {size_bytes:,} bytes",
        HASH: report.sha256,
        "Model": f"{model.name} {model.version} ({model.sha256[:12]})" if model else None,
    }
    items = "".join(
        f"<dt>{name}</dt><dd{' class=oa-hash' if name == HASH else ''}>{escape(text)}</dd>"
        for name, text in rows.items()
        if text
    )
    return f'<section class="oa-facts"><h3>File facts</h3><dl>{items}</dl></section>'


def warnings(report: ImageReport) -> str:
    """The report's reasons and warnings as a list; empty when there are none."""
    if not (report.reasons or report.warnings):
        return ""
    items = "".join(f"<li>{escape(text)}</li>" for text in (*report.reasons, *report.warnings))
    return f'<ul class="oa-warnings" aria-label="Warnings">{items}</ul>'


def download(report: ImageReport) -> str:
    """A link that saves the report as JSON, without another request."""
    json_text = report.model_dump_json(indent=2)
    encoded = base64.b64encode(json_text.encode("utf-8")).decode("ascii")
    return (
        f'<p><a class="oa-download" download="omniaid-report.json" '
        f'href="data:application/json;base64,{encoded}">Download report (JSON)</a></p>'
        '<details class="oa-json"><summary>Show report</summary>'
        f'<pre tabindex="0">{escape(json_text)}</pre></details>'
    )


def result(report: ImageReport, thresholds: Thresholds, preview: str, size_bytes: int) -> str:
    """The whole result card of a picture that was scored.

    Args:
        report: with status `ok`.
        thresholds: of the model's card.
        preview: a `data:` address of the picture.
        size_bytes: of the file.
    """
    verdict = report.verdict or "uncertain"
    probability = report.probability or 0.0
    real = thresholds.real if report.threshold_real is None else report.threshold_real
    ai = thresholds.ai if report.threshold is None else report.threshold
    kind = "calibrated probability of AI" if report.calibrated else "score for AI, not calibrated"
    views = {f"{name} view": value for name, value in report.view_probabilities.items()}
    notes = {f"{name} view": note for name, note in VIEW_NOTES.items()}
    return (
        f'<article class="oa-card" data-verdict="{verdict}">'
        f'<div class="oa-top"><img class="oa-preview" src="{escape(preview)}" '
        f'alt="The picture that was judged">'
        f'<div class="oa-say"><h2 class="oa-verdict oa-{verdict}">{WORDS[verdict]}</h2>'
        f'<p class="oa-number"><b>{percent(probability)}</b> {kind}</p>'
        f'<p class="oa-explain">{escape(explain(report, thresholds))}</p></div></div>'
        f"{warnings(report)}{gauge(probability, real, ai)}"
        f'<div class="oa-plots">{experts(report.gates)}{bars("What each view says", views, notes)}</div>'
        f"{facts(report, size_bytes)}{download(report)}</article>"
    )


def gallery(examples: Sequence[Example]) -> str:
    """The example pictures as buttons that carry their position."""
    buttons = "".join(_example(index, example) for index, example in enumerate(examples))
    return (
        '<section class="oa-gallery" aria-label="Examples"><h2>Examples of known origin</h2>'
        f"<ul>{buttons}</ul></section>"
    )


def _example(index: int, example: Example) -> str:
    truth = f"<small>{escape(example.truth)}</small>" if example.truth else ""
    return (
        f'<li><button type="button" data-index="{index}">'
        f'<img src="examples/{quote(example.path.name)}" alt="" loading="lazy">'
        f"<span>{escape(example.caption)}{truth}</span></button></li>"
    )


def refusal(sentence: str, name: str = "") -> str:
    """The card for an input that cannot be scored: one sentence, no verdict."""
    return (
        '<article class="oa-card oa-refused" data-verdict="none"><h2>Cannot be judged</h2>'
        f'<p class="oa-file">{escape(name)}</p>'
        f"<p>{escape(sentence[:1].upper() + sentence[1:])}.</p></article>"
    )
