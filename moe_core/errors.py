"""Errors of the shared core; each message is one sentence that names the value."""


class MoeError(Exception):
    """Base of the core's own errors."""


class ConfigError(MoeError):
    """A setting is outside what is allowed, or contradicts another."""


class UnknownName(MoeError):
    """A registry holds nothing under the name asked for."""


class MissingPackage(MoeError):
    """A package that an extra of this distribution installs is not there."""
