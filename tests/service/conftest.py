"""Real databases, a real queue and real servers for the tests of the service."""

import io
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import numpy as np
import pytest
from PIL import Image

ROOT = Path(__file__).resolve().parents[2]
LISTENING = re.compile(r"listens on (http://\S+)")
START_S = 240


@dataclass
class Running:
    """A process of the service and where its words go."""

    process: subprocess.Popen[bytes]
    output: Path
    url: str = ""

    def said(self) -> str:
        return self.output.read_text("utf-8", "replace")

    def children(self) -> list[int]:
        found = []
        for path in Path("/proc").glob("[0-9]*/stat"):
            try:
                fields = path.read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if int(fields[1]) == self.process.pid:
                found.append(int(path.parent.name))
        return found


@contextmanager
def running(state: Path, *arguments: str, until: str = "", **environment: str) -> Iterator[Running]:
    """`omniaid ARGUMENTS` with its state in a folder, from the moment it says `until`."""
    state.mkdir(parents=True, exist_ok=True)
    output = state / f"output-{time.monotonic_ns()}.txt"
    clean = {name: value for name, value in os.environ.items() if not name.startswith("OMNIAID_")}
    given = {"OMNIAID_STATE": str(state), "OMNIAID_THREADS": "1", "OMP_NUM_THREADS": "1", **environment}
    with output.open("wb") as stream:
        process = subprocess.Popen(
            [sys.executable, "-m", "service", *arguments],
            cwd=ROOT,
            env=clean | given,
            stdout=stream,
            stderr=subprocess.STDOUT,
        )
    alive = Running(process, output)
    try:
        wait_until(lambda: until in alive.said() or process.poll() is not None, START_S)
        assert process.poll() is None, alive.said()
        yield alive
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
        try:
            process.wait(60)
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()


@contextmanager
def serving(state: Path, **environment: str) -> Iterator[Running]:
    """`omniaid serve` without its page, ready to answer."""
    given = {"OMNIAID_PAGE": "false", "PYTHONUNBUFFERED": "1", **environment}
    with running(state, "serve", "--port", "0", until="startup complete", **given) as server:
        found = LISTENING.search(server.said())
        assert found, server.said()
        server.url = found.group(1)
        yield server


def wait_until(condition: Callable[[], bool], seconds: float) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.05)


def picture(seed: int = 0, side_px: int = 160, format_name: str = "PNG") -> bytes:
    """A picture of our own making: smooth colour with a little noise."""
    rng = np.random.default_rng(seed)
    small = rng.integers(0, 256, (8, 8, 3), dtype=np.uint8)
    image = Image.fromarray(small).resize((side_px, side_px), Image.Resampling.BICUBIC)
    buffer = io.BytesIO()
    image.save(buffer, format_name)
    return buffer.getvalue()


@pytest.fixture(scope="session")
def postgres() -> Iterator[str]:
    """The SQLAlchemy URL of a PostgreSQL server that lives as long as the tests."""
    programs = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    if not programs:
        pytest.skip("no PostgreSQL on this machine")
    # Not below pytest's own folder, which is closed to the user that PostgreSQL runs as.
    folder = Path(tempfile.mkdtemp(prefix="omniaid-postgres-"))
    data, log = folder / "data", folder / "log"
    prefix = []
    if os.geteuid() == 0:  # it refuses to run as root
        folder.chmod(0o711)
        shutil.chown(folder, "postgres")
        prefix = ["runuser", "-u", "postgres", "--"]
    binaries = programs[-1].parent
    options = f"-c listen_addresses= -c unix_socket_directories={folder} -c fsync=off"
    subprocess.run(
        [*prefix, binaries / "initdb", "-D", data, "-U", "omniaid", "-A", "trust"],
        check=True,
        capture_output=True,
    )
    subprocess.run(
        [*prefix, binaries / "pg_ctl", "-D", data, "-l", log, "-w", "-t", "120", "-o", options, "start"],
        check=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        yield f"postgresql+psycopg://omniaid@/postgres?host={folder}"
    finally:
        subprocess.run(
            [*prefix, binaries / "pg_ctl", "-D", data, "-m", "immediate", "stop"], capture_output=True
        )
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of a Redis server that lives as long as the tests."""
    program = shutil.which("redis-server")
    if program is None:
        pytest.skip("no Redis on this machine")
    folder = tmp_path_factory.mktemp("redis")
    place = folder / "redis.sock"
    process = subprocess.Popen(
        [program, "--port", "0", "--unixsocket", str(place), "--save", "", "--dir", str(folder)],
        stdout=subprocess.DEVNULL,
    )
    try:
        wait_until(place.exists, 60)
        yield f"unix://{place}"
    finally:
        process.terminate()
        process.wait(30)


@pytest.fixture(params=["sqlite", "postgresql"])
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """An empty database of each kind."""
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path / 'state.db'}"
        return
    url = request.getfixturevalue("postgres")
    yield url
    from sqlalchemy import create_engine

    from service.database import metadata

    engine = create_engine(url)
    metadata.drop_all(engine)
    engine.dispose()


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """One server for the tests that change nothing for others."""
    with serving(
        tmp_path_factory.mktemp("server"),
        OMNIAID_MAX_UPLOAD_BYTES=str(2**20),
        OMNIAID_MAX_BATCH_BYTES=str(4 * 2**20),
        OMNIAID_SWEEP_S="0.2",
        OMNIAID_READY_TIMEOUT_S="120",
        OMNIAID_REQUEST_TIMEOUT_S="240",
        OMNIAID_WEBHOOK_SECRET="a secret of the tests only",
        OMNIAID_WEBHOOK_WAIT_S="0.2",
        OMNIAID_FETCH_HOSTS="localhost",
    ) as alive:
        yield alive


@pytest.fixture
def client(server: Running) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.url, timeout=240, trust_env=False) as opened:
        yield opened
