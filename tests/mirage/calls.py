"""What the tests of the engines let workers do; a module of its own, so that workers load little."""

import os
import signal
import time
from pathlib import Path

from mirage.errors import MirageError


def die_once(note: str, value: int) -> int:
    """The value, but not at the first attempt."""
    if not Path(note).exists():
        Path(note).touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return value


def die_with_parent() -> None:
    """Take down the process that started this one too."""
    os.kill(os.getppid(), signal.SIGKILL)
    time.sleep(60)


def slow_square(value: int) -> int:
    time.sleep(0.02 * (value % 3))
    return value * value


def echo_slowly(data: bytes) -> bytes:
    time.sleep(0.01)
    return data


def sentence(_args: tuple, reason: str) -> str:
    """The result of a file that failed."""
    return reason


def note_attempt(folder: str, number: int) -> int:
    """The number, after a note that says which process began on it for which parent."""
    (Path(folder) / f"{number} {os.getpid()} {os.getppid()}").touch()
    time.sleep(0.05)
    return number


def refuse() -> None:
    """What a function raises when the whole run is at fault, not one file."""
    raise MirageError("the disk is gone")
