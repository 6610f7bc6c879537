"""Jobs done in a process of its own, so that a crash or a hang costs one job and nothing else.

Every worker process has a socket to itself. A pool whose workers share a queue cannot promise as
much: a process that is killed while it holds the queue's lock takes all the others with it.
"""

import logging
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

from mirage.errors import BuildError, MirageError

STARTS = 5  # a start that something else spoiled is repeated; a broken installation fails every time
GRACE_S = 5.0
BEGUN = "begun"  # what a worker process says when it has its jobs
BUFFER_BYTES = 1 << 20  # pictures of some megabytes pass in half the time the default buffer takes
SERVE = "import sys; from mirage.worker_process import serve; serve(int(sys.argv[1]))"

Args = tuple[Any, ...]
Job = tuple[Callable[..., Any], Args]

log = logging.getLogger("mirage.workers")


@dataclass(frozen=True)
class Failure:
    """Why a call gave no result.

    Attributes:
        sentence: for the row of the file.
        died: whether the process or its memory gave out, which need not be the file's fault.
    """

    sentence: str
    died: bool = False


def attempt(function: Callable[..., Any], args: Args) -> Any:
    """The function's value, or a Failure when the function broke on these arguments.

    Raises:
        MirageError: the function raised it; it concerns the run and not one file.
    """
    try:
        return function(*args)
    except MirageError:
        raise
    except MemoryError:
        return Failure("the decoder ran out of memory", died=True)
    except Exception as error:
        log.warning("%s broke on one file", function.__name__, exc_info=True)
        return Failure(f"the decoder failed: {type(error).__name__}: {error}")


def in_second_attempt(outcome: Any) -> Any:
    """The outcome of a second attempt, which says so when it died like the first."""
    if isinstance(outcome, Failure) and outcome.died:
        return Failure(f"{outcome.sentence} twice", died=True)
    return outcome


class WorkerProcess:
    """A process that runs one job after another and is replaced when it dies or takes too long.

    It starts with the first job and ends with `close`, or when this process ends, however that
    happens. It does not run the caller's main module again, so scripts need no main guard.
    """

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._process: subprocess.Popen[bytes] | None = None
        self._connection: Connection | None = None
        self._starting = threading.Lock()
        self._stopped = False

    def calls(self, jobs: Sequence[Job]) -> Iterator[Any]:
        """What came of each job, in order: a value, a Failure, or the MirageError that the function raised.

        The jobs are sent in one message, so that the process need not wait for this one between
        two of them; a job that costs the process its life costs the jobs behind it nothing.

        Args:
            jobs: functions, importable by their names in another process, with their arguments.

        Raises:
            BuildError: no worker process can be started.
        """
        done = 0
        while done < len(jobs):
            for outcome in self._exchange(jobs[done:]):
                done += 1
                yield outcome

    def _exchange(self, jobs: Sequence[Job]) -> Iterator[Any]:
        """The outcomes, up to and with the first that cost the process its life."""
        connection, answer = self._hand_over(jobs)
        if connection is None or answer != BEGUN:
            yield answer
            return
        for _ in jobs:
            try:
                if not connection.poll(self._timeout_s):
                    self.close()
                    yield Failure(f"decoding took longer than {self._timeout_s:g} s")
                    return
                outcome = connection.recv()
            except (EOFError, OSError):
                yield Failure(f"the decoder crashed (exit code {self._bury()})", died=True)
                return
            yield outcome

    def _hand_over(self, jobs: Sequence[Job]) -> tuple[Connection | None, Any]:
        """The connection to a process that has the jobs, and its first answer; None when none took them.

        A process that ends before it has them died idle, for which no job is to blame: another one
        gets them.
        """
        failure = Failure("the decoder could not be started")
        for _ in range(STARTS):
            connection = self._connection or self._start()
            try:
                connection.send(list(jobs))
                return connection, connection.recv()
            except (EOFError, OSError):
                failure = Failure(f"the decoder crashed (exit code {self._bury()})", died=True)
        return None, failure

    def stop(self) -> None:
        """Kill the process for good, from any thread: a running job ends as a failure."""
        with self._starting:
            self._stopped = True
            process = self._process
        if process is not None:
            process.kill()

    def close(self) -> None:
        """End the process; no job may be running. The next job starts another one."""
        if self._process is not None:
            self._process.kill()
            self._bury()

    def _start(self) -> Connection:
        for _ in range(STARTS):
            with self._starting:
                if self._stopped:
                    raise BuildError("the worker process was stopped")
                self._connection = self._launch()
            try:
                self._connection.recv()
            except (EOFError, OSError):
                code = self._bury()
            else:
                return self._connection
        raise BuildError(f"worker processes end with exit code {code} before they begin")

    def _launch(self) -> Connection:
        ours, theirs = socket.socketpair()
        for end in (ours, theirs):
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, BUFFER_BYTES)
        with theirs:
            self._process = subprocess.Popen(
                # -P: files of the current folder must not stand in for modules of the same name.
                [sys.executable, "-P", "-c", SERVE, str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.PIPE,
                env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
            )
        return Connection(ours.detach())

    def _bury(self) -> int:
        """The exit code of the process that has died or is about to; everything it held is released."""
        process, connection = self._process, self._connection
        self._process = self._connection = None
        if process is None or connection is None or process.stdin is None:
            raise RuntimeError("there is no worker process to bury")
        connection.close()
        process.stdin.close()
        try:
            return process.wait(GRACE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            return process.wait()


def serve(descriptor: int) -> None:
    """Run the jobs that arrive on a socket until its other end is closed; the worker's main function."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the parent too, and it decides
    threading.Thread(target=_end_with_parent, daemon=True).start()
    with Connection(descriptor) as connection, suppress(EOFError, ConnectionError):
        connection.send("ready")
        while True:
            try:
                jobs = connection.recv()
            except (ImportError, AttributeError) as error:
                connection.send(BuildError(f"a worker process cannot load its work: {error}"))
                return
            connection.send(BEGUN)
            while jobs:
                connection.send(_outcome(*jobs.pop(0)))


def _end_with_parent() -> None:
    # Nothing is ever written to this pipe: reading ends when the parent has, also by a kill.
    os.read(sys.stdin.fileno(), 1)
    os._exit(1)


def _outcome(function: Callable[..., Any], args: Args) -> Any:
    try:
        return attempt(function, args)
    except MirageError as error:
        return error
