"""The queue of jobs: messages in an SQLite file, or in Redis when several machines work."""

import json
import logging
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

from huey import Huey, RedisHuey, SqliteHuey
from huey.consumer import Consumer
from huey.registry import Message
from huey.serializer import Serializer

from service.errors import SettingsError
from service.settings import Settings

NAME = "omniaid"
MAX_POLL_S = 0.5
LOGGERS = ("huey", "huey.consumer")


class JsonMessages(Serializer):
    """Messages as JSON. Pickle, the default, would let whoever writes to the queue run code here."""

    def _serialize(self, data: Any) -> bytes:
        return json.dumps(data).encode("utf-8")

    def _deserialize(self, data: bytes) -> Message:
        return Message(*json.loads(data))


class JobQueue:
    """Sends ids of jobs to whichever worker is free, of this process or of another one."""

    def __init__(self, settings: Settings, work: dict[str, Callable[[str], None]]) -> None:
        """Queue with one kind of message for every entry of `work`.

        Args:
            settings: where the queue is.
            work: name of a kind of message -> what a worker does with its job's id.

        Raises:
            SettingsError: the queue cannot be reached.
        """
        for name in LOGGERS:  # it writes a line about every message and every start
            logging.getLogger(name).setLevel(logging.WARNING)
        self._huey = _open(settings)
        self._tasks = {name: self._huey.task(name=name)(function) for name, function in work.items()}
        self._consumer: Consumer | None = None
        try:
            self._huey.pending_count()
        except Exception as error:  # each storage has errors of its own
            raise SettingsError(f"the job queue cannot be reached: {type(error).__name__}") from error

    def send(self, name: str, identity: str) -> None:
        """Put a message into the queue; it may arrive twice, or never if the queue's storage is lost."""
        self._tasks[name](identity)

    def size(self) -> int:
        """Messages that wait."""
        return int(self._huey.pending_count())

    def start(self, workers: int) -> None:
        """Work on messages in so many threads."""
        if workers:
            self._consumer = _EmbeddedConsumer(
                self._huey, workers=workers, periodic=False, max_delay=MAX_POLL_S, check_worker_health=False
            )
            self._consumer.start()

    def stop(self) -> None:
        """Take no more messages, and wait for the threads; they must have been told to stop working."""
        if self._consumer is not None:
            self._consumer.stop(graceful=True)
            self._consumer = None


class _EmbeddedConsumer(Consumer):
    """A consumer inside another program, which has signal handlers of its own."""

    def _set_signal_handlers(self) -> None:
        return


def _open(settings: Settings) -> Huey:
    if settings.queue is None:
        settings.state.mkdir(parents=True, exist_ok=True, mode=0o700)
        file = str(settings.state / "queue.db")
        return SqliteHuey(NAME, filename=file, results=False, serializer=JsonMessages())
    url = settings.queue.get_secret_value()
    if not urlsplit(url).scheme:
        raise SettingsError("OMNIAID_QUEUE is no redis:// URL")
    return RedisHuey(NAME, url=url, results=False, serializer=JsonMessages())
