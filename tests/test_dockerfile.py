"""The Dockerfile's own steps, run one by one in a clean folder: no daemon needed, nothing repeated here.

Every stage gets its own virtual environment in place of its base image. Absolute folders that
the Dockerfile writes to (/src, /wheels, ...) lie below a temporary root.
"""

import fnmatch
import json
import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from dataclasses import dataclass, field
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]

pytestmark = [pytest.mark.slow, pytest.mark.network, pytest.mark.timeout(900)]


@dataclass
class Stage:
    """What one FROM has built up."""

    name: str
    root: Path
    environment: dict[str, str] = field(default_factory=dict)
    directory: str = "/"
    user: str = "0"
    port: str = ""
    command: list[str] = field(default_factory=list)
    healthcheck: list[str] = field(default_factory=list)


def instructions(text: str) -> list[tuple[str, str]]:
    """(keyword, rest) of each instruction; continuation lines joined, comments dropped."""
    lines = "\n".join(line for line in text.splitlines() if not line.lstrip().startswith("#"))
    joined = re.sub(r"\\\n\s*", " ", lines)
    return [(line.split(None, 1)[0], line.split(None, 1)[1]) for line in joined.splitlines() if line.strip()]


def is_ignored(path: str, patterns: list[str]) -> bool:
    """Whether .dockerignore leaves `path` out: the last pattern that matches it or a parent decides."""
    ignored = False
    parents = ["/".join(path.split("/")[: depth + 1]) for depth in range(path.count("/") + 1)]
    for pattern in patterns:
        wanted = pattern.lstrip("!").replace("**/", "*")
        if any(fnmatch.fnmatch(parent, wanted) or parent == wanted for parent in parents):
            ignored = not pattern.startswith("!")
    return ignored


class Build:
    """Executes a Dockerfile below `root`."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.stages: list[Stage] = []
        self.folders: set[str] = set()
        lines = (ROOT / ".dockerignore").read_text("utf-8").splitlines()
        self.ignore = [line for line in lines if line and not line.startswith("#")]

    @property
    def stage(self) -> Stage:
        return self.stages[-1]

    def execute(self, keyword: str, rest: str) -> None:
        getattr(self, f"do_{keyword.lower()}")(rest)

    def do_from(self, rest: str) -> None:
        words = rest.split()
        assert words[0].startswith("python:") and words[0].endswith("-slim")
        stage = Stage(words[2] if len(words) == 3 else "final", self.root / f"stage{len(self.stages)}")
        stage.root.mkdir()
        subprocess.run([sys.executable, "-m", "venv", stage.root / "python"], check=True)
        stage.environment = {"PATH": f"{stage.root / 'python' / 'bin'}:/usr/bin:/bin", "HOME": str(self.root)}
        self.stages.append(stage)

    def do_workdir(self, rest: str) -> None:
        self.stage.directory = rest
        self.place(rest).mkdir(parents=True, exist_ok=True)

    def do_env(self, rest: str) -> None:
        pairs = [pair.partition("=") for pair in shlex.split(rest)]
        self.stage.environment |= {name: self.translate(value) for name, _, value in pairs}

    def do_copy(self, rest: str) -> None:
        words = rest.split()
        target = words.pop()
        if words[0].startswith("--from="):
            source_stage = next(stage for stage in self.stages if stage.name == words[0].partition("=")[2])
            shutil.copytree(source_stage.root / words[1].lstrip("/"), self.place(target))
            return
        for word in words:
            self.copy_from_context(word, self.place(target), into=target.endswith("/"))

    def copy_from_context(self, word: str, target: Path, into: bool) -> None:
        source = ROOT / word
        assert source.exists(), f"COPY {word}: not in the repository"
        assert not is_ignored(word, self.ignore), f"COPY {word}: .dockerignore leaves it out"
        if source.is_dir():
            shutil.copytree(source, target, ignore=self.ignored_names, dirs_exist_ok=True)
        else:
            shutil.copy2(source, target / source.name if into else target)

    def ignored_names(self, folder: str, names: list[str]) -> set[str]:
        relative = Path(folder).relative_to(ROOT)
        return {name for name in names if is_ignored((relative / name).as_posix(), self.ignore)}

    def do_run(self, rest: str) -> None:
        subprocess.run(
            ["/bin/sh", "-e", "-c", self.translate(rest)],
            cwd=self.place(self.stage.directory),
            env=self.stage.environment,
            check=True,
            timeout=600,
        )

    def do_user(self, rest: str) -> None:
        self.stage.user = rest

    def do_expose(self, rest: str) -> None:
        self.stage.port = rest

    def do_volume(self, rest: str) -> None:
        assert self.place(rest).is_dir(), f"VOLUME {rest}: no such folder in the image"

    def do_healthcheck(self, rest: str) -> None:
        self.stage.healthcheck = json.loads(rest.partition("CMD")[2])

    def do_cmd(self, rest: str) -> None:
        self.stage.command = json.loads(rest)

    def place(self, folder: str) -> Path:
        """Where an absolute or relative folder of the stage really lies; remembered for `translate`."""
        absolute = Path(self.stage.directory) / folder
        if absolute != Path("/"):
            self.folders.add("/" + absolute.parts[1])
        return self.stage.root / absolute.relative_to("/")

    def translate(self, text: str) -> str:
        """`text` with the stage's own folders moved below its root."""
        for folder in self.folders:
            text = re.sub(rf"(?<![\w.}}]){folder}(?!\w)", f"{self.stage.root}{folder}", text)
        return text


@pytest.fixture(scope="module")
def image():
    with tempfile.TemporaryDirectory(prefix="omniaid-image-") as folder:
        root = Path(folder)
        root.chmod(0o755)  # another user will run what is in it
        build = Build(root)
        for keyword, rest in instructions((ROOT / "Dockerfile").read_text("utf-8")):
            build.execute(keyword, rest)
        yield build.stage


@pytest.fixture(scope="module")
def container(image):
    """The CMD, running as the USER, on a free port in place of the exposed one."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    command = [word.replace(image.port, port) for word in image.command]
    program = shutil.which(command[0], path=image.environment["PATH"])
    assert program and program.startswith(str(image.root)), "the CMD's program comes from the image"
    process = subprocess.Popen(
        [*as_user(image.user), program, *command[1:]],
        cwd="/",
        env=image.environment,
        stdout=subprocess.PIPE,
    )
    try:
        wait_for(f"http://127.0.0.1:{port}/health", process)
        yield process, port
    finally:
        process.terminate()
        process.wait(20)


def as_user(user: str) -> list[str]:
    """The prefix that runs a command as `user` (UID:GID); only root can change.

    The right to read is kept, because the interpreter that stands in for the base image may lie
    in root's home. There is no other right: above all, not to write.
    """
    if os.geteuid() != 0:
        return []
    uid, _, gid = user.partition(":")
    keep = ["--inh-caps=+dac_read_search", "--ambient-caps=+dac_read_search"]
    return ["setpriv", f"--reuid={uid}", f"--regid={gid}", "--clear-groups", *keep]


def wait_for(url: str, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 90
    while time.monotonic() < deadline:
        assert process.poll() is None, "the CMD ended"
        try:
            urllib.request.urlopen(url, timeout=2).close()
            return
        except OSError:
            time.sleep(0.3)
    pytest.fail(f"{url} did not answer")


def test_the_image_has_no_torch_and_no_test_tools(image):
    for module in ("torch", "timm", "open_clip", "transformers", "pytest"):
        result = subprocess.run(
            ["python", "-c", f"import {module}"],
            env=image.environment,
            cwd="/",
            capture_output=True,
            text=True,
        )
        assert f"No module named '{module}'" in result.stderr


def test_the_package_is_installed_from_the_wheel(image):
    result = subprocess.run(
        ["python", "-c", "import detector, service; print(detector.__file__, service.__file__)"],
        env=image.environment,
        cwd="/",
        capture_output=True,
        text=True,
        check=True,
    )
    assert all(path.startswith(str(image.root / "python")) for path in result.stdout.split())


def test_the_user_is_a_number_that_is_not_root(image):
    assert re.fullmatch(r"[1-9]\d*:[1-9]\d*", image.user)


def test_it_serves_as_that_user(image, container):
    process, port = container
    if os.geteuid() == 0:
        status = Path(f"/proc/{process.pid}/status").read_text()
        assert re.search(rf"^Uid:\s+{image.user.partition(':')[0]}\s", status, re.MULTILINE)
    picture = sorted((ROOT / "examples").glob("*.jpg"))[0].read_bytes()
    body = (
        b'--b\r\nContent-Disposition: form-data; name="file"; filename="a.jpg"\r\n\r\n%s\r\n--b--\r\n'
        % picture
    )
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/v1/images", body, {"Content-Type": "multipart/form-data; boundary=b"}
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        report = json.load(answer)
    assert report["status"] == "ok" and report["verdict"] in ("ai", "real", "uncertain", "out_of_scope")
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=60) as answer:
        assert b"examples/" in answer.read(), "the page offers the examples that were copied"


def test_the_health_check_follows_the_server(image, container):
    _, port = container

    def check(port: str) -> int:
        command = [word.replace(image.port, port) for word in image.healthcheck]
        return subprocess.run(command, env=image.environment, cwd="/", stderr=subprocess.DEVNULL).returncode

    assert check(port) == 0
    with socket.create_server(("127.0.0.1", 0)) as silent:
        dead = str(silent.getsockname()[1])
    assert check(dead) != 0
