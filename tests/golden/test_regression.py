"""Verdict bands of the shipped model: a release that moves one must say so.

The committed examples are always checked. The other rows are of pictures that are not in the repository; they
are checked where the data set is at hand:

    OMNIAID_REGRESSION_DATA=DIR pytest -m slow tests/golden/test_regression.py

After a deliberate change of the model run tests/golden/make_regression.py and name the moved bands in the
changelog.
"""

import hashlib
import json
import os
from pathlib import Path
from typing import Any

import pytest

from detector import Detector
from tests.golden.make_regression import GOLDEN, example_pictures, row, thresholds

DATA = os.environ.get("OMNIAID_REGRESSION_DATA")
BANDS = {"ai", "real", "uncertain", "out_of_scope", "error"}
NEAR = 0.02  # so close to an edge, another processor's rounding may decide


def read_rows() -> tuple[dict[str, Any], list[dict[str, Any]]]:
    head, *rows = (json.loads(line) for line in GOLDEN.read_text("utf-8").splitlines())
    return head, rows


def moved(detector: Detector, pairs: list[tuple[dict[str, Any], bytes]]) -> list[str]:
    """A line for each picture whose band is not the recorded one."""
    lines, edges = [], thresholds(detector).values()
    for expected, data in pairs:
        report = detector.score(data, "x")
        found = row(report, expected["source"])
        near = report.probability is not None and min(abs(report.probability - e) for e in edges) < NEAR
        if found["band"] != expected["band"] and not near:
            was, now = (f"{one['band']} ({one['probability']})" for one in (expected, found))
            lines.append(f"{expected['source']} {expected['sha256'][:12]}: was {was}, is {now}")
    return lines


def message(lines: list[str], compared: int) -> str:
    head, _ = read_rows()
    model = f"{head['model']['name']} {head['model']['version']} ({head['model']['sha256'][:12]})"
    return (
        f"{len(lines)} of {compared} verdict bands moved against {model}; a release that moves a band names "
        "it in the changelog and writes them anew with tests/golden/make_regression.py:\n" + "\n".join(lines)
    )


def test_the_rows_are_whole():
    head, rows = read_rows()
    assert set(head) == {"model", "thresholds"} and set(head["thresholds"]) == {"ai", "real"}
    assert {r["band"] for r in rows} <= BANDS
    assert all(set(r) == {"sha256", "source", "band", "probability"} for r in rows)
    assert len({r["sha256"] for r in rows}) == len(rows)


def test_the_rows_belong_to_the_shipped_model(detector):
    head, _ = read_rows()
    assert head["model"]["sha256"] == detector.card.sha256, (
        "the shipped model is not the one the bands were recorded with; run tests/golden/make_regression.py "
        "and name the moved bands in the changelog"
    )


def test_the_examples_keep_their_bands(detector):
    by_hash = {r["sha256"]: r for r in read_rows()[1]}
    pictures = [path.read_bytes() for path in example_pictures()]
    pairs = [(by_hash[hashlib.sha256(data).hexdigest()], data) for data in pictures]
    lines = moved(detector, pairs)
    assert not lines, message(lines, len(pairs))


@pytest.mark.slow
@pytest.mark.skipif(DATA is None, reason="OMNIAID_REGRESSION_DATA names no built data set")
def test_the_data_sets_pictures_keep_their_bands(detector):
    from detector.evaluation.samples import open_pictures

    assert DATA is not None
    expected = {r["sha256"]: r for r in read_rows()[1]}
    pictures = open_pictures(Path(DATA), split="all")
    pairs = [
        (expected[digest], data)
        for sample in pictures.samples
        if (digest := hashlib.sha256(data := pictures.read(sample)).hexdigest()) in expected
    ]
    assert pairs, f"{DATA} holds none of the recorded pictures"
    lines = moved(detector, pairs)
    assert not lines, message(lines, len(pairs))
