"""`omniaid worker`: scores jobs of the queue in a process, or on a machine, of its own."""

import signal
import threading
from typing import Annotated

import typer

from service.errors import MissingExtra


def work(
    workers: Annotated[int, typer.Option(min=1, max=64, help="Jobs at the same time.")] = 1,
) -> None:
    """Score jobs from the queue until a signal ends it; settings are those of the server."""
    try:
        from service.logs import start_logging
        from service.parts import build_parts, running
        from service.settings import read_settings
    except ModuleNotFoundError as error:
        raise MissingExtra(f"the worker needs {error.name}: install omniaid[serve]") from error
    settings = read_settings()
    start_logging(settings.log_format)
    ended = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: ended.set())
    with running(build_parts(settings), workers):
        typer.echo("OmniAID works on jobs")
        ended.wait()
