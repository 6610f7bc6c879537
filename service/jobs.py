"""Jobs: pictures scored later. The database holds the truth; the queue only says where to look.

A queue that hands a message out forgets it, so a worker that is killed would take its job along.
Here a worker leases the job, renews the lease with every picture, and writes each report where none
stands yet: what a dead worker left is taken up by the next one, and no picture has two results.
"""

import secrets
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Engine, Row, case, delete, func, select, update

from detector.report import ImageReport
from service.database import job_items, jobs

OPEN = ("queued", "running")
MAX_CLAIMS = 10  # a job that was taken up so often takes its workers down with it
PAGE = 200


@dataclass(frozen=True)
class Source:
    """One picture of a job: its bytes or its address."""

    name: str
    data: bytes | None = None
    url: str | None = None
    sha256: str | None = None


class Jobs:
    """The jobs of a database."""

    def __init__(self, engine: Engine, lease_s: float) -> None:
        self.engine = engine
        self._lease_s = lease_s

    def create(
        self,
        owner: str,
        sources: Sequence[Source],
        webhook_url: str | None = None,
        keep_uploads: bool = False,
    ) -> str:
        """The id of a new job; it waits until a worker claims it. Ids sort by time.

        Args:
            owner: id of the key, or address.
            sources: the pictures, in the order of the results.
            webhook_url: is told when the job is over.
            keep_uploads: whether the pictures stay after they were scored.
        """
        identity = f"{time.time_ns() // 1000:015x}{secrets.token_hex(8)}"
        row: dict[str, Any] = {
            "id": identity,
            "owner": owner,
            "status": "queued",
            "total": len(sources),
            "keep_uploads": keep_uploads,
            "created_at": time.time(),
            "queued_until": 0.0,
            "lease_until": 0.0,
            "claims": 0,
            "webhook_url": webhook_url,
            "webhook_tries": 0,
        }
        items = [
            {"job": identity, "position": position, **vars(source)} for position, source in enumerate(sources)
        ]
        with self.engine.begin() as connection:
            connection.execute(jobs.insert().values(**row))
            connection.execute(job_items.insert(), items)
        return identity

    def get(self, identity: str, owner: str) -> Row[Any] | None:
        """The owner's job, with the number of pictures `scored` so far; None when there is none."""
        with self.engine.connect() as connection:
            return connection.execute(
                _with_progress().where(jobs.c.id == identity, jobs.c.owner == owner)
            ).first()

    def page(self, owner: str, limit: int, before: str | None, status: str | None) -> list[Row[Any]]:
        """The owner's jobs, latest first, that are older than the job `before`."""
        wanted = _with_progress().where(jobs.c.owner == owner).order_by(jobs.c.id.desc()).limit(limit)
        if before is not None:
            wanted = wanted.where(jobs.c.id < before)
        if status is not None:
            wanted = wanted.where(jobs.c.status == status)
        with self.engine.connect() as connection:
            return list(connection.execute(wanted))

    def cancel(self, identity: str, owner: str) -> bool:
        """Whether the owner's job was open; it is cancelled now, the picture in work may still finish."""
        open_job = (jobs.c.id == identity) & (jobs.c.owner == owner) & jobs.c.status.in_(OPEN)
        with self.engine.begin() as connection:
            cancelled = connection.execute(
                update(jobs)
                .where(open_job)
                .values(status="cancelled", finished_at=time.time(), lease=None, **_webhook_due())
            ).rowcount
            if cancelled:
                connection.execute(
                    update(job_items)
                    .where(job_items.c.job == identity, _kept(identity).is_(False))
                    .values(data=None)
                )
        return cancelled == 1

    def remove(self, identity: str, owner: str) -> bool:
        """Whether the owner had the job; it is gone now, with pictures and results."""
        with self.engine.begin() as connection:
            mine = connection.execute(
                select(jobs.c.id).where(jobs.c.id == identity, jobs.c.owner == owner)
            ).first()
            if mine is None:
                return False
            connection.execute(delete(job_items).where(job_items.c.job == identity))
            connection.execute(delete(jobs).where(jobs.c.id == identity))
        return True

    def results(self, identity: str) -> Iterator[ImageReport]:
        """The reports there are, in the order of the pictures; memory does not grow with their number."""
        position = -1
        while True:
            wanted = (
                select(job_items.c.position, job_items.c.report)
                .where(job_items.c.job == identity, job_items.c.position > position)
                .where(job_items.c.report.is_not(None))
                .order_by(job_items.c.position)
                .limit(PAGE)
            )
            with self.engine.connect() as connection:
                rows = connection.execute(wanted).all()
            for position, report in rows:  # noqa: B007, the next page begins behind the last one
                yield ImageReport.model_validate_json(report)
            if len(rows) < PAGE:
                return

    def claim(self, identity: str) -> str | None:
        """A lease on the job, or None when it is over or somebody else works on it."""
        lease, now = secrets.token_hex(16), time.time()
        free = (jobs.c.id == identity) & jobs.c.status.in_(OPEN) & (jobs.c.lease_until < now)
        with self.engine.begin() as connection:
            worn = connection.execute(
                update(jobs)
                .where(free, jobs.c.claims >= MAX_CLAIMS)
                .values(status="failed", finished_at=now, lease=None, **_webhook_due())
            ).rowcount
            claimed = connection.execute(
                update(jobs)
                .where(free)
                .values(
                    status="running", lease=lease, lease_until=now + self._lease_s, claims=jobs.c.claims + 1
                )
            ).rowcount
        return lease if claimed and not worn else None

    def renew(self, identity: str, lease: str) -> bool:
        """Whether the lease still holds; if so it holds from now on anew."""
        with self.engine.begin() as connection:
            renewed = connection.execute(
                update(jobs)
                .where(jobs.c.id == identity, jobs.c.lease == lease, jobs.c.status == "running")
                .values(lease_until=time.time() + self._lease_s)
            ).rowcount
        return renewed == 1

    def release(self, identity: str, lease: str) -> None:
        """Give an unfinished job back, so that another worker need not wait for the lease to end."""
        with self.engine.begin() as connection:
            connection.execute(
                update(jobs)
                .where(jobs.c.id == identity, jobs.c.lease == lease, jobs.c.status == "running")
                .values(
                    status="queued", lease=None, lease_until=0.0, queued_until=0.0, claims=jobs.c.claims - 1
                )
            )

    def next_item(self, identity: str) -> Row[Any] | None:
        """The first picture without a report."""
        wanted = (
            select(job_items)
            .where(job_items.c.job == identity, job_items.c.report.is_(None))
            .order_by(job_items.c.position)
            .limit(1)
        )
        with self.engine.connect() as connection:
            return connection.execute(wanted).first()

    def store(self, identity: str, position: int, report: ImageReport, lease: str) -> bool:
        """Whether the report was written: only where none stands yet, and only while the lease holds.

        The picture's bytes go with it, unless they were to be kept.
        """
        held = (
            select(jobs.c.id)
            .where(jobs.c.id == identity, jobs.c.lease == lease, jobs.c.status == "running")
            .exists()
        )
        place = (job_items.c.job == identity) & (job_items.c.position == position)
        values = {"report": report.model_dump_json(), "sha256": report.sha256, "scored_at": time.time()}
        with self.engine.begin() as connection:
            written = connection.execute(
                update(job_items).where(place, job_items.c.report.is_(None), held).values(**values)
            ).rowcount
            if written:
                connection.execute(
                    update(job_items).where(place, _kept(identity).is_(False)).values(data=None)
                )
        return written == 1

    def finish(self, identity: str, lease: str) -> None:
        """Mark the job as done; its webhook is due."""
        with self.engine.begin() as connection:
            connection.execute(
                update(jobs)
                .where(jobs.c.id == identity, jobs.c.lease == lease, jobs.c.status == "running")
                .values(status="done", finished_at=time.time(), lease=None, **_webhook_due())
            )

    def waiting(self, pause_s: float) -> Sequence[str]:
        """Jobs that nobody works on and that no message of the last `pause_s` points to; now one must."""
        now = time.time()
        idle = jobs.c.status.in_(OPEN) & (jobs.c.lease_until < now) & (jobs.c.queued_until < now)
        with self.engine.begin() as connection:
            found = connection.execute(
                select(jobs.c.id).where(idle).order_by(jobs.c.id).limit(PAGE)
            ).scalars()
            return [
                identity
                for identity in list(found)
                if connection.execute(
                    update(jobs).where(jobs.c.id == identity, idle).values(queued_until=now + pause_s)
                ).rowcount
            ]

    def open_count(self) -> int:
        """Jobs that are not over."""
        with self.engine.connect() as connection:
            return int(
                connection.execute(
                    select(func.count()).select_from(jobs).where(jobs.c.status.in_(OPEN))
                ).scalar_one()
            )


def _with_progress() -> Any:
    scored = (
        select(func.count())
        .where(job_items.c.job == jobs.c.id, job_items.c.report.is_not(None))
        .scalar_subquery()
        .label("scored")
    )
    return select(jobs, scored)


def _kept(identity: str) -> Any:
    return select(jobs.c.keep_uploads).where(jobs.c.id == identity).scalar_subquery()


def _webhook_due() -> dict[str, Any]:
    """Values of a job that is over: its webhook, if it has one, is due at once."""
    has_one = jobs.c.webhook_url.is_not(None)
    return {
        "webhook_due": case((has_one, time.time()), else_=None),
        "webhook_state": case((has_one, "pending"), else_=None),
    }
