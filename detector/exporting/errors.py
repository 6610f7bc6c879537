"""Why an ONNX file is not written."""

from detector.errors import ModelError


class ExportError(ModelError):
    """A graph that was asked for does not exist for this model, or does not pass its check."""
