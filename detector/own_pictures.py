"""The scores of a person's own real pictures: each picture once, and only those in scope."""

from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from detector.report import ImageReport


class OwnPictures(NamedTuple):
    """What a threshold is fitted on.

    Attributes:
        probabilities: (N,) calibrated, of AI.
        hashes: of their bytes, sorted.
        left_out: pictures that do not count, by reason.
    """

    probabilities: NDArray[np.float64]
    hashes: tuple[str, ...]
    left_out: dict[str, int]


def collect_scores(reports: Iterable[ImageReport]) -> OwnPictures:
    """The scores in the reports; copies, unreadable pictures and those out of scope do not count."""
    found: dict[str, float] = {}
    left_out: Counter[str] = Counter()
    for report in reports:
        if report.status == "error" or report.probability is None or report.sha256 is None:
            left_out["unreadable"] += 1
        elif report.verdict == "out_of_scope":
            left_out["out of scope"] += 1
        elif report.sha256 in found:
            left_out["copies"] += 1
        else:
            found[report.sha256] = report.probability
    return OwnPictures(np.array(list(found.values())), tuple(sorted(found)), dict(left_out))
