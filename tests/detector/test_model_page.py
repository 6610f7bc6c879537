"""The model's page: everything the card and the predictions hold, in Markdown with plots."""

import numpy as np
import pytest
import typer
from typer.testing import CliRunner

from detector.card import read_card
from detector.errors import DetectorError
from detector.evaluation.bootstrap import Plan
from detector.evaluation.predictions import DataInfo, describe_origin, write_predictions
from detector.evaluation.run import Settings
from detector.model_page.coverage import risk_by_coverage
from detector.model_page.page import Material, write_page
from detector.model_page_commands import register
from detector.runtime import default_model_path

CARD = read_card(default_model_path().with_suffix(".json"))


@pytest.fixture(scope="module")
def predictions(tmp_path_factory):
    rng, rows = np.random.default_rng(0), []
    for transform in ("clean", "hard"):
        for place in range(120):
            label = ("real", "ai")[place % 2]
            margin = float(rng.normal(2 if label == "ai" else -2, 2))
            rows.append(
                {
                    "key": str(place),
                    "source": f"{label}-{place % 6}",
                    "generator": "gen|a" if label == "ai" else "camera",
                }
                | {"label": label, "domain": "scene", "transform": transform, "margin": margin, "width": 300}
                | {"height": 200, "verdict": "", "error": ""}
            )
    path = tmp_path_factory.mktemp("page") / "predictions.parquet"
    write_predictions(rows, path, describe_origin(CARD, DataInfo(name="made", layout="", split="")))
    return path


def test_the_shipped_cards_page_has_every_section(tmp_path):
    text = write_page(CARD, Material(), tmp_path).read_text("utf-8")
    for title in ("The model", "Known failures", "Out of scope", "Compared with", "Tables", "Data"):
        assert f"\n## {title}\n" in text
    assert CARD.sha256 in text and all(limit.split(" ")[0] in text for limit in CARD.limits)
    for source in CARD.training["data"]["train"]["sources"]:
        assert source["source"].replace("_", "\\_") in text


def test_predictions_bring_intervals_and_plots(tmp_path, predictions):
    material = Material(predictions, settings=Settings(plan=Plan(rounds=20)))
    text = write_page(CARD, material, tmp_path).read_text("utf-8")
    assert "## Risk and coverage" in text and "gen\\|a" in text and "## By generator" in text
    plots = {path.name for path in (tmp_path / "plots").iterdir()}
    assert {"coverage.png", "reliability.png", "roc.png", "robustness.png"} <= plots
    for name in plots:
        assert f"](plots/{name})" in text


def test_risk_falls_where_sure_answers_are_right():
    probability, label = np.array([0.99, 0.01, 0.6, 0.4]), np.array([1, 0, 0, 1])
    kept, risk = risk_by_coverage(probability, label)
    assert kept.tolist() == [0.25, 0.5, 0.75, 1.0]
    assert risk.tolist() == pytest.approx([0, 0, 1 / 3, 0.5])


def test_classes_weigh_the_same_whatever_their_numbers():
    probability, label = np.r_[np.full(99, 0.1), 0.2], np.r_[np.zeros(99, int), 1]
    kept, risk = risk_by_coverage(probability, label)
    assert (kept[-1], risk[-1]) == pytest.approx((1.0, 0.5))


def test_the_command(tmp_path, predictions):
    app = typer.Typer(pretty_exceptions_enable=False)
    app.command("other")(lambda: None)
    register(app)
    model = str(default_model_path())
    done = CliRunner().invoke(app, ["card", model, "--out", str(tmp_path / "page")], catch_exceptions=False)
    assert done.output.strip() == str(tmp_path / "page" / "README.md")
    with pytest.raises(DetectorError, match="compared with --predictions"):
        arguments = ["card", model, "--out", str(tmp_path), "--baseline", f"x={predictions}"]
        CliRunner().invoke(app, arguments, catch_exceptions=False)
