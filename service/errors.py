"""Errors a person who starts the service can act on; each message is one sentence."""


class ServiceError(Exception):
    """Base of the service's own errors."""


class SettingsError(ServiceError):
    """A setting, from the environment or a flag, cannot be used."""


class MissingExtra(ServiceError):
    """A package that only the `serve` extra installs is absent."""
