"""Measures against scikit-learn and against resampling done the slow way."""

import numpy as np
import pytest
from sklearn import metrics as sklearn_metrics

from detector.calibration import Calibration
from detector.evaluation.bootstrap import Plan, draw_weights, sample
from detector.evaluation.frame import Decision, Frame, build_frame
from detector.evaluation.measures import MEASURES, Weighted, measure_once, why_undefined
from detector.evaluation.predictions import name_columns

PLAN = Plan(rounds=40)


def make_frame(rows: int = 300, seed: int = 0, *, ties: bool = False, label: int | None = None) -> Frame:
    """Noisy scores of both classes from sources of their own."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 2, rows) if label is None else np.full(rows, label)
    margins = rng.normal(1.5 * labels, 1.5)
    columns = {
        "key": [str(row) for row in range(rows)],
        "source": [f"{'ra'[c]}{rng.integers(5)}" for c in labels],
        "generator": ["g"] * rows,
        "label": labels.tolist(),
        "margin": (np.round(margins) if ties else margins).tolist(),
    }
    return build_frame(name_columns(columns, "here"), Decision(Calibration(1.3, -0.4), 0.7, 0.3))


def reference(frame: Frame, weights: np.ndarray | None = None) -> dict[str, float]:
    """What scikit-learn says."""
    y, score, p = frame.label, frame.score, frame.probability
    of = {"sample_weight": weights}
    false_rate, true_rate, _ = sklearn_metrics.roc_curve(y, score, **of, drop_intermediate=False)
    guess, recall = p >= 0.5, {"average": None, "labels": [0, 1], "zero_division": np.nan}
    per_class = sklearn_metrics.recall_score(y, guess, **recall, **of)
    return {
        "auroc": sklearn_metrics.roc_auc_score(y, score, **of),
        "average_precision": sklearn_metrics.average_precision_score(y, score, **of),
        "tpr_at_1_percent_fpr": np.interp(0.01, false_rate, true_rate),
        "tpr_at_5_percent_fpr": np.interp(0.05, false_rate, true_rate),
        "accuracy_at_half": sklearn_metrics.accuracy_score(y, guess, **of),
        "balanced_accuracy_at_half": sklearn_metrics.balanced_accuracy_score(y, guess, **of),
        "right_real_at_half": per_class[0],
        "right_ai_at_half": per_class[1],
        "brier": sklearn_metrics.brier_score_loss(y, p, **of),
    }


@pytest.mark.parametrize("ties", [False, True])
def test_measures_agree_with_scikit_learn(ties):
    frame = make_frame(ties=ties)
    ours = measure_once(frame)
    for name, value in reference(frame).items():
        assert ours[name] == pytest.approx(value, abs=1e-12), name


@pytest.mark.parametrize("ties", [False, True])
def test_every_resample_is_what_scikit_learn_says_of_its_weights(ties):
    frame = make_frame(ties=ties)
    weights = np.concatenate(list(draw_weights(frame, PLAN)))
    draws = sample(frame, PLAN).draws
    assert weights.shape == (PLAN.rounds, len(frame))
    for row, drawn in enumerate(weights):
        for name, value in reference(frame, drawn).items():
            assert draws[name][row] == pytest.approx(value, abs=1e-9), name


def test_a_resample_is_the_drawn_sources_with_all_their_pictures():
    frame = make_frame()
    drawn = next(draw_weights(frame, PLAN))[7]
    index = np.repeat(np.arange(len(frame)), drawn.astype(int))
    resampled = measure_once(frame.take(index))
    for name, values in sample(frame, PLAN).draws.items():
        assert values[7] == pytest.approx(resampled[name], abs=1e-9), name
    for source in set(frame.source):
        assert len(set(drawn[frame.source == source])) == 1, "a source comes as a whole"
    for label in (0, 1):
        counts = {s: drawn[frame.source == s][0] for s in frame.sources(label)}
        assert sum(counts.values()) == len(counts)


def test_chunks_of_resamples_give_the_same_draws(monkeypatch):
    frame = make_frame(rows=50)
    whole = sample(frame, PLAN, ("auroc",)).draws["auroc"]
    monkeypatch.setattr("detector.evaluation.bootstrap.CHUNK_CELLS", 120)
    assert (sample(frame, PLAN, ("auroc",)).draws["auroc"] == whole).all()


def test_the_equal_error_rate_has_equal_errors():
    columns = {"key": list("abcdefgh"), "source": ["s"] * 8, "generator": ["g"] * 8}
    columns |= {"label": [0, 0, 0, 0, 1, 1, 1, 1], "margin": [0, 1, 2, 5, 3, 4, 6, 7]}
    frame = build_frame(name_columns(columns, "here"), Decision())
    assert measure_once_score(frame, "equal_error_rate") == pytest.approx(0.25)
    swapped = name_columns(columns | {"label": [1, 1, 1, 1, 0, 0, 0, 0]}, "here")
    assert measure_once_score(build_frame(swapped, Decision()), "equal_error_rate") == pytest.approx(0.75)
    same = name_columns(columns | {"margin": [1.0] * 8}, "here")
    assert measure_once_score(build_frame(same, Decision()), "equal_error_rate") == pytest.approx(0.5)


def measure_once_score(frame: Frame, name: str) -> float:
    return float(MEASURES[name].compute(Weighted(frame, np.ones((1, len(frame)))))[0])


def test_verdict_measures_count_verdicts():
    columns = {"key": list("abcdef"), "source": list("xxyyzz"), "generator": ["g"] * 6}
    columns |= {"label": ["real", "real", "real", "ai", "ai", "ai"], "margin": [-3, 0, 3, -3, 0, 3]}
    columns |= {"width": [500, 500, 500, 500, 500, 100], "height": [500] * 6}
    decision = Decision(Calibration(1.0, 0.0), 0.9, 0.1, min_side_px=128)
    values = measure_once(build_frame(name_columns(columns, "here"), decision))
    third, two_thirds = pytest.approx(1 / 3), pytest.approx(2 / 3)
    assert (values["flagged_real"], values["cleared_real"], values["decided_real"]) == (
        third,
        third,
        two_thirds,
    )
    # The one found by its probability is too small for a verdict.
    assert (values["flagged_ai"], values["cleared_ai"], values["decided"]) == (0, third, pytest.approx(0.5))
    assert values["right_when_decided"] == third


@pytest.mark.parametrize("name", MEASURES)
def test_what_cannot_be_measured_is_undefined_and_says_why(name):
    measure = MEASURES[name]
    for label, reason in ((0, "no AI pictures"), (1, "no real pictures")):
        lacks = measure.classes == "both" or measure.classes == ("ai", "real")[label]
        assert why_undefined(name, make_frame(label=label)) == (reason if lacks else "")
    bare = build_frame(
        name_columns(
            {
                "key": ["a", "b"],
                "source": ["s", "t"],
                "generator": ["g", "g"],
                "label": [0, 1],
                "margin": [0, 1],
            },
            "here",
        ),
        Decision(),
    )
    wanted = {
        "probability": "no calibrated probabilities",
        "verdict": "no thresholds, so no verdicts",
        "score": f"1 real pictures; fewer than {measure.least_real} cannot resolve this rate"
        if measure.least_real > 1
        else "",
    }
    assert why_undefined(name, bare) == wanted[measure.needs]


def test_an_interval_covers_the_truth_about_as_often_as_it_says():
    """Sources differ from one another: drawing pictures instead would cover far too rarely."""
    hits, rounds, plan = 0, 60, Plan(rounds=200)
    for seed in range(rounds):
        rng = np.random.default_rng(seed)
        sources = np.repeat(np.arange(24), 15)
        rates = np.where(np.arange(24) < 12, rng.beta(2, 6, 24), 0.5)
        flagged = rng.random(len(sources)) < rates[sources]
        columns = {"key": [str(i) for i in range(len(sources))], "source": [f"s{i}" for i in sources]}
        columns |= {"generator": ["g"] * len(sources), "label": (sources >= 12).astype(int).tolist()}
        columns |= {"probability": np.where(flagged, 0.9, 0.1).tolist()}
        frame = build_frame(name_columns(columns, "here"), Decision(ai=0.5, real=0.5))
        one = sample(frame, plan, ("flagged_real",)).estimate("flagged_real", plan)
        hits += one.low <= 0.25 <= one.high
    assert 0.8 <= hits / rounds <= 1.0


def test_a_single_source_has_no_interval_and_a_fixed_class_is_named():
    frame = make_frame()
    one_ai = frame.take(frame.of(0) | (frame.source == "a1"))
    sampled = sample(one_ai, PLAN)
    found = sampled.estimate("flagged_ai", PLAN)
    assert (found.low, found.no_interval) == (None, "the one AI source cannot be resampled")
    auroc = sampled.estimate("auroc", PLAN)
    assert (auroc.over, auroc.caveat) == ("5 real sources", "the one AI source stays as it is")
    assert auroc.low < auroc.value < auroc.high
    assert sample(frame, PLAN).estimate("auroc", PLAN).over == "5 real and 5 AI sources"


def test_seeds_decide_the_resamples():
    frame = make_frame()
    draws = [sample(frame, Plan(rounds=20, seed=seed), ("auroc",)).draws["auroc"] for seed in (0, 0, 1)]
    assert (draws[0] == draws[1]).all() and (draws[0] != draws[2]).any()


def test_a_rate_that_the_curve_reaches_exactly_takes_all_that_it_finds_there():
    """20 real pictures: one above the AI pictures is a false-alarm rate of exactly 5 %."""
    columns = {"key": [str(n) for n in range(24)], "source": ["s"] * 24, "generator": ["g"] * 24}
    columns |= {"label": [0] * 20 + [1] * 4, "margin": [9.0] + [0.0] * 19 + [3.0, 4.0, 5.0, -1.0]}
    frame = build_frame(name_columns(columns, "here"), Decision())
    assert measure_once_score(frame, "tpr_at_5_percent_fpr") == pytest.approx(0.75)
    assert measure_once_score(frame, "tpr_at_1_percent_fpr") == 0
