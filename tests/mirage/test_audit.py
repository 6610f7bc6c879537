"""Audit: it finds the leaks we build, and alignment removes them; random labels pass."""

import json

import numpy as np
import pytest
from PIL import Image

from mirage.align import Alignment, align
from mirage.bias.audit import Audit, AuditSettings, Record, audit, audit_records
from mirage.bias.headers import Header, read_header
from mirage.errors import BuildError
from mirage.read import list_shards
from mirage.shards import ShardWriter
from tests.mirage.conftest import encode, picture

QUICK = AuditSettings(repeats=1, trees=15, folds=3)
SMALL = Alignment(long_sides_px=(64, 80, 96))


def header(rng: np.random.Generator, **facts: object) -> Header:
    """A JPEG header with random size and quality, unless given."""
    step = int(rng.integers(1, 30))
    drawn = {"width": int(rng.integers(64, 512)), "height": int(rng.integers(64, 512))}
    drawn |= {"file_bytes": int(rng.integers(5_000, 90_000)), "luma_table": (step,) * 64}
    return Header(**({"format": "JPEG", "mode": "colour"} | drawn | facts))


def records(sources: dict[tuple[str, str], dict], count: int = 60) -> list[Record]:
    """`count` pictures of each source (name, label), whose headers have the given facts."""
    rng = np.random.default_rng(0)
    return [
        Record(header(rng, **facts), label, name)
        for (name, label), facts in sources.items()
        for _ in range(count)
    ]


def even(**ai_facts: object) -> dict[tuple[str, str], dict]:
    """Five sources of each label, of which the AI ones have some facts of their own."""
    return {(f"real-{i}", "real"): {} for i in range(5)} | {(f"ai-{i}", "ai"): ai_facts for i in range(5)}


def aligned(image: Image.Image, place: int) -> bytes:
    return align(image, np.random.default_rng([7, place]), SMALL).data


def shoes(label: str, count: int, quality: int, seed: int) -> list[tuple[Image.Image, bytes]]:
    images = [picture(seed + place, 100, 100) for place in range(count)]
    return [(image, encode(image, "JPEG", quality=quality)) for image in images]


def test_equal_headers_pass():
    found = audit_records(records(even()), QUICK)
    assert (found.judged_by, found.folds, found.note) == ("source", 3, "")
    assert found.pictures == {"real": 300, "ai": 300} and found.sources == {"real": 5, "ai": 5}
    assert 0.4 < found.auc < 0.6 and 0.4 < found.macro_auc < 0.6 and 0.4 < found.auc_by_picture < 0.6


@pytest.mark.parametrize(
    ("facts", "feature"),
    [
        ({"exif": True}, "exif"),
        ({"format": "PNG", "luma_table": ()}, "format"),
        ({"subsampling": "4:2:0"}, "subsampling"),
        ({"chroma_table": (9,) * 64}, "chroma_sum"),
    ],
)
def test_a_planted_leak_is_found_on_unseen_sources(facts, feature):
    found = audit_records(records(even(**facts)), QUICK)
    assert found.auc > 0.95 and found.macro_auc > 0.95
    alone = {leak.feature: leak.auc for leak in found.leaks}
    assert alone[feature] > 0.95
    assert found.easiest_sources[0].right > 0.85


def test_the_leaking_feature_comes_first():
    found = audit_records(records(even(exif=True)), QUICK)
    assert found.leaks[0].feature == "exif" and found.leaks[0].drop > 0.3
    assert all(abs(leak.drop) < 0.1 for leak in found.leaks[1:])
    assert "depth" not in {leak.feature for leak in found.leaks}, "a fact that never varies cannot leak"


def test_marks_of_single_sources_do_not_carry_over():
    """Each source has a size of its own: telling by picture, useless on unseen sources."""
    sources = {(f"{label}-{i}", label): {} for label in ("real", "ai") for i in range(5)}
    for place, facts in enumerate(sources.values()):
        facts |= {"width": 100 + 37 * (place * 7 % 10), "height": 128}
    found = audit_records(records(sources), QUICK)
    assert found.auc_by_picture > 0.9
    assert found.gated_auc < 0.6


def test_one_huge_source_does_not_decide():
    """One AI source of ten has EXIF; it holds most AI pictures, so only the pooled AUC is moved much."""
    sources = even() | {("ai-0", "ai"): {"exif": True}, ("ai-1", "ai"): {"exif": True}}
    small = records({key: facts for key, facts in sources.items() if key[0] != "ai-0"}, 60)
    huge = records({("ai-0", "ai"): {"exif": True}}, 2000)
    found = audit_records(small + huge, QUICK)
    assert found.auc > 0.85 > 0.75 > found.macro_auc
    assert found.gated_auc == found.auc


def test_few_sources_fall_back_to_pictures():
    found = audit_records(records({("shoes-real", "real"): {}, ("shoes-ai", "ai"): {"exif": True}}), QUICK)
    assert found.judged_by == "picture" and found.auc > 0.95
    assert found.note == "1 real and 1 ai sources; folds are by picture with fewer than 3 of each"


def test_twins_share_a_source():
    sources = {(f"twins-{i}", label): {} for i in range(4) for label in ("real", "ai")}
    found = audit_records(records(sources), QUICK.model_copy(update={"folds": 5}))
    assert found.judged_by == "source" and found.folds == 4
    assert len(found.easiest_sources) == 8


@pytest.mark.parametrize("sources", [{}, {("one", "real"): {}}, even()])
def test_too_few_pictures_measure_nothing(sources):
    found = audit_records(records(sources, 3), QUICK)
    assert (found.judged_by, found.auc, found.leaks) == ("nothing", None, ())
    assert "20 of each are needed" in found.note
    assert Audit(splits={"train": found}, settings=QUICK, versions={}).passes()


def test_same_seed_same_audit():
    rows = records(even(width=300))
    assert audit_records(rows, QUICK) == audit_records(rows, QUICK)
    assert audit_records(rows, QUICK) != audit_records(rows, QUICK.model_copy(update={"seed": 1}))


def test_gate_names_split_number_and_features():
    leaking, clean = audit_records(records(even(exif=True)), QUICK), audit_records(records(even()), QUICK)
    result = Audit(splits={"train": clean, "devtest": leaking}, settings=QUICK, versions={})
    assert result.passes() and not result.passes(splits=("train", "devtest"))
    (sentence,) = result.complaints(splits=("devtest",))
    assert "split devtest (AUC 1.00, at most 0.60 is allowed), most of all by exif" in sentence
    assert result.passes(max_auc=1.0, splits=("devtest",))
    assert Audit.model_validate_json(result.model_dump_json()) == result


def test_two_jpeg_qualities_are_caught_and_aligned_away():
    """The pictures are of one kind; only the stored quality differs, as in a scraped set of shoes."""
    stored = {"real": shoes("real", 150, 87, 0), "ai": shoes("ai", 150, 75, 1000)}
    before = [
        Record(read_header(data), label, f"shoes-{label}")
        for label, found in stored.items()
        for _, data in found
    ]
    caught = audit_records(before, QUICK)
    assert caught.auc > 0.99
    assert {leak.feature for leak in caught.leaks if leak.auc > 0.99} >= {"quality", "luma_sum", "luma_0"}
    after = [
        Record(
            read_header(align(image, np.random.default_rng([7, place]), SMALL).data), label, f"shoes-{label}"
        )
        for label, found in stored.items()
        for place, (image, _) in enumerate(found, start=1000 * (label == "ai"))
    ]
    assert audit_records(after, QUICK).gated_auc <= 0.6


@pytest.fixture
def built(tmp_path):
    """A folder with two finished train shards: real JPEG, AI PNG, three sources each."""
    for number, label in enumerate(("real", "ai")):
        writer = ShardWriter(tmp_path, "train", number, 1000, 10**9)
        for place in range(30):
            data = encode(picture(place + 100 * number), "JPEG" if label == "real" else "PNG")
            writer.add(f"{label}-{place}", "jpg", data, {"label": label, "source": f"{label}-{place % 3}"})
        writer.close([])
    return tmp_path


def test_audit_reads_shards(built):
    result = audit(built, settings=QUICK)
    assert list(result.splits) == ["train"]
    assert result.splits["train"].pictures == {"real": 30, "ai": 30}
    assert not result.passes() and set(result.versions) == {"scikit-learn", "numpy"}
    json.loads(result.model_dump_json())


def test_large_headers_are_read_whole(tmp_path):
    """A profile longer than the part that is read at first."""
    writer = ShardWriter(tmp_path, "train", 0, 1000, 10**9)
    data = encode(picture(1), "JPEG", icc_profile=b"\0" * 200_000)
    writer.add("one", "jpg", data, {"label": "real", "source": "a"})
    writer.close([])
    assert audit(tmp_path).splits["train"].pictures == {"real": 1, "ai": 0}


def test_no_shards_is_an_error(tmp_path):
    with pytest.raises(BuildError, match="holds no finished shard of train, calibration, devtest"):
        audit(tmp_path)


def test_a_damaged_shard_is_an_error(built):
    path = list_shards(built, "train")[1]
    content = path.read_bytes()
    path.write_bytes(content.replace(b"\x89PNG", b"\0PNG", 1))
    with pytest.raises(BuildError, match=r"train-000001\.tar cannot be read after sample none"):
        audit(built)
