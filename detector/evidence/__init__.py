"""What a file says about its origin, read from its raw bytes, beside what the pixels say."""

from detector.evidence.combine import combine, strongest
from detector.evidence.examine import examine
from detector.evidence.findings import (
    DEFAULT_OPTIONS,
    Caution,
    Credential,
    EvidenceOptions,
    FileEvidence,
    Finding,
    Place,
)

__all__ = [
    "DEFAULT_OPTIONS",
    "Caution",
    "Credential",
    "EvidenceOptions",
    "FileEvidence",
    "Finding",
    "Place",
    "combine",
    "examine",
    "strongest",
]
