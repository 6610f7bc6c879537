"""Verdicts: what REST and jobs ask for. Known bytes get the report they had, others are scored."""

import hashlib
import time
from typing import NamedTuple

from anyio import to_thread

from detector.paths import printable
from detector.report import ImageReport
from service.metrics import Metrics
from service.reports import ReportCache
from service.scorer import Scorer


class Judged(NamedTuple):
    """A report on one picture.

    Attributes:
        report: with the name that the picture has this time.
        is_picture: whether the bytes are of a picture format at all.
        cached: whether the report was known.
    """

    report: ImageReport
    is_picture: bool
    cached: bool


class Verdicts:
    """Reports on bytes, from the cache or from the scorer."""

    def __init__(self, scorer: Scorer, cache: ReportCache, metrics: Metrics) -> None:
        self.scorer = scorer
        self.cache = cache
        self._metrics = metrics

    def judge(self, data: bytes, name: str) -> Judged:
        """The report on one picture, made on the calling thread."""
        known = self._known(data, name)
        return self._score(data, name) if known is None else known

    async def ask(self, data: bytes, name: str) -> Judged:
        """The report on one picture, scored when its turn comes; known ones need not wait.

        Raises:
            Overloaded: too many wait already.
        """
        known = await to_thread.run_sync(self._known, data, name)
        if known is not None:
            return known
        return await self.scorer.run(self._score, data, name)

    def _known(self, data: bytes, name: str) -> Judged | None:
        report = self.cache.get(hashlib.sha256(data).hexdigest())
        if report is None:
            return None
        self._metrics.cached.inc()
        return Judged(report.model_copy(update={"path": printable(name)}), True, True)

    def _score(self, data: bytes, name: str) -> Judged:
        start = time.perf_counter()
        report, is_picture = self.scorer.examine(data, name)
        self._metrics.count(report, time.perf_counter() - start)
        self.cache.put(report)
        return Judged(report, is_picture, False)
