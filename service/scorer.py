"""Scoring beside the event loop: decoder processes, one model, and the queue that REST and page share."""

import threading
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import anyio
from anyio import CapacityLimiter, to_thread

from detector.card import ModelCard
from detector.paths import printable
from detector.report import ImageReport, ModelIdentity
from detector.runtime import Runtime
from detector.scoring import judge
from mirage.errors import UnreadableImage
from service.decoders import DecoderFailed, Decoders
from service.decoding import Prepared, Terms, prepare
from service.pictures import probe_picture, thumbnail
from service.settings import Settings

Result = TypeVar("Result")


class Overloaded(Exception):
    """More pictures wait than this server lets wait."""


class Examined(NamedTuple):
    """A report, and whether the bytes were a picture at all."""

    report: ImageReport
    is_picture: bool


class Load(NamedTuple):
    """How busy a scorer is: scorings that run, scorings that wait."""

    running: int
    waiting: int


class Scorer:
    """Scores bytes, at most `concurrency` pictures at a time; the rest wait their turn."""

    def __init__(self, runtime: Runtime, settings: Settings) -> None:
        """Scorer with decoder processes that start with their first picture; close it.

        Args:
            runtime: the loaded model. One inference runs at a time, on all its threads: the next
                picture is decoded meanwhile, and the memory of a second inference is saved.
            settings: limits and concurrency.
        """
        self._runtime = runtime
        self._settings = settings
        card = runtime.card
        identity = ModelIdentity(name=card.name, version=card.version, sha256=card.sha256)
        self._terms = Terms(card.preprocessing, identity, settings.limits, settings.decoder_memory_bytes)
        self._decoders = Decoders(settings.concurrency, settings.decode_timeout_s)
        self._inference = threading.Lock()
        self._limiter = CapacityLimiter(settings.concurrency)

    @property
    def card(self) -> ModelCard:
        """The card of the model that scores."""
        return self._runtime.card

    @property
    def load(self) -> Load:
        """What runs and waits now."""
        statistics = self._limiter.statistics()
        return Load(statistics.borrowed_tokens, statistics.tasks_waiting)

    def warm(self) -> None:
        """Start every decoder process, so that the first visitors need not wait for them."""
        self._decoders.warm(prepare, probe_picture(), "probe.png", self._terms)

    def close(self) -> None:
        """End the decoder processes."""
        self._decoders.close()

    def examine(self, data: bytes, path: str) -> Examined:
        """The report on one picture, made on the calling thread; a bad picture gives an error report."""
        try:
            prepared: Prepared = self._decoders.call(prepare, data, path, self._terms)
        except DecoderFailed as error:
            report = ImageReport(
                path=printable(path), status="error", error=str(error), model=self._terms.identity
            )
            return Examined(report, True)
        if prepared.views is None:
            return Examined(prepared.report, prepared.is_picture)
        with self._inference:
            scores = self._runtime.score_views(prepared.views)
        return Examined(judge(prepared.report, scores, self.card), True)

    async def run(self, function: Callable[..., Result], *args: Any) -> Result:
        """What a function that scores gives, run on a thread when its turn comes.

        Raises:
            Overloaded: too many wait already.
        """
        if self._limiter.statistics().tasks_waiting >= self._settings.queue_limit:
            raise Overloaded(f"{self._settings.queue_limit} pictures wait already; try again in a moment")
        return await to_thread.run_sync(function, *args, limiter=self._limiter, abandon_on_cancel=True)

    async def score(self, data: bytes, path: str) -> ImageReport:
        """The report on one picture; a bad picture gives a report with status `error`.

        Raises:
            Overloaded: too many wait already.
        """
        return (await self.run(self.examine, data, path)).report

    async def decode(self, function: Callable[..., Result], *args: Any) -> Result:
        """What a function, importable by its name, gives in a decoder process.

        Raises:
            DecoderFailed: it crashed, took too long or broke.
            MirageError: the function raised it.
        """
        return await to_thread.run_sync(self._decoders.call, function, *args)

    async def thumbnail(self, data: bytes) -> str:
        """A small preview of a picture that was scored, as a `data:` address.

        Raises:
            UnreadableImage: there is none.
        """
        try:
            return await self.decode(thumbnail, data)
        except DecoderFailed as error:
            raise UnreadableImage(str(error)) from error

    async def probe(self, timeout_s: float) -> ImageReport:
        """The report on a tiny built-in picture, scored like any other.

        Raises:
            TimeoutError: no answer within `timeout_s` seconds.
            Overloaded: too many wait already.
        """
        with anyio.fail_after(timeout_s):
            return await self.score(probe_picture(), "probe.png")
