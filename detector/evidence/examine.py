"""From raw bytes to file evidence: every check in turn, each unable to stop the others."""

import hashlib
from collections.abc import Callable
from typing import TypeVar

import numpy as np
from PIL import Image

from detector.evidence.carriers import Metadata, collect
from detector.evidence.containers import Layout, walk
from detector.evidence.credentials import find_claims, read_credential
from detector.evidence.findings import (
    DEFAULT_OPTIONS,
    Caution,
    Credential,
    EvidenceOptions,
    FileEvidence,
    Finding,
)
from detector.evidence.generation import find_generation
from detector.evidence.pixels import open_raw
from detector.evidence.software import find_camera, find_programs, find_remote_manifest, find_source_types
from detector.evidence.stealth import find_stealth
from detector.evidence.strays import find_strays
from detector.evidence.thumbnails import find_thumbnails
from detector.evidence.watermarks import find_watermarks
from mirage.extras import MissingExtra

T = TypeVar("T")


class _Examination:
    """Rows gathered while the checks run."""

    def __init__(self) -> None:
        self.findings: list[Finding] = []
        self.cautions: list[Caution] = []
        self.checks: dict[str, str] = {}

    def attempt(self, name: str, check: Callable[[], T], default: T) -> T:
        """The check's result; what it raises on hostile bytes becomes a row."""
        try:
            result = check()
        except MissingExtra as error:
            self.checks[name] = str(error)
            return default
        except Exception as error:
            self.checks[name] = f"it failed on this file: {type(error).__name__}"
            text = f"the check {name} failed: {type(error).__name__}: {str(error)[:200]}"
            self.cautions.append(Caution(kind="damage", text=text))
            return default
        self.checks[name] = "done"
        return result


def examine(data: bytes, options: EvidenceOptions = DEFAULT_OPTIONS) -> FileEvidence:
    """What the bytes of a file say about its origin. Never raises for what stands in them.

    Args:
        data: the file as it arrived; a copy that was encoded again has lost its evidence.
        options: what is looked at, and what it may cost.
    """
    state = _Examination()
    base = FileEvidence(sha256=hashlib.sha256(data).hexdigest(), size_bytes=len(data))
    if len(data) > options.max_bytes:
        return base.model_copy(
            update={"checks": {"container": f"the file has more than {options.max_bytes:,} bytes"}}
        )
    layout = state.attempt("container", lambda: walk(data, options.max_parts), None)
    if layout is None:
        state.checks.setdefault("container", "done")
        if state.checks["container"] == "done":
            state.checks["container"] = "the bytes begin like no container that carries readable metadata"
        return base.model_copy(update={"checks": state.checks, "warnings": tuple(state.cautions)})
    metadata = state.attempt("metadata", lambda: collect(data, layout, options), Metadata())
    credential = _check_file(state, data, layout, metadata, options)
    _check_pixels(state, data, layout, metadata, options)
    conflicts = _conflicts(state.findings)
    return base.model_copy(
        update={
            "container": layout.container,
            "findings": tuple(state.findings),
            "warnings": (*layout.cautions, *state.cautions, *conflicts),
            "credential": credential,
            "checks": state.checks,
        }
    )


def _check_file(
    state: _Examination, data: bytes, layout: Layout, metadata: Metadata, options: EvidenceOptions
) -> Credential | None:
    """The credential, after rows for everything outside the pixels were gathered."""
    credential = state.attempt("credentials", lambda: _read_credential(data, layout, metadata, options), None)
    if credential is not None:
        state.findings += find_claims(credential)
    elif metadata.credentials:
        text = "the file holds a C2PA credential that was not read"
        state.cautions.append(Caution(kind="limit", text=text, place=metadata.credentials[0].place))
    state.findings += state.attempt("source types", lambda: find_source_types(metadata), [])
    state.findings += state.attempt("generation", lambda: find_generation(metadata, options), [])
    state.findings += state.attempt("software", lambda: find_programs(metadata), [])
    nothing: tuple[list[Finding], list[Caution]] = ([], [])
    rows, cautions = state.attempt(
        "camera", lambda: find_camera(metadata, layout.width, layout.height), nothing
    )
    state.findings += rows
    state.cautions += cautions
    state.cautions += [
        Caution(kind="damage", text=f"EXIF: {problem}", place=place)
        for exif, place in metadata.exif
        for problem in exif.problems
        if layout.container != "TIFF"
    ]
    state.cautions += state.attempt(
        "strays", lambda: find_strays(data, layout, metadata.has_multi_picture), []
    )
    return credential


def _read_credential(
    data: bytes, layout: Layout, metadata: Metadata, options: EvidenceOptions
) -> Credential | None:
    if metadata.credentials:
        return read_credential(data, layout, metadata.credentials, options)
    for packet, place in metadata.xmp:
        address = find_remote_manifest(packet)
        if address.startswith(("https://", "http://")):
            return Credential(state="remote", reasons=(address[:500],), place=place)
        if address.startswith("self#"):
            layout.warn("container", "XMP points to a C2PA credential in this file, which holds none", place)
    return None


def _check_pixels(
    state: _Examination, data: bytes, layout: Layout, metadata: Metadata, options: EvidenceOptions
) -> None:
    names = ("thumbnails", "watermarks", "hidden text")
    reason = "it was not asked for" if not options.pixels else ""
    image = None
    if not reason:
        image, reason = open_raw(data, layout, options.max_pixels)
    if image is None:
        state.checks |= dict.fromkeys(names, reason)
        return
    picture: Image.Image = image
    rgb = state.attempt("pixels", lambda: picture.convert("RGB"), None)
    if rgb is None:
        state.checks |= dict.fromkeys(names, "the pixels could not be converted")
        return
    state.findings += state.attempt("thumbnails", lambda: find_thumbnails(metadata, rgb), [])
    state.findings += state.attempt("watermarks", lambda: find_watermarks(rgb), [])
    if layout.container in ("PNG", "WEBP") and picture.mode in ("RGB", "RGBA"):
        state.findings += state.attempt("hidden text", lambda: find_stealth(np.asarray(picture), options), [])


def _conflicts(findings: list[Finding]) -> list[Caution]:
    """Camera data beside a statement of AI: one of the two was copied, or AI edited a capture."""
    camera = next((row for row in findings if row.kind == "camera" and row.claim == "captured"), None)
    ai = next((row for row in findings if row.claim == "made_by_ai" and row.confidence != "void"), None)
    if camera is None or ai is None:
        return []
    text = "the file states a camera exposure and also that AI made it; one of the two was carried over"
    return [Caution(kind="conflict", text=text, place=camera.place)]
