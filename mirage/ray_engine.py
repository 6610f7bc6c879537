"""The Ray engine: the same runs on a cluster, in windows of files through Ray Data.

Each Ray worker keeps a worker process of the local engine beside it, so a crash or a hang costs one
file here too and gives the same row. Ray repeats the tasks of workers and nodes that die.
"""

import logging
import os
import socket
import threading
from collections import Counter, deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, partial
from itertools import count
from typing import Any, Generic, TypeVar

from mirage.errors import BuildError, MirageError
from mirage.extras import need
from mirage.worker_process import Args, Failure, WorkerProcess, in_second_attempt

OBJECT_STORE_BYTES = 512 << 20  # of a cluster started here
OBJECT_STORE_SHARE = 4  # a window takes at most this fraction of a node's store, its results as much
WINDOW_BYTES = 128 << 20
WINDOW_FILES = 1024
FIRST_WINDOW_FILES = 64  # windows grow from here, so that a small source wastes little
WINDOWS = 2  # on their way at a time: one is filled while the other is worked on
FILES_PER_TASK = 8
TASKS_PER_CPU = 2
STARTS = 3  # of one file, before it is blamed for the deaths of its Ray workers
LOST = Failure(f"the decoder took down {STARTS} Ray workers", died=True)
CONNECT_S = 5.0
QUIET_LOGGERS = ("ray", "ray.data")

Token = TypeVar("Token")
Result = TypeVar("Result")


@contextmanager
def open_ray(workers: int, timeout_s: float, address: str | None) -> Iterator["RayWorkers"]:
    """A cluster ready to run; it is stopped afterwards when it was started here.

    Args:
        workers: CPUs of a cluster started here, at least 1; a running one is used whole.
        timeout_s: a file that takes longer is given up.
        address: of a running cluster; None starts one on this machine.

    Raises:
        BuildError: there is no cluster at the address, this process has joined another one, or
            `workers` is 0.
    """
    ray = need("ray", "scale")
    need("ray.data", "scale")
    if workers < 1:
        raise BuildError(f"the ray engine cannot work with {workers} workers; choose 1 or more")
    with _quietly(), _connected(ray, workers, address):
        yield RayWorkers(ray, timeout_s)


@contextmanager
def _quietly() -> Iterator[None]:
    """Ray reports to files and to nobody else."""
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"  # for the processes that Ray starts
    loggers = [logging.getLogger(name) for name in QUIET_LOGGERS]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


@contextmanager
def _connected(ray: Any, workers: int, address: str | None) -> Iterator[None]:
    if ray.is_initialized():
        joined = ray.get_runtime_context().gcs_address
        if address not in (None, joined):
            raise BuildError(f"this process has joined the Ray cluster {joined!r}; it cannot use {address!r}")
        yield
        return
    silent = {"log_to_driver": False, "logging_level": logging.CRITICAL}
    own = {
        "num_cpus": workers,
        "object_store_memory": OBJECT_STORE_BYTES,
        "include_dashboard": False,
    }
    if address is not None:
        _check_reachable(address)
    try:
        # "local" starts a cluster even where another one is running already.
        ray.init(address=address or "local", **silent, **({} if address else own))
    except (ConnectionError, RuntimeError) as error:
        raise BuildError(f"the Ray cluster {address or 'of this machine'} cannot be used: {error}") from error
    try:
        yield
    finally:
        ray.shutdown()


def _check_reachable(address: str) -> None:
    # Ray itself gives up on an address where nothing answers after five minutes.
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), CONNECT_S).close()
    except ValueError:
        raise BuildError(f"{address!r} is no address of a Ray cluster; write HOST:PORT") from None
    except OSError as error:
        raise BuildError(f"there is no Ray cluster at {address!r}: {error.strerror or error}") from error


@dataclass
class _Window(Generic[Token]):
    """Jobs that go to the cluster together; those without arguments only keep their place."""

    jobs: list[tuple[Token, Args | None]]
    rows: list[dict[str, Any]]  # number of the job, pickled arguments


class Starts:
    """Counts the starts of every file, since Ray repeats a task without an end; runs as a Ray actor."""

    def __init__(self) -> None:
        self._counts: Counter[tuple[int, int]] = Counter()

    def add(self, window: int, number: int) -> int:
        """How often the file was started, this time included."""
        self._counts[window, number] += 1
        return self._counts[window, number]

    def forget(self, window: int) -> None:
        """Drop a finished window's counts."""
        self._counts = Counter({key: count for key, count in self._counts.items() if key[0] != window})


class RayWorkers:
    """The workers of a Ray cluster."""

    def __init__(self, ray: Any, timeout_s: float) -> None:
        self._ray = ray
        self._timeout_s = timeout_s
        self._cpus = max(1, int(ray.cluster_resources().get("CPU", 1)))
        stores = [node["Resources"].get("object_store_memory", 0) for node in ray.nodes() if node["Alive"]]
        self._window_bytes = min(WINDOW_BYTES, int(min(stores)) // OBJECT_STORE_SHARE)
        self._serial = count()
        # Beside the driver, so that it lives exactly as long as the run.
        here = need("ray.util.scheduling_strategies", "scale").NodeAffinitySchedulingStrategy(
            ray.get_runtime_context().get_node_id(), soft=False
        )
        self._starts = ray.remote(num_cpus=0, scheduling_strategy=here)(Starts).remote()

    def run(
        self,
        function: Callable[..., Result],
        jobs: Iterable[tuple[Token, Args | None]],
        on_failure: Callable[[Args, str], Result],
    ) -> Generator[tuple[Token, Result | None]]:
        """See `mirage.workers.Engine.run`; jobs are read ahead by windows of up to 1024 files.

        Raises:
            BuildError: the cluster is gone.
        """
        stopped = threading.Event()
        waiting: deque[tuple[_Window[Token], Future[dict[int, bytes]]]] = deque()
        with ThreadPoolExecutor(1, "mirage-ray") as threads:
            try:
                for window in self._windows(jobs):
                    waiting.append((window, threads.submit(self._outcomes, function, window.rows, stopped)))
                    if len(waiting) == WINDOWS:
                        yield from self._finish(function, *waiting.popleft(), on_failure)
                while waiting:
                    yield from self._finish(function, *waiting.popleft(), on_failure)
            except self._ray.exceptions.RayError as error:
                raise BuildError(f"the Ray cluster failed: {error}") from error
            finally:
                stopped.set()

    def _windows(self, jobs: Iterable[tuple[Token, Args | None]]) -> Iterator[_Window[Token]]:
        window: _Window[Token] = _Window([], [])
        size_bytes, files = 0, FIRST_WINDOW_FILES
        for token, args in jobs:
            if args is not None:
                pickled = self._ray.cloudpickle.dumps(args)
                size_bytes += len(pickled)
                window.rows.append({"number": len(window.jobs), "args": pickled})
            window.jobs.append((token, args))
            if len(window.jobs) >= files or size_bytes >= self._window_bytes:
                yield window
                window, size_bytes, files = _Window([], []), 0, min(2 * files, WINDOW_FILES)
        if window.jobs:
            yield window

    def _finish(
        self,
        function: Callable[..., Result],
        window: _Window[Token],
        future: "Future[dict[int, bytes]]",
        on_failure: Callable[[Args, str], Result],
    ) -> Iterator[tuple[Token, Result | None]]:
        """The window's results; files whose process died are tried once more, one at a time."""
        outcomes = future.result()
        for number, (token, args) in enumerate(window.jobs):
            if args is None:
                yield token, None
                continue
            outcome = self._ray.cloudpickle.loads(outcomes.pop(number))
            if isinstance(outcome, Failure) and outcome.died:
                row = next(row for row in window.rows if row["number"] == number)
                again = self._outcomes(function, [row], threading.Event())[number]
                outcome = in_second_attempt(self._ray.cloudpickle.loads(again))
            if isinstance(outcome, MirageError):
                raise outcome
            yield token, on_failure(args, outcome.sentence) if isinstance(outcome, Failure) else outcome

    def _outcomes(
        self, function: Callable[..., Any], rows: list[dict[str, Any]], stopped: threading.Event
    ) -> dict[int, bytes]:
        """Pickled outcomes by the number of their job; not all of them when stopped."""
        if not rows or stopped.is_set():
            return {}
        window = next(self._serial)
        tasks = max(-(-len(rows) // FILES_PER_TASK), min(len(rows), TASKS_PER_CPU * self._cpus))
        work = partial(
            _work, function=function, timeout_s=self._timeout_s, window=window, starts=self._starts
        )
        dataset = self._ray.data.from_items(rows, override_num_blocks=tasks).map(work, num_cpus=1)
        # Ray reserves room for blocks of this size; by default one would fill a small object store.
        dataset.context.target_max_block_size = max(1, self._window_bytes // tasks)
        dataset.context.enable_progress_bars = False
        dataset.context.print_on_execution_start = False
        outcomes = {}
        for row in dataset.iter_rows():
            outcomes[row["number"]] = row["outcome"]
            if stopped.is_set():
                break
        self._starts.forget.remote(window)
        return outcomes


def _work(
    row: dict[str, Any], function: Callable[..., Any], timeout_s: float, window: int, starts: Any
) -> dict[str, Any]:
    """The outcome of one file, made on a node of the cluster."""
    ray = need("ray", "scale")
    try:
        if ray.get(starts.add.remote(window, row["number"])) > STARTS:
            outcome: Any = LOST
        else:
            (outcome,) = _neighbour(timeout_s).calls([(function, ray.cloudpickle.loads(row["args"]))])
    except MirageError as error:
        outcome = error
    return {"number": row["number"], "outcome": ray.cloudpickle.dumps(outcome)}


@cache
def _neighbour(timeout_s: float) -> WorkerProcess:
    """The process beside this Ray worker; it outlives a task, because starting one takes a second."""
    return WorkerProcess(timeout_s)
