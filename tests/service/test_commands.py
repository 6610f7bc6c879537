"""`omniaid serve`: what it says when it cannot start."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def serve(*arguments: str, code: str = "", **environment: str) -> subprocess.CompletedProcess[str]:
    script = f"import sys; {code}\nfrom service.cli import main; main()"
    return subprocess.run(
        [sys.executable, "-c", script, "serve", *arguments],
        cwd=ROOT,
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=60,
    )


def assert_one_sentence(result: subprocess.CompletedProcess[str], said: str) -> None:
    assert result.returncode == 2, result.stderr
    assert result.stderr.startswith("omniaid: ") and result.stderr.count("\n") == 1, result.stderr
    assert said in result.stderr


@pytest.mark.parametrize("module", ["fastapi", "gradio", "uvicorn", "pydantic_settings"])
def test_a_missing_extra_is_one_sentence(module):
    result = serve("--port", "0", code=f"sys.modules[{module!r}] = None")
    assert_one_sentence(result, "install omniaid[serve]")
    assert module in result.stderr


def test_the_other_commands_do_not_need_the_extra():
    blocked = "".join(f"sys.modules[{name!r}] = None; " for name in ("fastapi", "gradio", "uvicorn", "anyio"))
    assert serve("--help", code=blocked).returncode == 0


def test_a_bad_variable():
    assert_one_sentence(serve(OMNIAID_PORT="http"), "OMNIAID_PORT is 'http'")


def test_a_bad_flag():
    assert_one_sentence(serve("--port", "70000"), "--port is 70000")


def test_a_port_that_is_taken():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert_one_sentence(serve("--port", str(port)), f"cannot listen on 127.0.0.1 port {port}")


def test_a_host_that_is_not_here():
    assert_one_sentence(serve("--host", "203.0.113.1", "--port", "0"), "cannot listen on 203.0.113.1")


def test_a_model_that_is_not_there():
    assert_one_sentence(serve("--port", "0", "--model", "/nowhere/a.onnx"), "/nowhere/a.onnx")
