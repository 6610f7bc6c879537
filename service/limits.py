"""Rate limits and quotas, counted in the database: every process of the service sees the same numbers."""

import time

from sqlalchemy import Engine, delete

from service.database import usage
from service.keys import Caller
from service.settings import Settings
from service.upserts import insert_into

MINUTE_S, DAY_S = 60, 86_400


class LimitReached(Exception):
    """A caller sent more than allowed.

    Attributes:
        retry_after_s: seconds until the next try makes sense.
    """

    def __init__(self, message: str, retry_after_s: int) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class Limits:
    """Counts requests by minute and pictures by day (UTC), in fixed windows."""

    def __init__(self, engine: Engine, settings: Settings) -> None:
        self._engine = engine
        self._settings = settings

    def count_request(self, caller: Caller) -> None:
        """Count one request.

        Raises:
            LimitReached: it is one too many in this minute.
        """
        own = caller.rate_per_minute
        allowed = self._settings.rate_per_minute if own is None else own
        self._count(caller, "requests", 1, allowed, MINUTE_S)

    def count_images(self, caller: Caller, count: int) -> None:
        """Count pictures.

        Raises:
            LimitReached: they are too many for this day.
        """
        own = caller.images_per_day
        allowed = self._settings.images_per_day if own is None else own
        self._count(caller, "pictures", count, allowed, DAY_S)

    def forget(self) -> None:
        """Delete the counts of windows that are over."""
        day = int(time.time()) // DAY_S
        over = (usage.c.window < day - 1) & (usage.c.kind == "pictures")
        minute_over = (usage.c.window < int(time.time()) // MINUTE_S - 1) & (usage.c.kind == "requests")
        with self._engine.begin() as connection:
            connection.execute(delete(usage).where(over | minute_over))

    def _count(self, caller: Caller, kind: str, count: int, allowed: int, window_s: int) -> None:
        if allowed <= 0:
            return
        now = time.time()
        window = int(now) // window_s
        row = {"who": caller.id, "kind": kind, "window": window}
        statement = insert_into(self._engine, usage).values(**row, used=count)
        statement = statement.on_conflict_do_update(
            index_elements=["who", "kind", "window"], set_={"used": usage.c.used + count}
        ).returning(usage.c.used)
        with self._engine.begin() as connection:
            used = connection.execute(statement).scalar_one()
            if used > allowed:
                # What is refused does not count: a large batch must not use up what a small one could.
                connection.rollback()
                wait_s = max(1, int((window + 1) * window_s - now + 0.999))
                span = "minute" if window_s == MINUTE_S else "day"
                raise LimitReached(f"at most {allowed:,} {kind} per {span} are allowed", wait_s)
