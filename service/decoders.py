"""Decoder processes: a picture that crashes or hangs its decoder costs one answer and nothing else."""

import queue
import threading
from collections.abc import Callable
from typing import Any, TypeVar

from mirage.errors import BuildError, MirageError
from mirage.worker_process import Failure, WorkerProcess, in_second_attempt

Result = TypeVar("Result")


class DecoderFailed(Exception):
    """The decoder died twice, took too long or broke on this picture; the message is one sentence."""


class Decoders:
    """A fixed number of worker processes, each replaced when it dies. Safe to share between threads."""

    def __init__(self, count: int, timeout_s: float) -> None:
        """Decoders that start with their first picture.

        Args:
            count: processes.
            timeout_s: a picture that takes longer costs its process the life.
        """
        self._workers = [WorkerProcess(timeout_s) for _ in range(count)]
        self._idle: queue.SimpleQueue[WorkerProcess] = queue.SimpleQueue()
        for worker in self._workers:
            self._idle.put(worker)

    def call(self, function: Callable[..., Result], *args: Any) -> Result:
        """What the function, importable by its name, gives in a decoder process.

        A process that died is not taken for the picture's fault before another one died as well.

        Raises:
            DecoderFailed: no value came of it.
            MirageError: the function raised it, or no process can be started.
        """
        worker = self._idle.get()
        try:
            outcome = _once(worker, function, args)
            if isinstance(outcome, Failure) and outcome.died:
                outcome = in_second_attempt(_once(worker, function, args))
        finally:
            self._idle.put(worker)
        if isinstance(outcome, Failure):
            raise DecoderFailed(outcome.sentence)
        if isinstance(outcome, MirageError):
            raise outcome
        value: Result = outcome
        return value

    def warm(self, function: Callable[..., Any], *args: Any) -> None:
        """Make every process start and load what the function needs, all at the same time."""
        threads = [
            threading.Thread(target=_warm, args=(worker, function, args), daemon=True)
            for worker in [self._idle.get() for _ in self._workers]
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for worker in self._workers:
            self._idle.put(worker)

    def close(self) -> None:
        """End every process at once; a running call ends as a failure."""
        for worker in self._workers:
            worker.stop()


def _once(worker: WorkerProcess, function: Callable[..., Any], args: tuple[Any, ...]) -> Any:
    [outcome] = worker.calls([(function, args)])
    return outcome


def _warm(worker: WorkerProcess, function: Callable[..., Any], args: tuple[Any, ...]) -> None:
    try:
        _once(worker, function, args)
    except BuildError:
        return  # the first picture will meet the same error, and its sender hears of it
