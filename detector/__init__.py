"""OmniAID: model, training, export, torch-free scoring and reports."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from detector.scoring import Detector

__all__ = ["Detector"]


def __getattr__(name: str) -> Any:
    """`Detector`, imported on first use so that `import detector` stays light."""
    if name == "Detector":
        from detector.scoring import Detector

        return Detector
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
