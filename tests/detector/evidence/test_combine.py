import pytest

from detector.evidence import FileEvidence, combine, examine
from detector.evidence.findings import Finding
from tests.detector.evidence.files import encode, exif_block, trained_xmp


def evidence(**row):
    findings = (Finding.model_validate({"kind": "credential", "text": "x"} | row),) if row else ()
    return FileEvidence(sha256="0" * 64, size_bytes=1, findings=findings)


@pytest.mark.parametrize(
    ("verdict", "claim", "words"),
    [
        ("ai", "made_by_ai", "agree"),
        ("real", "captured", "agree"),
        ("real", "made_by_ai", "conflict"),
        ("ai", "captured", "conflict"),
        ("uncertain", "made_by_ai", "neither compared"),
        (None, "made_by_ai", "were not scored"),
        ("out_of_scope", "captured", "out of scope"),
    ],
)
def test_the_line_states_agreement_or_conflict(verdict, claim, words):
    assert words in combine(verdict, evidence(claim=claim, confidence="signed"))[0]


def test_absence_is_no_suspicion():
    assert "no evidence either way" in combine("ai", evidence())[0]
    assert "no evidence either way" in combine("real", examine(encode()))[0]


def test_void_rows_and_hints_do_not_speak():
    for confidence in ("void", "hint"):
        assert "no evidence" in combine("real", evidence(claim="made_by_ai", confidence=confidence))[0]


def test_a_file_that_contradicts_itself_says_so():
    both = examine(encode(exif=exif_block(camera=True), xmp=trained_xmp()))
    assert "contradicts itself" in combine("ai", both)[1]
