"""Probe, calibration, thresholds and tables, on data whose answers are known."""

import numpy as np
import pytest
import torch

from detector.calibration import Calibration, fit_calibration, set_thresholds
from detector.card import Thresholds
from detector.metrics import expected_calibration_error, summarise
from detector.model import Head
from detector.probe import balance_weights, fit_probe

RNG = np.random.default_rng(0)


def two_clouds(n: int, distance: float, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    labels = np.arange(n) % 2
    features = rng.standard_normal((n, 6)).astype(np.float32)
    features[:, 0] += distance * labels
    return features * 3 + 1, labels


def test_a_probe_separates_what_is_separable_and_becomes_a_head():
    features, labels = two_clouds(400, 4.0)
    probe = fit_probe(features, labels, np.ones(400), two_clouds(200, 4.0, seed=1))
    margins = probe.margins(features)
    assert ((margins > 0) == (labels == 1)).mean() > 0.95
    head = Head(6)
    probe.load_into(head)
    with torch.no_grad():
        logits = head(torch.from_numpy(features)).numpy()
    assert np.allclose(logits[:, 1] - logits[:, 0], margins, atol=1e-3)


def test_every_group_counts_alike_up_to_a_cap():
    weights = balance_weights(["a"] * 30 + ["b"] * 10)
    assert weights.mean() == pytest.approx(1)
    assert weights[:30].sum() == pytest.approx(weights[30:].sum())
    capped = balance_weights(["a"] * 1000 + ["b"])
    assert capped[-1] / capped[0] <= 4.0 / 0.5


def test_calibration_recovers_a_known_slope_and_offset():
    rng = np.random.default_rng(1)
    margins = rng.normal(0, 3, 20_000)
    labels = (rng.random(20_000) < 1 / (1 + np.exp(-(margins + 0.5) / 2))).astype(int)
    fitted = fit_calibration(margins, labels)
    assert fitted.temperature == pytest.approx(2, rel=0.1)
    assert expected_calibration_error(fitted.probability(margins), labels) < 0.06


def test_calibration_never_turns_a_ranking_around():
    margins = np.linspace(-1, 1, 100)
    fitted = fit_calibration(margins, (margins < 0).astype(int))
    assert (np.diff(fitted.probability(margins)) >= 0).all()


@pytest.mark.parametrize("rate", [0.01, 0.05, 0.1])
def test_thresholds_hold_their_rates(rate):
    rng = np.random.default_rng(2)
    labels = np.arange(2000) % 2
    p = 1 / (1 + np.exp(-rng.normal(1.2 * (2 * labels - 1), 1)))
    thresholds = set_thresholds(p, labels, rate, rate)
    assert (p[labels == 0] >= thresholds.ai).mean() == thresholds.false_positive_rate <= rate
    assert (p[labels == 1] <= thresholds.real).mean() == thresholds.false_negative_rate <= rate
    assert thresholds.real <= thresholds.ai


def test_separated_classes_leave_nothing_uncertain():
    labels = np.arange(100) % 2
    thresholds = set_thresholds(np.where(labels, 0.9, 0.1), labels, 0.05, 0.05)
    assert 0.1 < thresholds.real == thresholds.ai < 0.9


def prediction(label: int, margin: float, source: str, tier: str = "clean", error: str | None = None) -> dict:
    fields = {"key": source, "source": source, "generator": source, "domain": "scene", "label": label}
    return fields | {"tier": tier, "margin": margin, "probe_margin": -margin, "gates": [], "error": error}


def test_tables_count_what_is_there():
    predictions = [prediction(1, 2.0, "gen-a")] * 3 + [prediction(1, -2.0, "gen-a")]
    predictions += [prediction(0, -2.0, "camera")] * 9 + [prediction(0, 3.0, "camera")]
    predictions += [{**prediction(0, 0.0, "camera", error="truncated"), "margin": None}]
    thresholds = Thresholds(ai=0.6, real=0.4, false_positive_rate=0, false_negative_rate=0, how="by hand")
    table = summarise(predictions, Calibration(1.0, 0.0), thresholds)
    clean = table["tiers"]["clean"]
    assert table["unreadable"] == 1
    assert clean["pictures"] == {"real": 10, "ai": 4}
    assert clean["flagged_real"] == pytest.approx(0.1)
    assert clean["flagged_ai"] == pytest.approx(0.75)
    assert clean["decided"] == 1
    assert clean["right_when_decided"] == pytest.approx(12 / 14, abs=1e-4)
    assert clean["per_generator"]["gen-a"]["found"] == pytest.approx(0.75)
    assert clean["per_real_source"]["camera"] == {
        "pictures": 10,
        "flagged": 0.1,
        "cleared": 0.9,
        "mean_probability": pytest.approx(0.2026, abs=1e-3),
    }
    turned = summarise(predictions[:-1], Calibration(1.0, 0.0), thresholds, margin="probe_margin")
    assert turned["tiers"]["clean"]["auroc"] == pytest.approx(1 - clean["auroc"])


def test_calibration_error_of_a_perfect_and_of_a_boasting_forecast():
    labels = np.arange(1000) % 2
    assert expected_calibration_error(np.full(1000, 0.5), labels) == pytest.approx(0)
    assert expected_calibration_error(np.full(1000, 0.95), labels) == pytest.approx(0.45)
