"""Files worked on in other processes: results in input order, a bounded number in flight, no file a crash."""

import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, wait
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from types import MappingProxyType
from typing import Any, Protocol, TypeVar

from mirage.errors import BuildError, MirageError
from mirage.ray_engine import open_ray
from mirage.worker_process import Args, Failure, WorkerProcess, attempt, in_second_attempt

BATCH_S = 0.1  # of work sent at a time, so that workers seldom wait for this process
BATCH_JOBS = 6
TIMEOUT_S = 60.0

Token = TypeVar("Token")
Result = TypeVar("Result")


class Engine(Protocol):
    """Something that runs one function over many files."""

    def run(
        self,
        function: Callable[..., Result],
        jobs: Iterable[tuple[Token, Args | None]],
        on_failure: Callable[[Args, str], Result],
    ) -> Generator[tuple[Token, Result | None]]:
        """Each job's token with its result, in the order of the jobs.

        Args:
            function: importable by its name; called with each job's arguments.
            jobs: pairs of a token, which comes back as it is, and the arguments of the call,
                or None where there is nothing to do: such a job's result is None. Only a bounded
                number is read ahead.
            on_failure: gives the result of a file that crashed the function, took too long or
                made it raise, from the call's arguments and one sentence.

        Raises:
            MirageError: the function raised it.
            BuildError: no worker process can be started.
        """
        ...


def open_engine(
    name: str, workers: int = 1, timeout_s: float = TIMEOUT_S, address: str | None = None
) -> AbstractContextManager[Engine]:
    """The engine of that name, ready to run inside a `with`.

    Args:
        name: a key of ENGINES.
        workers: processes, or CPUs of a cluster that is started for the run; with 0 the local
            engine runs everything in this process, unprotected.
        timeout_s: a file that takes longer is given up.
        address: of a running cluster; None works on this machine.

    Raises:
        BuildError: there is no engine of that name, or it cannot work like that.
    """
    if name not in ENGINES:
        raise BuildError(f"there is no engine {name!r}; choose from {', '.join(ENGINES)}")
    if workers < 0:
        raise BuildError(f"{workers} workers are not possible; choose 0 or more")
    return ENGINES[name](workers, timeout_s, address)


@contextmanager
def open_local(workers: int, timeout_s: float, address: str | None) -> Iterator[Engine]:
    """Worker processes of this machine, or none at all; see `open_engine`.

    Raises:
        BuildError: an address was given.
    """
    if address is not None:
        raise BuildError(f"the local engine cannot use the cluster {address!r}; choose the engine ray")
    if workers == 0:
        yield InProcess()
        return
    engine = LocalWorkers(workers, timeout_s)
    try:
        yield engine
    finally:
        engine.close()


class InProcess:
    """Runs everything in this process: for debugging, and for a handful of trusted files."""

    def run(
        self,
        function: Callable[..., Result],
        jobs: Iterable[tuple[Token, Args | None]],
        on_failure: Callable[[Args, str], Result],
    ) -> Generator[tuple[Token, Result | None]]:
        """See `Engine.run`; but a file that crashes or hangs takes this process with it."""
        for token, args in jobs:
            if args is None:
                yield token, None
                continue
            outcome = attempt(function, args)
            yield token, on_failure(args, outcome.sentence) if isinstance(outcome, Failure) else outcome


@dataclass(frozen=True)
class _Job:
    """One call on its way to a worker process, and where its outcome will be."""

    function: Callable[..., Any]
    args: Args
    future: Future[Any] = field(default_factory=Future)


class LocalWorkers:
    """Worker processes of this machine, each fed by a thread of its own."""

    def __init__(self, workers: int, timeout_s: float) -> None:
        self._workers = [WorkerProcess(timeout_s) for _ in range(workers)]
        self._queue: SimpleQueue[_Job | None] = SimpleQueue()
        self._batches = [1] * workers  # jobs that each worker gets at a time: few when they are slow
        self._closed = False
        self._threads = [
            threading.Thread(target=self._feed, args=(number,), daemon=True) for number in range(workers)
        ]
        for thread in self._threads:
            thread.start()

    def run(
        self,
        function: Callable[..., Result],
        jobs: Iterable[tuple[Token, Args | None]],
        on_failure: Callable[[Args, str], Result],
    ) -> Generator[tuple[Token, Result | None]]:
        """See `Engine.run`; a file whose process died is tried once more while nothing else runs."""
        waiting: deque[tuple[Token, _Job | None]] = deque()

        def finish() -> tuple[Token, Result | None]:
            token, job = waiting.popleft()
            if job is None:
                return token, None
            outcome = job.future.result()
            if isinstance(outcome, Failure) and outcome.died:
                wait([other.future for _, other in waiting if other is not None])
                outcome = in_second_attempt(self._submit(function, job.args).future.result())
            return token, on_failure(job.args, outcome.sentence) if isinstance(outcome, Failure) else outcome

        try:
            for token, args in jobs:
                waiting.append((token, None if args is None else self._submit(function, args)))
                if len(waiting) > len(self._workers) + 2 * sum(self._batches):
                    yield finish()
            while waiting:
                yield finish()
        finally:
            for _, job in waiting:
                if job is not None:
                    job.future.cancel()

    def close(self) -> None:
        """End every worker process at once."""
        self._closed = True
        for worker in self._workers:
            self._queue.put(None)
            worker.stop()
        for thread, worker in zip(self._threads, self._workers, strict=True):
            thread.join()
            worker.close()

    def _submit(self, function: Callable[..., Any], args: Args) -> _Job:
        job = _Job(function, args)
        self._queue.put(job)
        return job

    def _feed(self, number: int) -> None:
        """Hand jobs to one worker process until the engine is closed."""
        while (first := self._queue.get()) is not None and not self._closed:
            batch = [first, *self._more(self._batches[number])]
            batch = [job for job in batch if job.future.set_running_or_notify_cancel()]
            begun = time.monotonic()
            _work_off(batch, self._workers[number])
            job_s = (time.monotonic() - begun) / max(1, len(batch))
            self._batches[number] = min(max(1, int(BATCH_S / (job_s + 1e-9))), BATCH_JOBS)

    def _more(self, wanted: int) -> Iterator[_Job]:
        """Up to one job less than `wanted` of the queue, leaving the other workers their share."""
        share = self._queue.qsize() // len(self._workers)
        for _ in range(min(wanted - 1, share)):
            try:
                job = self._queue.get_nowait()
            except Empty:
                return
            if job is None:
                self._queue.put(None)
                return
            yield job


def _work_off(batch: Sequence[_Job], worker: WorkerProcess) -> None:
    """Give every job of the batch its outcome."""
    left = deque(batch)
    try:
        for outcome in worker.calls([(job.function, job.args) for job in batch]):
            future = left.popleft().future
            if isinstance(outcome, MirageError):
                future.set_exception(outcome)
            else:
                future.set_result(outcome)
    except Exception as error:  # whoever waits for the jobs has to hear of it
        for job in left:
            job.future.set_exception(error)


ENGINES: Mapping[str, Callable[[int, float, str | None], AbstractContextManager[Engine]]] = MappingProxyType(
    {"local": open_local, "ray": open_ray}
)
