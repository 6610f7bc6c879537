"""The run's curves: one JSON line per step and scoring, and TensorBoard's files beside it."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from mirage.extras import need

METRICS, CURVES = "metrics.jsonl", "tensorboard"


class Journal:
    """Appends rows; a process that is not the main one writes nothing."""

    def __init__(self, folder: Path, *, writes: bool, tensorboard: bool) -> None:
        """Journal in `folder`, going on after the rows that are there."""
        self.path, self.writes = folder / METRICS, writes
        self._board: Any = None
        if writes and tensorboard:
            need("tensorboard")
            seen = len(self.path.read_text().splitlines()) if self.path.exists() else 0
            writer = need("torch.utils.tensorboard").SummaryWriter
            self._board = writer(str(folder / CURVES), purge_step=seen)
            self._count = seen

    def log(self, phase: str, step: int, values: Mapping[str, Any]) -> None:
        """Append one row."""
        if not self.writes:
            return
        with self.path.open("a") as file:
            file.write(json.dumps({"phase": phase, "step": step, **values}) + "\n")
        if self._board is not None:
            for name, value in values.items():
                if isinstance(value, float):
                    self._board.add_scalar(f"{phase}/{name}", value, self._count)
            self._count += 1

    def close(self) -> None:
        """Write out what TensorBoard holds back."""
        if self._board is not None:
            self._board.close()


def trim(folder: Path, finished: list[str], phase: str, step: int) -> None:
    """Drop the rows after a saved state: those steps are run, and logged, again.

    Args:
        folder: of the run.
        finished: phases that are done.
        phase: the one that is not.
        step: its first step that is run again.
    """
    path = folder / METRICS
    rows = list(_whole_rows(path)) if path.exists() else []
    kept = [row for row in rows if row["phase"] in finished or (row["phase"] == phase and row["step"] < step)]
    partial = path.with_name(f"{METRICS}.partial")
    partial.write_text("".join(json.dumps(row) + "\n" for row in kept))
    partial.replace(path)


def _whole_rows(path: Path) -> Iterator[dict[str, Any]]:
    """The rows up to one that a kill cut short."""
    for line in path.read_text().splitlines():
        try:
            yield json.loads(line)
        except ValueError:
            return
