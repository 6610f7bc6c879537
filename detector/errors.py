"""Errors a caller of the detector can act on; each message is one sentence that names the value."""


class DetectorError(Exception):
    """Base of the detector's own errors."""


class ModelError(DetectorError):
    """A model file or its card is missing, damaged, or disagrees with the other."""


class RecipeError(DetectorError):
    """A training recipe or the data it names cannot be used."""


class UnscorableImage(DetectorError):
    """One picture cannot be scored; becomes an error row, never a crash."""
