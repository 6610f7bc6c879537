"""Two real processes over gloo: the curve of one, and every scored picture counted once."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import yaml

from detector.evaluation.predictions import read_predictions
from tests.detector.training.runs import rows_of, run_apart, tiny_recipe, weights_of


def losses_of(run: Path) -> list[float]:
    return [row["loss"] for row in rows_of(run) if "loss" in row]


def scored(run: Path) -> dict[str, float]:
    predictions = read_predictions(run / "predictions-devtest.parquet")
    assert len({p["key"] for p in predictions}) == len(predictions)
    return {p["key"]: p["margin"] for p in predictions}


def test_two_processes_follow_the_curve_of_one(data, backbone, tmp_path):
    recipe = tiny_recipe(backbone, end_to_end=True, stages={"lr": 5e-4}, early_stop={"every": 3})
    for processes in (1, 2):
        assert run_apart(recipe, data, tmp_path / str(processes), processes=processes) == [0] * processes
    one, two = tmp_path / "1", tmp_path / "2"
    assert losses_of(two) == pytest.approx(losses_of(one), abs=1e-5)
    assert scored(one).keys() == scored(two).keys()
    assert list(scored(two).values()) == pytest.approx(list(scored(one).values()), abs=1e-3)
    reports = [json.loads((run / "report.json").read_text()) for run in (one, two)]
    assert [report["processes"] for report in reports] == [1, 2]
    assert reports[0]["devtest"]["clean"]["pictures"] == reports[1]["devtest"]["clean"]["pictures"]


@pytest.mark.slow
def test_all_phases_of_two_processes_follow_those_of_one(data, backbone, tmp_path):
    recipe = tiny_recipe(backbone, stages={"lr": 5e-4}, ema=0.9)
    for processes in (1, 2):
        assert run_apart(recipe, data, tmp_path / str(processes), processes=processes) == [0] * processes
    assert losses_of(tmp_path / "2") == pytest.approx(losses_of(tmp_path / "1"), abs=1e-5)


@pytest.mark.slow
def test_weights_split_over_processes_follow_the_same_curve(data, backbone, tmp_path):
    for strategy, processes in (("ddp", 1), ("fsdp", 2)):
        recipe = tiny_recipe(backbone, stages={"lr": 5e-4}, ema=0.9, strategy=strategy)
        assert run_apart(recipe, data, tmp_path / strategy, processes=processes) == [0] * processes
    assert losses_of(tmp_path / "fsdp") == pytest.approx(losses_of(tmp_path / "ddp"), abs=1e-5)
    split, whole = weights_of(tmp_path / "fsdp"), weights_of(tmp_path / "ddp")
    assert split.keys() == whole.keys()
    assert all(torch.allclose(value, whole[name], atol=2e-3) for name, value in split.items())


@pytest.mark.slow
def test_torchrun_starts_the_command(data, backbone, tmp_path):
    recipe = tiny_recipe(backbone, end_to_end=True)
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(recipe.model_dump(mode="json")))
    command = [
        *(sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"),
        *("-m", "service.cli", "train", str(tmp_path / "recipe.yaml")),
        *("--data", str(data), "--out", str(tmp_path / "run")),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=280)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [str(tmp_path / "run" / "checkpoint")]
    assert json.loads((tmp_path / "run" / "report.json").read_text())["processes"] == 2
