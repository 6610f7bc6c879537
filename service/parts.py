"""Everything a server or a worker is made of, put together once and taken apart again."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from sqlalchemy import Engine

from detector.runtime import Runtime, default_model_path
from service.access import Access
from service.audit import AuditLog
from service.database import open_database
from service.fetching import Downloads, Posts
from service.foreman import Foreman
from service.idempotency import Idempotency
from service.jobs import Jobs
from service.keys import Keys
from service.limits import Limits
from service.metrics import Metrics
from service.reports import ReportCache, method_of
from service.scorer import Scorer
from service.settings import Settings
from service.verdicts import Verdicts
from service.webhooks import Webhooks


@dataclass(frozen=True)
class Parts:
    """The parts, each of which says in its module what it is for."""

    settings: Settings
    engine: Engine
    metrics: Metrics
    scorer: Scorer
    verdicts: Verdicts
    downloads: Downloads
    posts: Posts
    jobs: Jobs
    foreman: Foreman
    access: Access
    audit: AuditLog
    idempotency: Idempotency

    def start(self, job_workers: int) -> None:
        """Start the decoder processes and work on jobs in so many threads."""
        self.scorer.warm()
        self.foreman.start(job_workers)

    def stop(self) -> None:
        """Finish the picture in work and end everything that was started."""
        self.foreman.stop()
        self.scorer.close()
        self.downloads.close()
        self.posts.close()
        self.engine.dispose()


def build_parts(settings: Settings) -> Parts:
    """The parts, with the model loaded; nothing is started.

    Raises:
        ModelError: the model file or its card cannot be used.
        SettingsError: database or queue cannot be used.
    """
    runtime = Runtime(settings.model or default_model_path(), settings.threads)
    engine = open_database(settings.database_url)
    metrics = Metrics()
    scorer = Scorer(runtime, settings)
    cache = ReportCache(engine, method_of(runtime.card, settings.limits), settings.cache_days)
    verdicts = Verdicts(scorer, cache, metrics)
    jobs = Jobs(engine, settings.lease_s)
    downloads, posts, limits = Downloads(settings), Posts(settings), Limits(engine, settings)
    foreman = Foreman(settings, jobs, verdicts, downloads, Webhooks(engine, posts, settings), limits)
    metrics.watch("scorings_running", "pictures being scored", lambda: scorer.load.running)
    metrics.watch("scorings_waiting", "pictures that wait to be scored", lambda: scorer.load.waiting)
    metrics.watch("jobs_open", "jobs that are not over", jobs.open_count)
    metrics.watch("job_messages", "messages in the job queue", lambda: foreman.queue_size)
    return Parts(
        settings,
        engine,
        metrics,
        scorer,
        verdicts,
        downloads,
        posts,
        jobs,
        foreman,
        Access(Keys(engine), limits, settings),
        AuditLog(engine),
        Idempotency(engine),
    )


@contextmanager
def running(parts: Parts, job_workers: int) -> Iterator[Parts]:
    """The parts, started, within the block."""
    parts.start(job_workers)
    try:
        yield parts
    finally:
        parts.stop()
