"""The audit log: who did what to which picture or key, when, and how it ended. Never a picture or a name."""

import time
from typing import Any

from sqlalchemy import Engine, select

from service.database import audit

NOBODY = "command line"


class AuditLog:
    """Entries that are added and, after their time, deleted; nothing changes them."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def add(
        self, who: str, action: str, subject: str = "", status: int | None = None, request_id: str = ""
    ) -> None:
        """Write one entry.

        Args:
            who: id of a key, an address, or NOBODY.
            action: e.g. "POST /v1/images" or "keys rotate".
            subject: sha256 of a picture, id of a job or key.
            status: HTTP status of the answer, when there was one.
            request_id: of the request, when there was one.
        """
        values = {"who": who, "action": action, "subject": subject, "status": status}
        with self._engine.begin() as connection:
            connection.execute(audit.insert().values(at=time.time(), request_id=request_id, **values))

    def read(self, limit: int = 100) -> list[Any]:
        """The latest entries, latest first."""
        with self._engine.connect() as connection:
            return list(connection.execute(select(audit).order_by(audit.c.id.desc()).limit(limit)))
