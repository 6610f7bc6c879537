"""A quiet end: after SIGTERM nothing new is begun, what runs is finished, then the server stops."""

import signal
import socket
import time
from types import FrameType
from typing import Any

import uvicorn


class Drain:
    """Whether the server is about to end, and how many requests still run."""

    def __init__(self) -> None:
        self.begun = False
        self.running = 0
        self.deadline = float("inf")

    def begin(self, seconds: float) -> None:
        """Take no new work; running work has so many seconds."""
        self.begun = True
        self.deadline = time.monotonic() + seconds

    @property
    def over(self) -> bool:
        """Whether the server may stop."""
        return self.begun and (not self.running or time.monotonic() >= self.deadline)


class DrainingServer(uvicorn.Server):
    """A uvicorn server whose first SIGTERM lets running requests end while new ones get a clean 503."""

    def __init__(self, config: uvicorn.Config, drain: Drain, drain_s: float) -> None:
        super().__init__(config)
        self._drain = drain
        self._drain_s = drain_s

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Begin to drain; any other signal, and a second one, ends the server as ever."""
        if sig == signal.SIGTERM and not self._drain.begun:
            self._drain.begin(self._drain_s)
        else:
            super().handle_exit(sig, frame)

    async def on_tick(self, counter: int) -> bool:
        """Whether to stop now; asked ten times a second."""
        if self._drain.over:
            self.should_exit = True
        return await super().on_tick(counter)


def run_draining(config: uvicorn.Config, listener: socket.socket, drain: Drain, drain_s: float) -> None:
    """Serve until a signal ends it."""
    server: Any = DrainingServer(config, drain, drain_s)
    server.run(sockets=[listener])
