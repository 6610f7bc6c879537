"""Errors a caller of the data room can act on; each message is one sentence that names the value."""


class MirageError(Exception):
    """Base of the data room's own errors."""


class RecipeError(MirageError):
    """A recipe, or something it names, cannot be used."""


class UnreadableImage(MirageError):
    """The bytes are not a picture within the limits; becomes a row with a reason, never a crash."""


class BuildError(MirageError):
    """A data set cannot be built or read where it was asked for."""
