import time

import pytest

from detector.evidence import EvidenceOptions, combine, examine
from detector.evidence.containers import walk
from detector.evidence.credentials import BUNDLED_TRUST_LIST
from detector.evidence.lineage import Origin, trace
from tests.detector.evidence.files import TRAINED, encode, jpeg_with, xmp

c2pa = pytest.importorskip("c2pa")
signing = pytest.importorskip("tests.detector.evidence.signing")
AI = {"made_by_ai", "edited_with_ai"}


@pytest.fixture(scope="module")
def authority():
    return signing.Authority()


@pytest.fixture(scope="module")
def signed(authority):
    return authority.sign(encode(), TRAINED)


@pytest.fixture
def trust(authority, tmp_path):
    path = tmp_path / "trusted.pem"
    path.write_text(authority.root_pem())
    return path


def claims(evidence):
    return {row.claim for row in evidence.findings if row.confidence != "void"}


def test_a_signer_on_the_list_is_trusted(signed, trust):
    evidence = examine(signed, EvidenceOptions(trust_list=trust))
    assert (evidence.credential.state, evidence.credential.signer) == ("trusted", "Toy Signer")
    assert evidence.credential.source_types == (("trainedAlgorithmicMedia", "active"),)
    (row,) = evidence.findings
    assert (row.claim, row.confidence) == ("made_by_ai", "proven")
    assert evidence.credential.place.part == "APP11 JUMBF"


def test_an_unlisted_signer_is_unknown_and_not_invalid(signed):
    evidence = examine(signed)
    assert evidence.credential.state == "unknown_signer"
    assert evidence.findings[0].confidence == "signed"


def test_without_a_question_of_trust_the_signature_is_valid(signed):
    assert examine(signed, EvidenceOptions(check_trust=False)).credential.state == "valid"


def test_one_changed_pixel_byte_makes_it_invalid(signed, trust):
    part = next(part for part in walk(signed).parts if part.name == "scan data")
    at = (part.start + part.stop) // 2
    changed = signed[:at] + bytes([signed[at] ^ 1]) + signed[at + 1 :]
    evidence = examine(changed, EvidenceOptions(trust_list=trust))
    assert evidence.credential.state == "invalid"
    assert not claims(evidence) & AI
    assert "does not validate" in combine("real", evidence)[1]


def test_a_changed_claim_is_invalid(signed, trust):
    changed = signed.replace(b"trainedAlgorithmicMedia", b"trainedAlgorithmicMedib", 1)
    assert examine(changed, EvidenceOptions(trust_list=trust)).credential.state == "invalid"


@pytest.mark.slow
def test_an_expired_certificate_is_its_own_state(tmp_path):
    # The library signs with no certificate that has run out, so one runs out after signing.
    short = signing.Authority(last_s=10)
    trust = tmp_path / "short.pem"
    trust.write_text(short.root_pem())
    data = short.sign(encode(), TRAINED)
    time.sleep(max(0.0, short.leaf.not_valid_after_utc.timestamp() - time.time()) + 1.1)
    evidence = examine(data, EvidenceOptions(trust_list=trust))
    assert evidence.credential.state == "expired"
    assert evidence.findings[0].confidence == "stated"


@pytest.mark.parametrize(
    ("codec", "mime"),
    [
        ("PNG", "image/png"),
        ("WEBP", "image/webp"),
        ("AVIF", "image/avif"),
        ("GIF", "image/gif"),
        ("TIFF", "image/tiff"),
    ],
)
def test_every_container_carries_a_credential(authority, trust, codec, mime):
    data = authority.sign(encode(codec=codec), TRAINED, mime)
    assert examine(data, EvidenceOptions(trust_list=trust)).credential.state == "trusted"


def test_a_credential_behind_the_end_is_not_read(signed):
    evidence = examine(encode() + signed)
    assert evidence.credential is None
    assert any(row.kind == "stray" and "C2PA" in row.text for row in evidence.warnings)


def test_a_remote_credential_is_named_and_not_fetched():
    def pointing(address):
        packet = xmp(attributes=f'dcterms:provenance="{address}"')
        return examine(jpeg_with(0xE1, b"http://ns.adobe.com/xap/1.0/\0" + packet))

    evidence = pointing("https://manifests.example/1")
    assert (evidence.credential.state, evidence.credential.reasons) == (
        "remote",
        ("https://manifests.example/1",),
    )
    assert not claims(evidence) & AI
    assert pointing("self#jumbf=/c2pa/x").credential is None


def test_bytes_that_only_look_like_a_manifest_are_unreadable():
    evidence = examine(jpeg_with(0xEB, b"JP\0\1\0\0\0\1" + b"\0\0\0\x10jumbjunkjunk"))
    assert evidence.credential.state in ("unreadable", "invalid")
    assert not claims(evidence) & AI


def test_the_bundled_list_is_a_list_of_certificates():
    assert BUNDLED_TRUST_LIST.read_text().count("BEGIN CERTIFICATE") >= 10
    assert "Open Use of Data Agreement" in BUNDLED_TRUST_LIST.with_suffix(".LICENSE.txt").read_text()


def manifest(*actions, ingredients=()):
    data = {
        "actions": [
            {"action": name, "digitalSourceType": TRAINED} if trained else {"action": name}
            for name, trained in actions
        ]
    }
    return {"assertions": [{"label": "c2pa.actions.v2", "data": data}], "ingredients": list(ingredients)}


def test_an_edit_by_ai_is_not_a_picture_by_ai():
    (origin,) = trace({"a": manifest(("c2pa.opened", False), ("c2pa.edited", True))}, "a", set())
    assert origin == Origin("trainedAlgorithmicMedia", "edit")
    assert origin.is_partial_ai


def test_parents_and_components_are_told_apart():
    made = manifest(("c2pa.created", True))
    for relationship, role in (("parentOf", "parent"), ("componentOf", "component")):
        active = manifest(
            ("c2pa.opened", False), ingredients=[{"relationship": relationship, "active_manifest": "b"}]
        )
        assert [origin.role for origin in trace({"a": active, "b": made}, "a", set())] == [role]
        assert trace({"a": active, "b": made}, "a", {"b"}) == []


def test_manifests_that_name_each_other_end():
    entry = {"relationship": "parentOf", "active_manifest": "b"}
    stores = {
        "a": manifest(("c2pa.created", True), ingredients=[entry]),
        "b": manifest(ingredients=[{**entry, "active_manifest": "a"}]),
    }
    assert len(trace(stores, "a", set())) == 1
