"""What is deleted, when its time is over and when somebody asks."""

import time
from typing import NamedTuple

from sqlalchemy import Engine, delete, select, update

from service.database import audit, claims, job_items, jobs, reports
from service.settings import Settings

DAY_S = 86_400.0
CLAIM_S = DAY_S  # an Idempotency-Key is remembered so long
OVER = ("done", "cancelled", "failed")


class Removed(NamedTuple):
    """How much was deleted."""

    reports: int
    jobs: int
    items: int
    audit: int


def purge(engine: Engine, settings: Settings, now: float | None = None) -> Removed:
    """Delete everything whose time is over, by the settings."""
    now = time.time() if now is None else now
    old_job = jobs.c.status.in_(OVER) & (jobs.c.finished_at < now - settings.retention_days * DAY_S)
    with engine.begin() as connection:
        connection.execute(delete(claims).where(claims.c.created_at < now - CLAIM_S))
        items = connection.execute(
            delete(job_items).where(job_items.c.job.in_(select(jobs.c.id).where(old_job)))
        ).rowcount
        return Removed(
            connection.execute(
                delete(reports).where(reports.c.created_at < now - settings.cache_days * DAY_S)
            ).rowcount,
            connection.execute(delete(jobs).where(old_job)).rowcount,
            items,
            connection.execute(delete(audit).where(audit.c.at < now - settings.audit_days * DAY_S)).rowcount,
        )


def forget(engine: Engine, sha256: str) -> Removed:
    """Delete what is kept of one picture: its reports, and in jobs its bytes, name, address and report.

    Finished jobs keep the row, so that the other rows of their results stay where they are.
    """
    about = job_items.c.sha256 == sha256
    note = (
        '{"schema_version":"1","path":"deleted","status":"error","error":"the report was deleted on request"}'
    )
    with engine.begin() as connection:
        gone = connection.execute(delete(reports).where(reports.c.sha256 == sha256)).rowcount
        items = connection.execute(
            update(job_items)
            .where(about)
            .values(data=None, url=None, name="deleted", report=note, sha256=None)
        ).rowcount
        # Answers kept for repeated requests may quote the report.
        connection.execute(delete(claims).where(claims.c.body.contains(sha256, autoescape=True)))
    return Removed(gone, 0, items, 0)
