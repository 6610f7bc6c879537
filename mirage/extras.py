"""Packages that only building needs; the base install scores pictures without them."""

from importlib import import_module
from typing import Any

from mirage.errors import MirageError


class MissingExtra(MirageError):
    """A package that an extra of this distribution installs is not there."""


def need(module: str, extra: str = "train") -> Any:
    """The imported module.

    Raises:
        MissingExtra: the module is not installed; the sentence says what to install.
    """
    try:
        return import_module(module)
    except ImportError as error:
        raise MissingExtra(
            f"this needs the package {module}, which is not installed: pip install 'omniaid[{extra}]'"
        ) from error
