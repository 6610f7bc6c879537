"""What the file says, as rows: one schema for findings, warnings and the whole file evidence."""

from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

MIB = 2**20

Kind = Literal[
    "credential", "source_type", "generation", "made_with", "software", "camera", "thumbnail", "watermark"
]
Claim = Literal[
    "made_by_ai",
    "edited_with_ai",
    "made_by_algorithm",
    "captured",
    "made_by_people",
    "edited",
    "none",
]
# How much a row can carry, best first. `proven`: signed by a listed signer. `signed`: the signature
# holds, the signer is not listed. `embedded`: read from the pixels. `stated`: plain metadata that
# anyone can write or remove. `hint`: a circumstance. `void`: nothing may be concluded from it.
Confidence = Literal["proven", "signed", "embedded", "stated", "hint", "void"]
CredentialState = Literal["trusted", "valid", "unknown_signer", "expired", "invalid", "remote", "unreadable"]


class Row(BaseModel):
    """A frozen value that converts to JSON and back."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Place(Row):
    """Where in the file something stands."""

    part: str = Field(description="segment, chunk, box or tag, e.g. `APP1 Exif` or `tEXt parameters`")
    offset: int = Field(ge=0, description="of the part's first byte in the file")
    length: int = Field(ge=0, description="of the part in bytes, its header included")


class Finding(Row):
    """One thing that the file says about its origin."""

    kind: Kind
    claim: Claim = "none"
    confidence: Confidence
    text: str
    place: Place | None = None
    details: dict[str, Any] = Field(default_factory=dict)


class Caution(Row):
    """Something to know about the file that is no evidence: damage, strays, contradictions, limits."""

    kind: Literal["container", "stray", "damage", "conflict", "limit"]
    text: str
    place: Place | None = None


class Credential(Row):
    """One C2PA manifest store, as the official library validated it."""

    state: CredentialState
    reasons: tuple[str, ...] = Field(default=(), description="validation codes that failed")
    signer: str | None = Field(default=None, description="organisation named in the signing certificate")
    signed_at: str | None = None
    generator: str | None = Field(default=None, description="program that wrote the active manifest")
    actions: tuple[str, ...] = Field(default=(), description="of the active manifest")
    source_types: tuple[tuple[str, str], ...] = Field(
        default=(), description="(last part of a digitalSourceType, active | edit | parent | component)"
    )
    ingredients: tuple[str, ...] = ()
    manifests: int = 0
    place: Place | None = None


class FileEvidence(Row):
    """Everything the bytes of one file say about its origin; what is absent says nothing."""

    schema_version: Literal["1"] = "1"
    sha256: str
    size_bytes: int
    container: str | None = Field(default=None, description="JPEG, PNG, WEBP, HEIF, GIF, TIFF or None")
    findings: tuple[Finding, ...] = ()
    warnings: tuple[Caution, ...] = ()
    credential: Credential | None = None
    checks: dict[str, str] = Field(
        default_factory=dict, description="check -> `done`, or in one sentence why it was not made"
    )


class EvidenceOptions(Row):
    """What is looked at, and what a file may cost."""

    redact_prompts: bool = Field(default=False, description="prompts become their length and sha256")
    trust_list: Path | None = Field(
        default=None, description="PEM file of trusted C2PA signers instead of the bundled list"
    )
    check_trust: bool = Field(
        default=True, description="False: a holding signature is `valid`, whoever made it"
    )
    pixels: bool = Field(default=True, description="also look into the pixels: watermarks, thumbnails")
    max_bytes: int = Field(default=100 * MIB, ge=1)
    max_pixels: int = Field(default=50_000_000, ge=1, description="larger pictures: metadata only")
    max_parts: int = Field(default=20_000, ge=1, description="segments, chunks or boxes walked")
    max_text_bytes: int = Field(default=4 * MIB, ge=1, description="of one text after decompression")


DEFAULT_OPTIONS = EvidenceOptions()
