"""Recipes for tiny runs, and runs in processes of their own."""

import json
import multiprocessing
import os
import signal
import socket
from collections.abc import Callable
from pathlib import Path

import torch

from detector.recipe import StageConfig, TrainRecipe
from detector.training.config import StreamedTraining
from detector.training.run import train_streamed
from detector.vit import ExpertConfig
from tests.detector.tiny import SIZE, tiny_config

PER_GROUP = {"real": 5, "ai": 3}


def tiny_recipe(
    backbone: Path,
    *,
    model: dict | None = None,
    stages: dict | None = None,
    end_to_end: bool = False,
    **streamed: object,
) -> TrainRecipe:
    """A recipe of few steps; `streamed` are fields of StreamedTraining."""
    experts = ExpertConfig(rank=2, blocks=(2, 3), dropout=0.1)
    config = tiny_config(backbone=str(backbone), **({"experts": experts, "image_px": SIZE} | (model or {})))
    stage = StageConfig(**({"batch": 8, "lr": 5e-3} | (stages or {})))
    settings = {"micro_batch": 4, "lanes": 2, "shuffle": 8, "checkpoint_every": 2}
    settings["stages"] = "end-to-end" if end_to_end else "two-stage"
    return TrainRecipe(
        version="0",
        threads=1,
        model=config,
        preprocessing={"size_px": SIZE},
        experts=stage,
        router=stage,
        tiers=("clean",),
        mode="streamed",
        streamed=StreamedTraining(**(settings | streamed)),
    )


def rows_of(run: Path) -> list[dict]:
    """The run's metrics."""
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def weights_of(run: Path) -> dict[str, torch.Tensor]:
    """The run's finished weights."""
    from safetensors.torch import load_file

    return load_file(run / "checkpoint" / "model.safetensors")


def silent(name: str, done: int, total: int) -> None:
    """No progress shown."""


class KillAt:
    """Sends this process SIGKILL in the middle of a run."""

    def __init__(self, call: int) -> None:
        self.left = call

    def __call__(self, name: str, done: int, total: int) -> None:
        self.left -= 1
        if not self.left:
            os.kill(os.getpid(), signal.SIGKILL)


def run_apart(
    recipe: TrainRecipe, data: Path, run: Path, progress: Callable = silent, processes: int = 1
) -> list[int]:
    """Exit codes of the run's processes, each a fork of this one."""
    context = multiprocessing.get_context("fork")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    started = [
        context.Process(target=_child, args=(recipe, data, run, progress, rank, processes, port))
        for rank in range(processes)
    ]
    for process in started:
        process.start()
    for process in started:
        process.join()
    return [process.exitcode for process in started]


def _child(recipe, data, run, progress, rank: int, processes: int, port: int) -> None:
    if processes > 1:
        os.environ |= {
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "WORLD_SIZE": str(processes),
            "LOCAL_WORLD_SIZE": str(processes),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
            "OMP_NUM_THREADS": "1",
        }
    torch.set_num_threads(1)
    train_streamed(recipe, data, run, progress)
