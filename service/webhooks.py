"""Webhooks: a signed message when a job is over, repeated until it is taken or given up.

Source: Standard Webhooks 1.0 (symmetric signatures, `webhook-id`, `webhook-timestamp`, `webhook-signature`).
"""

import base64
import hashlib
import hmac
import json
import logging
import time
from typing import Any

from sqlalchemy import Engine, select, update

from service.database import job_items, jobs
from service.fetching import FetchRejected, Posts
from service.settings import Settings

log = logging.getLogger("omniaid.webhooks")

GROWTH = 4
IN_WORK_S = 120.0  # a delivery that was begun and not ended, by a kill, is begun again after this
PAGE = 100


def sign(secret: str, identity: str, timestamp: int, body: bytes) -> str:
    """The value of the webhook-signature header.

    Args:
        secret: known to sender and receiver.
        identity: of the message, the webhook-id header.
        timestamp: seconds since 1970, the webhook-timestamp header.
        body: as sent.
    """
    content = f"{identity}.{timestamp}.".encode() + body
    digest = hmac.new(secret.encode("utf-8"), content, hashlib.sha256).digest()
    return "v1," + base64.b64encode(digest).decode("ascii")


class Webhooks:
    """Deliveries of the jobs of a database."""

    def __init__(self, engine: Engine, posts: Posts, settings: Settings) -> None:
        self._engine = engine
        self._posts = posts
        self._settings = settings

    def due(self) -> list[str]:
        """Jobs whose webhook must be sent now; nobody else is told of them for a while."""
        now = time.time()
        ready = (jobs.c.webhook_state == "pending") & (jobs.c.webhook_due <= now)
        with self._engine.begin() as connection:
            found = list(connection.execute(select(jobs.c.id).where(ready).limit(PAGE)).scalars())
            return [
                identity
                for identity in found
                if connection.execute(
                    update(jobs).where(jobs.c.id == identity, ready).values(webhook_due=now + IN_WORK_S)
                ).rowcount
            ]

    def deliver(self, identity: str) -> None:
        """Send the job's webhook once; a failure is tried again later, up to the limit."""
        with self._engine.connect() as connection:
            job = connection.execute(
                select(jobs).where(jobs.c.id == identity, jobs.c.webhook_state == "pending")
            ).first()
        if job is None or self._settings.webhook_secret is None:
            return
        body = json.dumps(self._message(job)).encode("utf-8")
        timestamp = int(time.time())
        secret = self._settings.webhook_secret.get_secret_value()
        headers = {
            "webhook-id": identity,
            "webhook-timestamp": str(timestamp),
            "webhook-signature": sign(secret, identity, timestamp, body),
        }
        try:
            status = self._posts.post(job.webhook_url, body, headers)
        except FetchRejected as error:
            log.info("webhook of job %s: %s", identity, error)
            status = 0
        self._note(job, 200 <= status < 300)

    def _message(self, job: Any) -> dict[str, Any]:
        with self._engine.connect() as connection:
            reports = connection.execute(
                select(job_items.c.report).where(job_items.c.job == job.id, job_items.c.report.is_not(None))
            ).scalars()
            counts: dict[str, int] = {}
            for text in reports:
                report = json.loads(text)
                label = report.get("verdict") or "error"
                counts[label] = counts.get(label, 0) + 1
        data = {"id": job.id, "status": job.status, "total": job.total, "counts": counts}
        return {"type": f"job.{job.status}", "timestamp": job.finished_at, "data": data}

    def _note(self, job: Any, taken: bool) -> None:
        tries = job.webhook_tries + 1
        wait_s = self._settings.webhook_wait_s * GROWTH ** (tries - 1)
        given_up = tries >= self._settings.webhook_tries
        state = "delivered" if taken else "failed" if given_up else "pending"
        due = time.time() + wait_s if state == "pending" else None
        with self._engine.begin() as connection:
            connection.execute(
                update(jobs)
                .where(jobs.c.id == job.id)
                .values(webhook_tries=tries, webhook_state=state, webhook_due=due)
            )
