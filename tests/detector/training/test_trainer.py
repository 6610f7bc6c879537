"""Whole runs: phases in order, exact resume after a kill, early stop, and what is left behind."""

import json
import signal

import numpy as np
import pytest
import torch

from detector.checkpoint import load_checkpoint, read_checkpoint_card
from detector.errors import RecipeError
from detector.evaluation.predictions import read_predictions
from detector.model import DOMAINS
from detector.preprocess import Preprocessing, make_views
from detector.samples import PictureStore, list_samples
from detector.training.config import EarlyStop
from detector.training.run import train_streamed
from mirage.decode import decode
from tests.detector.tiny import SIZE
from tests.detector.training.runs import KillAt, rows_of, run_apart, silent, tiny_recipe, weights_of

EXPERTS = [*(f"expert-{name}" for name in DOMAINS), "expert-artifact"]


@pytest.fixture(scope="module")
def two_stage(data, backbone, tmp_path_factory):
    run = tmp_path_factory.mktemp("two-stage")
    assert train_streamed(tiny_recipe(backbone), data, run, silent) == run / "checkpoint"
    return run


def test_experts_are_trained_one_after_another_and_then_the_router(two_stage):
    rows = rows_of(two_stage)
    assert list(dict.fromkeys(row["phase"] for row in rows)) == [*EXPERTS, "router"]
    for phase in (*EXPERTS, "router"):
        steps = [row["step"] for row in rows if row["phase"] == phase]
        assert steps == list(range(rows[-1]["steps"] if phase == "router" else len(steps)))
    assert all(np.isfinite(row["loss"]) for row in rows)
    assert {"orthogonality", "decision", "lr"} <= rows[0].keys()
    assert {"gate", "balance"} <= rows[-1].keys()


def test_the_report_says_what_was_seen_and_how_well_it_went(two_stage):
    report = json.loads((two_stage / "report.json").read_text())
    assert report["unreadable"] == {"pictures": 0, "by_key": {}}
    shown = report["data"]["shown_per_epoch"]
    assert shown["expert-anime"].keys() == {"ai", "real"}
    assert {"anime/ai", "artifact/real"} <= shown["router"].keys()
    assert (
        report["devtest"]["clean"]["pictures"]
        == report["data"]["pictures"]["devtest"]["ai"] + (report["data"]["pictures"]["devtest"]["real"])
    )
    assert report["phases"]["router"]["steps"] == report["phases"]["router"]["planned"]


def test_the_checkpoint_gives_the_predictions(data, two_stage):
    model = load_checkpoint(two_stage / "checkpoint")
    card = read_checkpoint_card(two_stage / "checkpoint")
    assert Preprocessing(**card.facts["preprocessing"]).size_px == SIZE
    rows = {row.key: row for row in list_samples(data)}
    predictions = read_predictions(two_stage / "predictions-devtest.parquet")
    store = PictureStore(data, sorted({rows[p["key"]].shard for p in predictions}))
    assert len({p["key"] for p in predictions}) == len(predictions) > 40
    for prediction in predictions[:5]:
        image = decode(store.read(rows[prediction["key"]])).image
        with torch.no_grad():
            logits = model(torch.from_numpy(make_views(image, Preprocessing(size_px=SIZE)))).logits
        assert prediction["margin"] == pytest.approx(float((logits[:, 1] - logits[:, 0]).mean()), abs=1e-4)


def test_the_head_is_reset_for_every_phase(data, backbone, tmp_path):
    """A head that hardly moves ends as it began, although seven phases trained it."""
    from detector.model import build_model

    still = {"lr": 1e-12, "head_lr": 1e-12, "min_lr": 0}
    recipe = tiny_recipe(backbone, stages=still)
    train_streamed(recipe, data, tmp_path, silent)
    fresh = build_model(recipe.model, seed=recipe.seed).head.linear.weight
    assert torch.allclose(weights_of(tmp_path)["head.linear.weight"], fresh, atol=1e-8)


def test_a_killed_and_resumed_run_equals_an_uninterrupted_one_bit_for_bit(data, backbone, tmp_path):
    """SIGKILL between two saved states, with everything on that has a state of its own."""
    recipe = tiny_recipe(
        backbone,
        stages={"epochs": 2},
        checkpoint_every=3,
        ema=0.9,
        gradient_checkpointing=True,
        early_stop=EarlyStop(every=2, patience=2),
    )
    train_streamed(recipe, data, tmp_path / "whole", silent)
    steps = len([row for row in rows_of(tmp_path / "whole") if "loss" in row])
    for number, call in enumerate((2, steps - 2)):
        assert run_apart(recipe, data, tmp_path / "cut", KillAt(call)) == [-signal.SIGKILL], number
        assert not (tmp_path / "cut" / "checkpoint").exists()
    train_streamed(recipe, data, tmp_path / "cut", silent)
    logs = [(tmp_path / name / "metrics.jsonl").read_text() for name in ("whole", "cut")]
    assert logs[0] == logs[1]
    whole, cut = weights_of(tmp_path / "whole"), weights_of(tmp_path / "cut")
    assert all(torch.equal(value, cut[name]) for name, value in whole.items())


@pytest.fixture(scope="module")
def at_once(data, backbone, tmp_path_factory):
    run = tmp_path_factory.mktemp("end-to-end")
    train_streamed(tiny_recipe(backbone, end_to_end=True), data, run, silent)
    return run


def test_end_to_end_is_one_phase_with_every_part_of_the_loss(at_once):
    rows = rows_of(at_once)
    assert {row["phase"] for row in rows} == {"joint"}
    assert {"decision", "orthogonality", "balance", "gate"} <= rows[0].keys()


def test_workers_change_nothing(data, backbone, at_once, tmp_path):
    train_streamed(tiny_recipe(backbone, end_to_end=True, workers=2), data, tmp_path, silent)
    assert (tmp_path / "metrics.jsonl").read_text() == (at_once / "metrics.jsonl").read_text()


def test_early_stop_ends_a_phase_and_keeps_the_best_weights(data, backbone, tmp_path):
    recipe = tiny_recipe(
        backbone,
        end_to_end=True,
        stages={"epochs": 6, "lr": 1.0, "min_lr": 1.0},
        early_stop=EarlyStop(every=1, patience=2),
    )
    train_streamed(recipe, data, tmp_path, silent)
    report = json.loads((tmp_path / "report.json").read_text())
    result = report["phases"]["joint"]
    assert result["steps"] < result["planned"]
    scored = [row["auroc"] for row in rows_of(tmp_path) if "auroc" in row]
    assert len(scored) == result["steps"]
    assert result["auroc"] == max(scored) > max(scored[-2:]) - 1e-12
    assert report["devtest"]["clean"]["auroc"] == pytest.approx(max(scored), abs=1e-3)


def test_averaged_weights_lag_behind(data, backbone, at_once, tmp_path):
    train_streamed(tiny_recipe(backbone, end_to_end=True, ema=0.999), data, tmp_path, silent)
    assert (tmp_path / "metrics.jsonl").read_text() == (at_once / "metrics.jsonl").read_text()
    name = "router.network.0.weight"
    assert not torch.equal(weights_of(at_once)[name], weights_of(tmp_path)[name])


def test_bf16_computes_in_half_precision_and_keeps_float_weights(data, backbone, at_once, tmp_path):
    recipe = tiny_recipe(backbone, end_to_end=True, precision="bf16", tensorboard=True)
    train_streamed(recipe, data, tmp_path, silent)
    exact, half = ([row["loss"] for row in rows_of(run)] for run in (at_once, tmp_path))
    assert exact != half
    assert half == pytest.approx(exact, abs=0.1)
    assert {value.dtype for value in weights_of(tmp_path).values()} == {torch.float32}
    assert list((tmp_path / "tensorboard").glob("events.out.tfevents.*"))


def test_a_run_of_another_recipe_is_refused_and_one_with_other_workers_is_not(data, backbone, two_stage):
    recipe = tiny_recipe(backbone)
    with pytest.raises(RecipeError, match="belongs to another recipe or data set"):
        train_streamed(recipe.model_copy(update={"seed": 1}), data, two_stage, silent)
    again = tiny_recipe(backbone, workers=1)
    before = weights_of(two_stage)
    train_streamed(again, data, two_stage, silent)
    assert all(torch.equal(value, before[name]) for name, value in weights_of(two_stage).items())


@pytest.mark.parametrize(
    ("stages", "streamed", "message"),
    [
        (
            {"batch": 10},
            {},
            "experts.batch is 10; 1 processes with streamed.micro_batch 4 need a multiple of 4",
        ),
        (
            {},
            {"lanes": 3, "workers": 2},
            "streamed.lanes is 3; 1 processes with 2 workers need a multiple of 2",
        ),
        ({}, {"strategy": "fsdp"}, "streamed.strategy is fsdp; it needs at least 2 processes"),
        ({}, {"balance": {"weights": {"cars/ai": 2}}}, "weights names group 'cars/ai'"),
    ],
)
def test_what_cannot_be_is_said_in_one_sentence(data, backbone, tmp_path, stages, streamed, message):
    with pytest.raises(RecipeError, match=message):
        train_streamed(tiny_recipe(backbone, stages=stages, **streamed), data, tmp_path, silent)
