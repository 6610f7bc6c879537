"""C2PA Content Credentials, validated by the official library, without any network access."""

import io
import json
from pathlib import Path
from typing import Any

from detector.evidence.containers import Layout, Part
from detector.evidence.findings import Credential, CredentialState, EvidenceOptions, Finding
from detector.evidence.lineage import Origin, list_actions, mapping, trace
from detector.evidence.source_types import CLAIMS
from mirage.extras import need

BUNDLED_TRUST_LIST = Path(__file__).parent / "assets" / "c2pa-trust-list.pem"
MIME_TYPES = {
    "JPEG": "image/jpeg",
    "PNG": "image/png",
    "WEBP": "image/webp",
    "GIF": "image/gif",
    "TIFF": "image/tiff",
}
MAX_REPORT_BYTES = 16 * 2**20
MAX_ITEMS = 50

# What each failure of the active manifest means for the state. A code in none of the sets means that
# content, claim or signature do not belong together: `invalid`.
EXPIRED = {"signingCredential.expired", "claimSignature.outsideValidity"}
UNLISTED = {"signingCredential.untrusted", "signingCredential.invalid"}
# Breaks of the format's rules by early writers; signature and hashes are judged by other codes.
FORMAL = {"claim.malformed", "assertion.action.malformed"}
BINDINGS = {"assertion.dataHash.match", "assertion.bmffHash.match", "assertion.boxesHash.match"}


def read_credential(data: bytes, layout: Layout, parts: list[Part], options: EvidenceOptions) -> Credential:
    """The validated manifest store of a file whose layout holds C2PA parts.

    Raises:
        MissingExtra: the library is not installed.
        OSError: the trust list cannot be read.
    """
    c2pa = need("c2pa", "evidence")
    place = parts[0].place
    trust = {"trust_anchors": _anchors(options)} if options.check_trust else {}
    settings = {"verify": {"remote_manifest_fetch": False, "ocsp_fetch": False}, "trust": trust}
    try:
        context = c2pa.Context(settings=c2pa.Settings.from_dict(settings))
        with c2pa.Reader(_mime_type(data, layout), io.BytesIO(data), context=context) as reader:
            text = reader.json()
        report = json.loads(text) if len(text) <= MAX_REPORT_BYTES else {}
    except (c2pa.C2paError, ValueError, RecursionError) as error:
        reason = " ".join(str(error).split())[:200]
        return Credential(state="unreadable", reasons=(reason,), place=place)
    return _credential(report, options).model_copy(update={"place": place})


def _anchors(options: EvidenceOptions) -> str:
    return (options.trust_list or BUNDLED_TRUST_LIST).read_text("utf-8")


def _mime_type(data: bytes, layout: Layout) -> str:
    heif = "image/avif" if b"avi" in data[8:64] else "image/heic"
    return MIME_TYPES.get(layout.container, heif)


def _credential(report: dict[str, Any], options: EvidenceOptions) -> Credential:
    manifests = mapping(report.get("manifests"))
    active = mapping(manifests.get(str(report.get("active_manifest"))))
    if not active:
        return Credential(state="unreadable", reasons=("the store names no active manifest",))
    results = mapping(mapping(report.get("validation_results")).get("activeManifest"))
    failures = _codes(results, "failure")
    signature = mapping(active.get("signature_info"))
    origins = trace(manifests, str(report.get("active_manifest")), _broken(report))
    generator = active.get("claim_generator") or ", ".join(
        str(mapping(entry).get("name")) for entry in active.get("claim_generator_info") or []
    )
    return Credential(
        state=_state(failures, _codes(results, "success"), options.check_trust),
        reasons=tuple(dict.fromkeys(failures)),
        signer=_text(signature.get("issuer") or signature.get("common_name")),
        signed_at=_text(signature.get("time")),
        generator=_text(generator),
        actions=tuple(dict.fromkeys(list_actions(active)))[:MAX_ITEMS],
        source_types=tuple((origin.name, origin.role) for origin in origins)[:MAX_ITEMS],
        ingredients=tuple(
            _ingredient(mapping(entry)) for entry in (active.get("ingredients") or [])[:MAX_ITEMS]
        ),
        manifests=len(manifests),
    )


def _ingredient(entry: dict[str, Any]) -> str:
    return f"{entry.get('relationship', 'ingredient')}: {entry.get('title', 'untitled')}"[:200]


def _state(failures: list[str], successes: list[str], check_trust: bool) -> CredentialState:
    """The state that the active manifest's validation codes amount to."""
    holds = "claimSignature.validated" in successes and bool(BINDINGS.intersection(successes))
    if not holds or set(failures) - EXPIRED - UNLISTED - FORMAL:
        return "invalid"
    if EXPIRED.intersection(failures):
        return "expired"
    if not check_trust:
        return "valid"
    if UNLISTED.intersection(failures):
        return "unknown_signer"
    return "valid" if failures else "trusted"


def _codes(results: dict[str, Any], outcome: str) -> list[str]:
    return [str(mapping(entry).get("code")) for entry in results.get(outcome) or []]


def _broken(report: dict[str, Any]) -> set[str]:
    """Labels of manifests that an entry blames for more than an unlisted or expired signer."""
    tolerated = EXPIRED | UNLISTED | FORMAL
    results = mapping(report.get("validation_results"))
    entries = list(report.get("validation_status") or [])
    for delta in results.get("ingredientDeltas") or []:
        entries += mapping(mapping(delta).get("validationDeltas")).get("failure") or []
    blamed = (mapping(entry) for entry in entries)
    return {
        str(entry.get("url", "")).partition("/c2pa/")[2].partition("/")[0]
        for entry in blamed
        if entry.get("code") not in tolerated
    }


def _text(value: Any) -> str | None:
    return str(value)[:200] if value else None


SENTENCES: dict[CredentialState, tuple[str, str]] = {
    "trusted": ("proven", "signed by {signer}, a signer on the trust list"),
    "valid": ("signed", "signed by {signer}; the signature holds, the signer was not judged"),
    "unknown_signer": ("signed", "signed by {signer}, who is not on the trust list; the signature holds"),
    "expired": ("stated", "signed by {signer} with a certificate that had expired or has no proof of time"),
    "invalid": ("void", "does not validate ({reasons}); nothing can be concluded from what it says"),
    "remote": ("void", "is kept elsewhere and was not fetched"),
    "unreadable": ("void", "cannot be read ({reasons}); nothing can be concluded from it"),
}


OF: dict[str, str] = {
    "active": "states",
    "edit": "states, for an edit,",
    "parent": "states, for what the picture was made from,",
    "component": "states, for a part of the picture,",
}


def find_claims(credential: Credential) -> list[Finding]:
    """Rows for a credential: one per source type it states, or one that says there is none."""
    confidence, sentence = SENTENCES[credential.state]
    signer = credential.signer or "an unnamed signer"
    words = sentence.format(signer=signer, reasons=", ".join(credential.reasons[:4]))
    if confidence == "void":
        return [_row(f"The C2PA credential {words}", "none", confidence, credential)]
    rows = []
    for origin in (Origin(*pair) for pair in credential.source_types):
        claim, meaning = CLAIMS[origin.name]
        # Another signer may have signed the ingredient, and a part says nothing about the whole.
        weight = "signed" if confidence == "proven" and origin.role in ("parent", "component") else confidence
        if origin.is_partial_ai:
            claim = "edited_with_ai"
        elif origin.role in ("edit", "component"):
            claim = "none"
        text = f"The C2PA credential {OF[origin.role]} {origin.name} ({meaning}); it is {words}"
        rows.append(_row(text, claim, weight, credential))
    return rows or [
        _row(f"The C2PA credential is {words}; it states no source type", "none", confidence, credential)
    ]


def _row(text: str, claim: str, confidence: str, credential: Credential) -> Finding:
    details = {
        "state": credential.state,
        "generator": credential.generator,
        "actions": list(credential.actions),
    }
    return Finding.model_validate(
        {
            "kind": "credential",
            "claim": claim,
            "confidence": confidence,
            "text": text,
            "place": credential.place,
            "details": details,
        }
    )
