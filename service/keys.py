"""API keys: made once, shown once, kept as hashes, with scopes, expiry and rotation."""

import hashlib
import hmac
import secrets
import time
from dataclasses import dataclass

from sqlalchemy import Engine, Row, select, update

from service.database import api_keys
from service.errors import ServiceError

SCOPES = ("score", "jobs", "metrics")
PREFIX = "oa"
DAY_S = 86_400.0


class KeyProblem(ServiceError):
    """A key cannot be made or changed as asked."""


@dataclass(frozen=True)
class Caller:
    """Who sends a request.

    Attributes:
        id: of the key, or the address of a caller without one.
        scopes: what the caller may do.
        rate_per_minute: own limit; None takes the server's.
        images_per_day: own quota; None takes the server's.
    """

    id: str
    scopes: frozenset[str] = frozenset(SCOPES)
    rate_per_minute: int | None = None
    images_per_day: int | None = None


class Keys:
    """The API keys of a database."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def create(
        self,
        name: str,
        scopes: tuple[str, ...] = ("score", "jobs"),
        days: float | None = None,
        rate_per_minute: int | None = None,
        images_per_day: int | None = None,
    ) -> str:
        """A new key, which nobody can read again: the database holds its SHA-256.

        The secret has 256 random bits, so a slow password hash would protect nothing more.

        Args:
            name: for people.
            scopes: out of SCOPES.
            days: until it expires; None never.
            rate_per_minute: requests; None takes the server's limit.
            images_per_day: pictures; None takes the server's quota.

        Raises:
            KeyProblem: a scope is unknown or there is none.
        """
        unknown = sorted(set(scopes) - set(SCOPES))
        if unknown or not scopes:
            raise KeyProblem(
                f"the scopes are {', '.join(unknown) or 'empty'}; choose from {', '.join(SCOPES)}"
            )
        identity, secret, now = secrets.token_hex(4), _new_secret(), time.time()
        with self._engine.begin() as connection:
            connection.execute(
                api_keys.insert().values(
                    id=identity,
                    name=name,
                    scopes=",".join(sorted(set(scopes))),
                    hash=_hash(secret),
                    created_at=now,
                    expires_at=None if days is None else now + days * DAY_S,
                    rate_per_minute=rate_per_minute,
                    images_per_day=images_per_day,
                )
            )
        return f"{PREFIX}_{identity}_{secret}"

    def rotate(self, identity: str, grace_hours: float = 24) -> str:
        """A new secret for the key; the one before works for `grace_hours` more.

        Raises:
            KeyProblem: there is no such key, or it was revoked.
        """
        row = self._row(identity)
        if row is None or row.revoked_at is not None:
            raise KeyProblem(f"there is no valid key {identity}")
        secret = _new_secret()
        until = time.time() + grace_hours * 3600
        values = {"hash": _hash(secret), "old_hash": row.hash, "old_until": until}
        self._change(identity, values)
        return f"{PREFIX}_{identity}_{secret}"

    def revoke(self, identity: str) -> None:
        """Make the key useless at once.

        Raises:
            KeyProblem: there is no such key.
        """
        self._change(identity, {"revoked_at": time.time()})

    def every(self) -> list[Row[tuple[object, ...]]]:
        """Every key ever made, oldest first, without anything secret."""
        shown = [column for column in api_keys.c if column.name not in ("hash", "old_hash")]
        with self._engine.connect() as connection:
            return list(connection.execute(select(*shown).order_by(api_keys.c.created_at)).all())

    def find(self, token: str) -> Caller | None:
        """Who the key belongs to; None when it is wrong, expired or revoked."""
        prefix, _, rest = token.partition("_")
        identity, _, secret = rest.partition("_")
        if prefix != PREFIX or not secret or len(token) > 200:
            return None
        row = self._row(identity)
        now, digest = time.time(), _hash(secret)
        if row is None or row.revoked_at is not None or (row.expires_at or now) < now:
            return None
        current = hmac.compare_digest(row.hash, digest)
        former = hmac.compare_digest(row.old_hash or "", digest) and now < (row.old_until or 0)
        if not current and not former:
            return None
        return Caller(identity, frozenset(row.scopes.split(",")), row.rate_per_minute, row.images_per_day)

    def _row(self, identity: str) -> Row[tuple[object, ...]] | None:
        with self._engine.connect() as connection:
            return connection.execute(select(api_keys).where(api_keys.c.id == identity)).first()

    def _change(self, identity: str, values: dict[str, object]) -> None:
        with self._engine.begin() as connection:
            changed = connection.execute(update(api_keys).where(api_keys.c.id == identity).values(values))
        if changed.rowcount != 1:
            raise KeyProblem(f"there is no key {identity}")


def _new_secret() -> str:
    return secrets.token_urlsafe(32)


def _hash(secret: str) -> str:
    return hashlib.sha256(secret.encode("utf-8")).hexdigest()
