"""Scoring beside the event loop: the one queue that REST and the page share."""

import anyio
from anyio import CapacityLimiter, to_thread

from detector.card import ModelCard
from detector.report import ImageReport
from detector.scoring import Detector
from service.pictures import probe_picture, thumbnail


class Scorer:
    """Scores bytes in worker threads, at most `concurrency` at a time; the rest wait their turn."""

    def __init__(self, detector: Detector, concurrency: int) -> None:
        self._detector = detector
        self._limiter = CapacityLimiter(concurrency)

    @property
    def card(self) -> ModelCard:
        """The card of the model that scores."""
        return self._detector.card

    async def score(self, data: bytes, path: str) -> ImageReport:
        """The report on one picture; a bad picture gives a report with status `error`."""
        return await to_thread.run_sync(
            self._detector.score, data, path, limiter=self._limiter, abandon_on_cancel=True
        )

    async def thumbnail(self, data: bytes) -> str:
        """A small preview of a picture that was scored, as a `data:` address."""
        return await to_thread.run_sync(thumbnail, data, limiter=self._limiter)

    async def probe(self, timeout_s: float) -> ImageReport:
        """The report on a tiny built-in picture, scored like any other.

        Raises:
            TimeoutError: no answer within `timeout_s` seconds.
        """
        with anyio.fail_after(timeout_s):
            return await self.score(probe_picture(), "probe.png")
