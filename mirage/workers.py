"""Files prepared in worker processes, results in input order, with a bounded number in flight."""

import multiprocessing
import os
import threading
from collections import deque
from collections.abc import Generator, Iterator, Set
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from typing import NamedTuple

from mirage.errors import BuildError
from mirage.prepare import Preparation, Prepared, prepare
from mirage.sources import Candidate

IN_FLIGHT_PER_WORKER = 3


class Pool(NamedTuple):
    """Worker processes, and how many files they may hold together."""

    executor: ProcessPoolExecutor
    in_flight: int


@contextmanager
def worker_pool(workers: int) -> Iterator[Pool | None]:
    """A pool of processes, or None for one worker: then everything runs in this process."""
    if workers <= 1:
        yield None
        return
    # Spawned, because forking a process that runs threads can deadlock the child.
    executor = ProcessPoolExecutor(workers, multiprocessing.get_context("spawn"), _end_with_parent)
    try:
        yield Pool(executor, IN_FLIGHT_PER_WORKER * workers)
    finally:
        executor.shutdown(wait=False, cancel_futures=True)


def _end_with_parent() -> None:
    """Make this worker end when its parent is killed: the pool's pipes alone would keep it waiting."""
    threading.Thread(target=_exit_after_parent, daemon=True).start()


def _exit_after_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def prepare_all(
    candidates: Iterator[Candidate],
    plan: Preparation,
    finished: Set[str],
    pool: Pool | None,
) -> Generator[tuple[str, Prepared | None]]:
    """Each candidate's path with its prepared file, in order; None for paths that are finished already.

    Raises:
        BuildError: a worker process died.
    """
    if pool is None:
        for candidate in candidates:
            yield candidate.path, None if candidate.path in finished else prepare(candidate, plan)
        return
    waiting: deque[tuple[str, Future[Prepared] | None]] = deque()
    try:
        for candidate in candidates:
            job = None if candidate.path in finished else pool.executor.submit(prepare, candidate, plan)
            waiting.append((candidate.path, job))
            if len(waiting) > pool.in_flight:
                yield _result(*waiting.popleft())
        while waiting:
            yield _result(*waiting.popleft())
    finally:
        for _, job in waiting:
            if job is not None:
                job.cancel()


def _result(path: str, job: "Future[Prepared] | None") -> tuple[str, Prepared | None]:
    try:
        return path, None if job is None else job.result()
    except BrokenProcessPool as error:
        raise BuildError(
            f"a worker process died near {path}; finished shards are kept, so run again"
        ) from error
