"""Settings and database for commands that run beside the server."""

from typing import TYPE_CHECKING

from service.errors import MissingExtra

if TYPE_CHECKING:
    from sqlalchemy import Engine

    from service.settings import Settings


def open_state() -> "tuple[Settings, Engine]":
    """The settings of the environment and the database they name.

    Raises:
        MissingExtra: a package of the serve extra is absent.
        SettingsError: a setting or the database cannot be used.
    """
    try:
        from service.database import open_database
        from service.settings import read_settings
    except ModuleNotFoundError as error:
        raise MissingExtra(f"this command needs {error.name}: install omniaid[serve]") from error
    settings = read_settings()
    return settings, open_database(settings.database_url)
