"""OmniAID's released checkpoints: read strictly, turned into our model, with nothing guessed."""

from detector.released.archive import Archive, read_archive
from detector.released.conversion import Release, convert_release
from detector.released.source import STRUCTURES, Choices, import_release

__all__ = [
    "STRUCTURES",
    "Archive",
    "Choices",
    "Release",
    "convert_release",
    "import_release",
    "read_archive",
]
