"""The Ray engine on a real cluster of two nodes, of which one is killed, against the local engine."""

import operator
import os
import re
import signal
import time
from collections import Counter
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from mirage.build import build
from mirage.errors import BuildError, MirageError
from mirage.manifest import read_manifest
from mirage.ray_engine import RayWorkers
from mirage.workers import open_engine
from tests.mirage.calls import die_once, die_with_parent, note_attempt, refuse, sentence
from tests.mirage.conftest import folder_source, snapshot

pytest.importorskip("ray")
pytestmark = pytest.mark.slow

STORE_BYTES = 150 << 20


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """A head that does no work, and two nodes with one CPU each."""
    from ray.cluster_utils import Cluster

    head = {"num_cpus": 0, "object_store_memory": STORE_BYTES, "include_dashboard": False}
    # A dead node is noticed after five checks; by default they are three seconds apart.
    head["_system_config"] = {"health_check_period_ms": 500}
    made = Cluster(initialize_head=True, head_node_args=head)
    for _ in range(2):
        made.add_node(num_cpus=1, object_store_memory=STORE_BYTES)
    made.wait_for_nodes()
    yield made
    made.shutdown()


@pytest.fixture(scope="module")
def engine(cluster: Any) -> Iterator[RayWorkers]:
    with open_engine("ray", timeout_s=5, address=cluster.address) as engine:
        yield engine


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"workers": 0}, "cannot work with 0 workers"),
        ({"address": "127.0.0.1:1"}, "no Ray cluster at '127.0.0.1:1': Connection refused"),
        ({"address": "somewhere"}, "'somewhere' is no address of a Ray cluster; write HOST:PORT"),
    ],
)
def test_an_impossible_cluster_is_refused_in_one_sentence(settings, message):
    """Stands first, because it needs a process that has joined no cluster."""
    with pytest.raises(BuildError, match=message), open_engine("ray", **settings):
        pass


def attempts(notes: Path) -> Counter[str]:
    """How often each file was begun, by the notes of `note_attempt`."""
    return Counter(note.name.split()[0] for note in notes.iterdir())


def worker_at_work(notes: Path) -> int:
    """The Ray worker that began on a file last, waited for until it has begun on some more."""
    begun = len(attempts(notes))
    while len(attempts(notes)) < begun + 4:
        time.sleep(0.005)
    newest = max(notes.iterdir(), key=lambda note: note.stat().st_mtime_ns)
    return int(newest.name.split()[2])


def node_of(worker: int, cluster: Any) -> Any:
    """The node that a Ray worker belongs to."""
    raylet = int(re.sub(r".*\)", "", Path(f"/proc/{worker}/stat").read_text()).split()[1])
    (node,) = (node for node in cluster.worker_nodes if node.all_processes["raylet"][0].process.pid == raylet)
    return node


def test_results_come_in_order_and_a_bad_file_is_one_row(engine, tmp_path):
    jobs = [(number, None if number % 10 == 9 else (abs, -number)) for number in range(60)]
    jobs[5] = (5, (os._exit, 3))
    jobs[6] = (6, (time.sleep, 60))
    jobs[7] = (7, (die_once, str(tmp_path / "died"), 7))
    jobs[8] = (8, (operator.mod, 1, 0))
    expected: list = [(number, None if number % 10 == 9 else number) for number in range(60)]
    expected[5] = (5, "the decoder crashed (exit code 3) twice")
    expected[6] = (6, "decoding took longer than 5 s")
    expected[8] = (8, "the decoder failed: ZeroDivisionError: integer modulo by zero")
    assert list(engine.run(operator.call, jobs, sentence)) == expected
    with open_engine("local", 2, timeout_s=5) as local:
        assert list(local.run(operator.call, jobs, sentence)) == expected


def test_a_file_that_takes_ray_workers_down_again_and_again_is_one_row(engine):
    jobs = [(0, (abs, 0)), (1, (die_with_parent,)), (2, (abs, -2))]
    results = list(engine.run(operator.call, jobs, sentence))
    assert results == [(0, 0), (1, "the decoder took down 3 Ray workers twice"), (2, 2)]


def test_a_killed_ray_worker_costs_nothing(engine, tmp_path):
    running = engine.run(note_attempt, ((n, (str(tmp_path), n)) for n in range(150)), sentence)
    results = [next(running)]
    os.kill(worker_at_work(tmp_path), signal.SIGKILL)
    results += running
    assert results == [(number, number) for number in range(150)]
    assert max(attempts(tmp_path).values()) > 1, "the worker must have been killed at work"


def test_a_killed_node_costs_nothing(cluster, engine, tmp_path):
    running = engine.run(note_attempt, ((n, (str(tmp_path), n)) for n in range(150)), sentence)
    results = [next(running)]
    cluster.remove_node(node_of(worker_at_work(tmp_path), cluster), allow_graceful=False)
    results += running
    cluster.add_node(num_cpus=1, object_store_memory=STORE_BYTES)
    assert results == [(number, number) for number in range(150)]
    assert max(attempts(tmp_path).values()) > 1, "the node must have been killed at work"


def test_what_concerns_the_whole_run_is_raised(engine):
    running = engine.run(operator.call, [(0, (abs, -1)), (1, (refuse,)), (2, (abs, -2))], sentence)
    assert next(running) == (0, 1)
    with pytest.raises(MirageError, match="the disk is gone"):
        next(running)


def test_a_build_with_a_node_killed_midway_is_the_local_one(cluster, engine, tmp_path, write_recipe):
    source = folder_source(tmp_path, 150, size=(160, 120))
    (tmp_path / "pictures" / "broken.png").write_bytes(b"no picture")
    recipe = write_recipe(source, shard_count=20)
    build(recipe, tmp_path / "local", workers=2)
    nodes = list(cluster.worker_nodes)
    done = count(1)

    def kill_a_node(*_progress: object) -> None:
        if next(done) == 20:
            cluster.remove_node(nodes.pop(), allow_graceful=False)

    build(recipe, tmp_path / "ray", engine="ray", on_progress=kill_a_node)
    assert len(nodes) == 1, "a node must have been killed while the build went on"
    assert snapshot(tmp_path / "ray") == snapshot(tmp_path / "local")
    assert list(read_manifest(tmp_path / "ray")) == list(read_manifest(tmp_path / "local"))


def test_another_cluster_than_the_joined_one_is_refused(engine):
    with (
        pytest.raises(BuildError, match="it cannot use"),
        open_engine("ray", address="127.0.0.1:1"),
    ):
        pass
