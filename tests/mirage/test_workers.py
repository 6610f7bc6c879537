"""Every way in which a file can take its worker down, with real processes and real deaths."""

import ctypes
import operator
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from mirage.errors import BuildError, MirageError
from mirage.workers import BATCH_JOBS, open_engine
from tests.mirage.calls import die_once, echo_slowly, refuse, sentence, slow_square

# operator.call(function, *arguments) and the deaths below can be imported by a worker at once.
DEATHS = {
    "the decoder crashed (exit code 7) twice": (os._exit, 7),
    "the decoder crashed (exit code -6) twice": (os.abort,),
    "the decoder crashed (exit code -9) twice": (signal.raise_signal, signal.SIGKILL),
    "the decoder crashed (exit code -11) twice": (ctypes.string_at, 0),
    "the decoder failed: ZeroDivisionError: integer modulo by zero": (operator.mod, 1, 0),
}


def children(parent: int) -> set[int]:
    """Living children of a process."""
    found = set()
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = re.sub(r"\(.*\)", "()", stat.read_text()).split()
        except OSError:
            continue
        if fields[3] == str(parent) and fields[2] != "Z":
            found.add(int(fields[0]))
    return found


@pytest.mark.parametrize("workers", [0, 1, 3])
def test_results_come_in_the_order_of_the_jobs(workers):
    jobs = [(f"file {number}", None if number % 4 == 3 else (number,)) for number in range(20)]
    with open_engine("local", workers) as engine:
        results = list(engine.run(slow_square, jobs, sentence))
    assert results == [(f"file {number}", None if number % 4 == 3 else number**2) for number in range(20)]


def test_a_file_that_takes_its_worker_down_is_one_row():
    jobs: list[tuple[str, tuple]] = []
    for number, (reason, call) in enumerate(DEATHS.items()):
        jobs += [(reason, call), (str(number), (str, number))]
    with open_engine("local", 2) as engine:
        results = list(engine.run(operator.call, jobs, sentence))
    assert [token for token, _ in results] == [token for token, _ in jobs]
    assert all(token == result for token, result in results)


def test_a_death_that_does_not_come_again_costs_nothing(tmp_path):
    jobs = [(number, (str(tmp_path / f"{number % 4}"), number)) for number in range(12)]
    with open_engine("local", 2) as engine:
        results = list(engine.run(die_once, jobs, sentence))
    assert results == [(number, number) for number in range(12)]
    assert len(list(tmp_path.iterdir())) == 4


def test_what_hangs_is_given_up_and_the_others_go_on():
    stuck = (re.fullmatch, "(a+)+b", "a" * 40)  # holds the interpreter's lock for hours
    jobs = [("sleep", (time.sleep, 60)), (1, (abs, -1)), ("stuck", stuck), (2, (abs, -2)), (3, (abs, -3))]
    begun = time.monotonic()
    with open_engine("local", 2, timeout_s=0.6) as engine:
        results = dict(engine.run(operator.call, jobs, sentence))
    assert results == {
        "sleep": "decoding took longer than 0.6 s",
        "stuck": "decoding took longer than 0.6 s",
        1: 1,
        2: 2,
        3: 3,
    }
    assert time.monotonic() - begun < 20


def test_kills_from_outside_cost_nothing():
    """Busy and idle workers are killed again and again; every file arrives, in order."""
    load = [os.urandom(300_000) for _ in range(24)]
    before, kills, results = children(os.getpid()), 0, []
    with open_engine("local", 2) as engine:
        for number, result in engine.run(echo_slowly, ((n, (d,)) for n, d in enumerate(load)), sentence):
            results.append((number, result))
            if number % 6 == 0:
                for worker in children(os.getpid()) - before:
                    os.kill(worker, signal.SIGKILL)
                    kills += 1
        for worker in children(os.getpid()) - before:
            os.kill(worker, signal.SIGKILL)
        assert list(engine.run(operator.call, [(1, (abs, -1))], sentence)) == [(1, 1)]
    assert results == list(enumerate(load))
    assert kills >= 4


def test_workers_end_when_their_parent_is_killed(tmp_path):
    """The script has no main guard, which workers must not need."""
    script = tmp_path / "run.py"
    script.write_text(
        "import operator, time\n"
        "from mirage.workers import open_engine\n"
        "with open_engine('local', 2) as engine:\n"
        "    jobs = [(0, (time.time,)), (1, (time.sleep, 60)), (2, (time.sleep, 60))]\n"
        "    for token, _ in engine.run(operator.call, jobs * 9, str):\n"
        "        print(token, flush=True)\n",
        "utf-8",
    )
    environment = os.environ | {"PYTHONPATH": str(Path.cwd())}
    process = subprocess.Popen([sys.executable, str(script)], env=environment, stdout=subprocess.PIPE)
    assert process.stdout is not None
    with process.stdout as output:
        assert output.readline() == b"0\n"
        workers = children(process.pid)
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    assert len(workers) == 2
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline and any(Path(f"/proc/{worker}").exists() for worker in workers):
        time.sleep(0.02)
    assert not any(Path(f"/proc/{worker}").exists() for worker in workers)


@pytest.mark.parametrize("workers", [0, 2])
def test_jobs_are_read_only_a_little_ahead(workers):
    read = 0

    def jobs() -> Iterator[tuple[int, tuple]]:
        nonlocal read
        for number in range(1000):
            read = number + 1
            yield number, (abs, -number)

    with open_engine("local", workers) as engine:
        for number, _ in engine.run(operator.call, jobs(), sentence):
            assert read <= number + 1 + workers * (1 + 2 * BATCH_JOBS)
            if number == 50:
                break


def test_leaving_early_waits_for_nobody():
    begun = time.monotonic()
    with open_engine("local", 2) as engine:
        jobs = [(0, (abs, 0)), *[(1, (time.sleep, 60))] * 20]
        assert next(engine.run(operator.call, jobs, sentence)) == (0, 0)
    assert time.monotonic() - begun < 10


@pytest.mark.parametrize("workers", [0, 1])
def test_what_concerns_the_whole_run_is_raised(workers):
    with open_engine("local", workers) as engine:
        running = engine.run(operator.call, [(0, (abs, -1)), (1, (refuse,)), (2, (abs, -2))], sentence)
        assert next(running) == (0, 1)
        with pytest.raises(MirageError, match="the disk is gone"):
            next(running)


def test_a_worker_that_cannot_start_or_load_its_work_ends_the_run(tmp_path, monkeypatch):
    script = tmp_path / "gone.py"
    script.write_text("def work():\n    return 1\n", "utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    from gone import work

    with open_engine("local", 1) as engine:
        assert list(engine.run(work, [(0, ())], sentence)) == [(0, 1)]
    script.unlink()
    with open_engine("local", 1) as engine, pytest.raises(BuildError, match=r"cannot load its work: .*gone"):
        list(engine.run(work, [(0, ())], sentence))
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with open_engine("local", 1) as engine, pytest.raises(BuildError, match="exit code 1 before they begin"):
        list(engine.run(operator.call, [(0, (abs, 1))], sentence))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("remote",), "no engine 'remote'; choose from local, ray"),
        (("local", -1), "-1 workers are not possible"),
        (("local", 1, 60.0, "10.0.0.1:6379"), "cannot use the cluster '10.0.0.1:6379'"),
    ],
)
def test_an_impossible_engine_is_refused_in_one_sentence(arguments, message):
    with pytest.raises(BuildError, match=message), open_engine(*arguments):
        pass
