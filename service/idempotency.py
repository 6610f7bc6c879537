"""Idempotency-Key: a request that is sent twice has one effect and one answer.

Source: draft-ietf-httpapi-idempotency-key-header-07.
"""

import hashlib
import json
import re
import time
from collections.abc import Awaitable, Callable
from http import HTTPStatus
from typing import Any

from anyio import to_thread
from fastapi import HTTPException, Request
from fastapi.responses import Response
from sqlalchemy import Engine, delete, select, update

from service.database import claims
from service.intake import Sent
from service.keys import Caller
from service.upserts import insert_into

KEY = re.compile(r"[\x21-\x7e]{1,200}")
KEPT_HEADERS = ("content-type", "location", "etag", "x-cache")
STALE_S = 300.0  # a request that was begun so long ago and has no answer died with its server


class Idempotency:
    """Answers kept by caller and key."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def once(
        self, request: Request, caller: Caller, content: str, answer: Callable[[], Awaitable[Response]]
    ) -> Response:
        """The answer, made now or, for a key that was used before, then.

        Args:
            request: whose Idempotency-Key counts, if it has one.
            caller: keys of different callers have nothing to do with each other.
            content: a fingerprint of what is asked for.
            answer: makes the answer; refused requests may be sent again under the same key.

        Raises:
            HTTPException: 400 for a key that is none, 409 while the first request is being answered,
                422 for a key that was used for something else.
        """
        key = request.headers.get("idempotency-key")
        if key is None:
            return await answer()
        if not KEY.fullmatch(key):
            raise HTTPException(HTTPStatus.BAD_REQUEST, "Idempotency-Key must be 1 to 200 visible characters")
        fingerprint = hashlib.sha256(f"{request.method} {request.url.path} {content}".encode()).hexdigest()
        known = await to_thread.run_sync(self._claim, caller.id, key, fingerprint)
        if known is not None:
            return known
        try:
            made = await answer()
        except BaseException:
            # Shielded by running on a thread: a cancelled request must give its claim back as well.
            self._drop(caller.id, key)
            raise
        await to_thread.run_sync(self._keep, caller.id, key, made)
        return made

    def _claim(self, owner: str, key: str, fingerprint: str) -> Response | None:
        now = time.time()
        mine = (claims.c.owner == owner) & (claims.c.key == key)
        statement = insert_into(self._engine, claims).values(
            owner=owner, key=key, fingerprint=fingerprint, created_at=now
        )
        with self._engine.begin() as connection:
            stale = claims.c.status.is_(None) & (claims.c.created_at < now - STALE_S)
            connection.execute(delete(claims).where(mine, stale))
            if connection.execute(statement.on_conflict_do_nothing()).rowcount:
                return None
            row = connection.execute(select(claims).where(mine)).one()
        if row.fingerprint != fingerprint:
            sentence = "this Idempotency-Key was used for another request; use a new one"
            raise HTTPException(HTTPStatus.UNPROCESSABLE_ENTITY, sentence)
        if row.status is None:
            sentence = "the first request with this Idempotency-Key is still being answered"
            raise HTTPException(HTTPStatus.CONFLICT, sentence, {"Retry-After": "1"})
        headers = json.loads(row.headers) | {"Idempotency-Replayed": "true"}
        return Response(row.body.encode("utf-8"), row.status, headers)

    def _keep(self, owner: str, key: str, made: Response) -> None:
        kept = {name: made.headers[name] for name in KEPT_HEADERS if name in made.headers}
        values: dict[str, Any] = {"status": made.status_code, "headers": json.dumps(kept)}
        values["body"] = bytes(made.body).decode("utf-8")
        with self._engine.begin() as connection:
            connection.execute(
                update(claims).where(claims.c.owner == owner, claims.c.key == key).values(**values)
            )

    def _drop(self, owner: str, key: str) -> None:
        with self._engine.begin() as connection:
            connection.execute(delete(claims).where(claims.c.owner == owner, claims.c.key == key))


def fingerprint(pictures: list[Sent], options: dict[str, Any] | None = None) -> str:
    """The same text for the same pictures and options, however the request framed them."""
    parts = [
        [sent.name, sent.url, hashlib.sha256(sent.data).hexdigest() if sent.data is not None else None]
        for sent in pictures
    ]
    return json.dumps([parts, options or {}], sort_keys=True, default=str)
