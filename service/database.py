"""The tables of the service's state, in SQLite or PostgreSQL."""

import time
from pathlib import Path

from sqlalchemy import (
    Boolean,
    Column,
    Engine,
    Float,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    Text,
    create_engine,
    event,
    inspect,
    select,
)
from sqlalchemy.engine import make_url
from sqlalchemy.exc import (
    ArgumentError,
    IntegrityError,
    NoSuchModuleError,
    OperationalError,
    ProgrammingError,
)

from service.errors import SettingsError

SCHEMA = 1
BUSY_S = 10  # a writer waits so long for another one's transaction
START_TRIES = 5

metadata = MetaData()

schema = Table("omniaid_schema", metadata, Column("version", Integer, primary_key=True))

api_keys = Table(
    "api_key",
    metadata,
    Column("id", String(16), primary_key=True),
    Column("name", String(200), nullable=False),
    Column("scopes", String(200), nullable=False),
    Column("hash", String(64), nullable=False),
    Column("old_hash", String(64)),  # of the secret before the last rotation
    Column("old_until", Float),
    Column("created_at", Float, nullable=False),
    Column("expires_at", Float),
    Column("revoked_at", Float),
    Column("rate_per_minute", Integer),
    Column("images_per_day", Integer),
)

usage = Table(
    "usage",
    metadata,
    Column("who", String(80), primary_key=True),
    Column("kind", String(16), primary_key=True),
    Column("window", Integer, primary_key=True),
    Column("used", Integer, nullable=False),
)

reports = Table(
    "report",
    metadata,
    Column("sha256", String(64), primary_key=True),
    Column("method", String(64), primary_key=True),
    Column("body", Text, nullable=False),
    Column("created_at", Float, nullable=False),
    Index("report_created_at", "created_at"),
)

claims = Table(
    "idempotency",
    metadata,
    Column("owner", String(80), primary_key=True),
    Column("key", String(200), primary_key=True),
    Column("fingerprint", String(64), nullable=False),
    Column("created_at", Float, nullable=False),
    Column("status", Integer),
    Column("headers", Text),
    Column("body", Text),
)

jobs = Table(
    "job",
    metadata,
    Column("id", String(40), primary_key=True),
    Column("owner", String(80), nullable=False, index=True),
    Column("status", String(16), nullable=False, index=True),
    Column("total", Integer, nullable=False),
    Column("keep_uploads", Boolean, nullable=False),
    Column("created_at", Float, nullable=False),
    Column("finished_at", Float),
    Column("queued_until", Float, nullable=False),  # no second message in the queue before
    Column("lease", String(40)),
    Column("lease_until", Float, nullable=False),
    Column("claims", Integer, nullable=False),
    Column("webhook_url", Text),
    Column("webhook_state", String(16)),
    Column("webhook_tries", Integer, nullable=False),
    Column("webhook_due", Float),
)

job_items = Table(
    "job_item",
    metadata,
    Column("job", String(40), ForeignKey("job.id", ondelete="CASCADE"), primary_key=True),
    Column("position", Integer, primary_key=True),
    Column("name", Text, nullable=False),
    Column("url", Text),
    Column("data", LargeBinary),
    Column("sha256", String(64), index=True),
    Column("report", Text),
    Column("scored_at", Float),
)

audit = Table(
    "audit",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=True),
    Column("at", Float, nullable=False, index=True),
    Column("who", String(80), nullable=False),
    Column("action", String(80), nullable=False),
    Column("subject", String(200), nullable=False),
    Column("status", Integer),
    Column("request_id", String(128), nullable=False),
)


def open_database(url: str) -> Engine:
    """The database at a SQLAlchemy URL, with its tables made when they are missing.

    Raises:
        SettingsError: there is no database at the URL, or it is of another version.
    """
    engine = _engine(url)
    try:
        _make_tables(engine)
        with engine.connect() as connection:
            version = connection.execute(select(schema.c.version)).scalar()
    except (OperationalError, ProgrammingError) as error:
        reason = " ".join(str(error.orig).split())[:200]
        raise SettingsError(f"the database {engine.url!r} cannot be used: {reason}") from error
    if version != SCHEMA:
        raise SettingsError(f"the database {engine.url!r} has schema {version}; this program needs {SCHEMA}")
    return engine


def _engine(url: str) -> Engine:
    try:
        address = make_url(url)
        if address.get_backend_name() not in ("sqlite", "postgresql"):
            raise SettingsError(f"the database is a {address.get_backend_name()}; use sqlite or postgresql")
        if address.get_backend_name() == "sqlite":
            return _sqlite(url, address.database)
        return create_engine(address, pool_pre_ping=True, pool_size=8, max_overflow=32)
    except (ArgumentError, NoSuchModuleError) as error:
        raise SettingsError(
            f"OMNIAID_DATABASE is no usable SQLAlchemy URL: {type(error).__name__}"
        ) from error
    except ModuleNotFoundError as error:
        raise SettingsError(f"the database needs the package {error.name}, which is not installed") from error


def _sqlite(url: str, file: str | None) -> Engine:
    if not file or file == ":memory:":
        raise SettingsError("the SQLite database needs a file: several threads share it")
    try:
        Path(file).parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        raise SettingsError(f"the folder of {file} cannot be made: {error.strerror}") from error
    engine = create_engine(url, connect_args={"timeout": BUSY_S}, pool_size=8, max_overflow=64)

    @event.listens_for(engine, "connect")
    def prepare(connection: object, _record: object) -> None:
        cursor = connection.cursor()  # type: ignore[attr-defined]
        for pragma in ("journal_mode=WAL", "synchronous=NORMAL", "foreign_keys=ON"):
            cursor.execute(f"PRAGMA {pragma}")
        cursor.close()

    return engine


def _make_tables(engine: Engine) -> None:
    """Make what is missing; several processes may start on an empty database at the same moment."""
    for left in reversed(range(START_TRIES)):
        try:
            metadata.create_all(engine)
            with engine.begin() as connection:
                if connection.execute(select(schema.c.version)).first() is None:
                    connection.execute(schema.insert().values(version=SCHEMA))
            return
        except (OperationalError, ProgrammingError, IntegrityError):
            if not left or (left < START_TRIES - 1 and not _reachable(engine)):
                raise
            time.sleep(0.2)


def _reachable(engine: Engine) -> bool:
    try:
        inspect(engine)
    except (OperationalError, ProgrammingError):
        return False
    return True
