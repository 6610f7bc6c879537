"""Reports kept for the same bytes, by content hash and by everything that makes a verdict."""

import hashlib
import time

from sqlalchemy import Engine, delete, select

from detector.card import ModelCard
from detector.report import ImageReport
from mirage.decode import Limits
from service.database import reports
from service.upserts import insert_into

DAY_S = 86_400.0


def method_of(card: ModelCard, limits: Limits) -> str:
    """A hash of what, besides a picture's bytes, decides its report: model, views, thresholds, limits."""
    parts = (
        ImageReport.model_fields["schema_version"].default,
        card.model_dump_json(exclude={"training", "metrics", "limits"}),
        limits.model_dump_json(exclude={"max_bytes"}),
    )
    return hashlib.sha256("\n".join(parts).encode("utf-8")).hexdigest()


class ReportCache:
    """Reports without their pictures, and without the names the pictures had."""

    def __init__(self, engine: Engine, method: str, days: float) -> None:
        """Cache of the reports that one model gives.

        Args:
            engine: the database.
            method: see `method_of`.
            days: how long a report is good for; 0 keeps none.
        """
        self._engine = engine
        self._method = method
        self._seconds = days * DAY_S

    def etag(self, sha256: str) -> str:
        """The entity tag of the report on a picture, with its quotes."""
        return f'"{hashlib.sha256(f"{sha256} {self._method}".encode()).hexdigest()[:32]}"'

    def get(self, sha256: str) -> ImageReport | None:
        """The report on the bytes of that hash, without a name; None when there is none."""
        if not self._seconds:
            return None
        wanted = select(reports.c.body).where(
            reports.c.sha256 == sha256,
            reports.c.method == self._method,
            reports.c.created_at > time.time() - self._seconds,
        )
        with self._engine.connect() as connection:
            body = connection.execute(wanted).scalar()
        return None if body is None else ImageReport.model_validate_json(body)

    def put(self, report: ImageReport) -> None:
        """Keep the report on a scored picture."""
        if not self._seconds or report.status != "ok" or report.sha256 is None:
            return
        body = report.model_copy(update={"path": ""}).model_dump_json()
        values = {"body": body, "created_at": time.time()}
        row = insert_into(self._engine, reports).values(sha256=report.sha256, method=self._method, **values)
        with self._engine.begin() as connection:
            connection.execute(row.on_conflict_do_update(index_elements=["sha256", "method"], set_=values))

    def remove(self, sha256: str) -> bool:
        """Whether there was a report on the bytes of that hash, by any model; there is none now."""
        with self._engine.begin() as connection:
            return connection.execute(delete(reports).where(reports.c.sha256 == sha256)).rowcount > 0
