"""The error of an evaluation that cannot go on."""

from detector.errors import DetectorError


class EvaluationError(DetectorError):
    """Pictures, predictions or options of an evaluation cannot be used."""
