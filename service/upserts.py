"""INSERT ... ON CONFLICT, which SQLite and PostgreSQL both know and SQLAlchemy spells per dialect."""

from typing import Any

from sqlalchemy import Engine, Table
from sqlalchemy.dialects import postgresql, sqlite

INSERTS: dict[str, Any] = {"sqlite": sqlite.insert, "postgresql": postgresql.insert}


def insert_into(engine: Engine, table: Table) -> Any:
    """An INSERT into the table that has `on_conflict_do_update` and `on_conflict_do_nothing`."""
    return INSERTS[engine.dialect.name](table)
