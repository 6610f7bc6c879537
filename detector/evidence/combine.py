"""One line over pixels and file: whether they agree, without changing either."""

from collections.abc import Iterable

from detector.evidence.findings import Claim, Confidence, FileEvidence, Finding

STRENGTH: tuple[Confidence, ...] = ("proven", "signed", "embedded", "stated")
SAYS: dict[Claim, str] = {
    "made_by_ai": "that AI made the picture",
    "edited_with_ai": "that AI made parts of the picture",
    "made_by_algorithm": "that an algorithm without training made the picture",
    "captured": "that a device captured the picture",
    "made_by_people": "that a person made the picture",
}
HOW: dict[Confidence, str] = {
    "proven": "a credential signed by a trusted signer",
    "signed": "a credential with a holding signature of a signer who was not vouched for",
    "embedded": "a watermark in the pixels",
    "stated": "plain metadata, which anyone can write,",
}
SIDE: dict[Claim, str] = {
    "made_by_ai": "ai",
    "edited_with_ai": "ai",
    "captured": "real",
    "made_by_people": "real",
}
PIXELS = {
    "ai": "The pixels look made by AI",
    "real": "The pixels show no sign of AI",
    "uncertain": "The pixels do not decide",
    "out_of_scope": "The pixels were not judged, for the picture is out of scope",
}


def strongest(findings: Iterable[Finding]) -> Finding | None:
    """The finding that weighs most among those that claim an origin; None when there is none."""
    claiming = [row for row in findings if row.claim in SAYS and row.confidence in STRENGTH]
    return min(claiming, key=lambda row: STRENGTH.index(row.confidence), default=None)


def combine(pixel_verdict: str | None, evidence: FileEvidence) -> tuple[str, ...]:
    """Sentences that set the pixel verdict beside the file's evidence; the verdict itself stays.

    Args:
        pixel_verdict: "ai", "real", "uncertain", "out_of_scope", or None when nothing was scored.
        evidence: of the same bytes.
    """
    pixels = PIXELS.get(pixel_verdict or "", "The pixels were not scored")
    best = strongest(evidence.findings)
    if best is None:
        return (
            f"{pixels}; the file says nothing about its origin, which is no evidence either way.",
            *_extras(evidence),
        )
    says = f"{HOW[best.confidence]} says {SAYS[best.claim]}"
    return (f"{pixels}; {says}. {_relation(pixel_verdict, SIDE.get(best.claim))}", *_extras(evidence))


def _relation(pixel_verdict: str | None, file_side: str | None) -> str:
    if pixel_verdict not in ("ai", "real") or file_side is None:
        return "The two can be neither compared nor merged."
    if pixel_verdict == file_side:
        return "The two agree."
    return "The two conflict: neither is proof against the other, so look at both."


def _extras(evidence: FileEvidence) -> tuple[str, ...]:
    """What a reader must not overlook beside the strongest finding."""
    sentences = []
    if evidence.credential is not None and evidence.credential.state == "invalid":
        sentences.append(
            "A credential is present but does not validate: the file or the credential was changed."
        )
    claims = {SIDE.get(row.claim) for row in evidence.findings if row.confidence in STRENGTH} - {None}
    if len(claims) > 1:
        sentences.append(
            "The file contradicts itself: some of it speaks of AI and some of a capture or a person."
        )
    return tuple(sentences)
