"""Jobs in work: scores what a claimed job holds, sends what waits, tells those who asked to be told."""

import logging
import threading
import time
from collections.abc import Callable

from detector.report import ImageReport
from service.fetching import Downloads, FetchRejected
from service.job_queue import JobQueue
from service.jobs import Jobs
from service.limits import Limits
from service.retention import purge
from service.settings import Settings
from service.verdicts import Verdicts
from service.webhooks import Webhooks

log = logging.getLogger("omniaid.jobs")

SCORE = "score"
PURGE_S = 3600.0
PAUSE_LEASES = 2  # an unanswered message is repeated after so many leases


class Foreman:
    """Owns the queue and the threads that look after jobs and webhooks; start it, and stop it."""

    def __init__(
        self,
        settings: Settings,
        jobs: Jobs,
        verdicts: Verdicts,
        downloads: Downloads,
        webhooks: Webhooks,
        limits: Limits,
    ) -> None:
        self._settings = settings
        self._jobs = jobs
        self._verdicts = verdicts
        self._downloads = downloads
        self._webhooks = webhooks
        self._limits = limits
        self._stopping = threading.Event()
        self._queue = JobQueue(settings, {SCORE: self.work})
        self._threads = [
            # Receivers may be slow, so webhooks must not wait for the sweep, nor it for them.
            threading.Thread(target=self._repeat, args=(task,), name=task.__name__, daemon=True)
            for task in (self._sweep, self._tell)
        ]
        self._purge_at = 0.0

    @property
    def queue_size(self) -> int:
        """Messages that wait in the queue."""
        return self._queue.size()

    def start(self, workers: int) -> None:
        """Work on jobs in so many threads, and look after those that nobody works on."""
        self._queue.start(workers)
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Finish the pictures in work, give their jobs back and end the threads."""
        self._stopping.set()
        self._queue.stop()
        for thread in self._threads:
            if thread.is_alive():
                thread.join()

    def announce(self) -> None:
        """Put every job that waits into the queue, new ones too."""
        for identity in self._jobs.waiting(PAUSE_LEASES * self._settings.lease_s):
            self._queue.send(SCORE, identity)

    def work(self, identity: str) -> None:
        """Score what the job still lacks, unless somebody else does."""
        lease = self._jobs.claim(identity)
        if lease is None:
            return
        while (item := self._jobs.next_item(identity)) is not None:
            if self._stopping.is_set():
                self._jobs.release(identity, lease)
                return
            if not self._jobs.renew(identity, lease):
                log.info("job %s was cancelled or taken over", identity)
                return
            if not self._jobs.store(identity, item.position, self._report(item), lease):
                return
        self._jobs.finish(identity, lease)

    def _report(self, item: object) -> ImageReport:
        name, data, url = item.name, item.data, item.url  # type: ignore[attr-defined]
        if data is None and url is None:
            return ImageReport(path=name, status="error", error="the picture is no longer there")
        try:
            content = bytes(data) if data is not None else self._downloads.fetch(url)
        except FetchRejected as error:
            return ImageReport(path=name, status="error", error=str(error))
        return self._verdicts.judge(content, name).report

    def _repeat(self, task: Callable[[], None]) -> None:
        while not self._stopping.wait(self._settings.sweep_s):
            try:
                task()
            except Exception:  # a database that is away for a moment must not end the looking after
                log.exception("%s failed; it is tried again", task.__name__)

    def _sweep(self) -> None:
        self.announce()
        if time.monotonic() >= self._purge_at:
            purge(self._jobs.engine, self._settings)
            self._limits.forget()
            self._purge_at = time.monotonic() + PURGE_S

    def _tell(self) -> None:
        for identity in self._webhooks.due():
            if self._stopping.is_set():
                return
            self._webhooks.deliver(identity)
