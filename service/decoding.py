"""What a decoder process does with the bytes of one picture; imports nothing of the web."""

import resource
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from detector.opening import open_picture
from detector.paths import printable
from detector.preprocess import Preprocessing, make_views
from detector.report import ImageReport, ModelIdentity
from mirage.decode import Limits
from service.pictures import is_picture


@dataclass(frozen=True)
class Terms:
    """What a decoder must know besides the picture.

    Attributes:
        preprocessing: of the model that will look at the views.
        identity: of that model, for the report.
        limits: what a picture may cost.
        memory_bytes: address space of the decoder process.
    """

    preprocessing: Preprocessing
    identity: ModelIdentity
    limits: Limits
    memory_bytes: int


@dataclass(frozen=True)
class Prepared:
    """A picture on its way to a verdict.

    Attributes:
        report: final when there are no views, else still without a verdict.
        views: (V, 3, S, S) uint8, or None when the picture cannot be scored.
        is_picture: whether the bytes are of a picture format at all.
    """

    report: ImageReport
    views: NDArray[np.uint8] | None
    is_picture: bool = True


def prepare(data: bytes, name: str, terms: Terms) -> Prepared:
    """The picture's views with the report so far; runs in a decoder process."""
    limit_memory(terms.memory_bytes)
    report, picture = open_picture(data, printable(name), terms.limits, terms.identity)
    if picture is None:
        return Prepared(report, None, is_picture(data))
    return Prepared(report, make_views(picture.image, terms.preprocessing))


def limit_memory(max_bytes: int) -> None:
    """Let this process have no more address space: an allocation beyond it fails as MemoryError."""
    hard = resource.getrlimit(resource.RLIMIT_AS)[1]
    soft = max_bytes if hard == resource.RLIM_INFINITY else min(max_bytes, hard)
    resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
