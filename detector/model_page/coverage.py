"""Risk against coverage: how wrong the detector is when it may leave out what it is least sure of."""

import numpy as np
from numpy.typing import NDArray

from detector.evaluation.canvas import GREY, Figure, make_figure, tidy
from detector.evaluation.curves import STYLES
from detector.evaluation.frame import AI, REAL, Frame
from mirage.transforms import TIERS


def risk_by_coverage(
    probability: NDArray[np.float64], label: NDArray[np.int64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Share of pictures kept, and share of errors among them, from the surest picture to all.

    Both classes weigh the same, whatever their numbers. A probability of one half or more says AI.

    Args:
        probability: (N,) of AI.
        label: (N,) 0 real, 1 AI; both occur.

    Source: Geifman and El-Yaniv 2017. Differs: classes are balanced.
    """
    order = np.argsort(-np.abs(probability - 0.5), kind="stable")
    sizes = np.array([(label == REAL).sum(), (label == AI).sum()])
    weights = 0.5 / sizes[label[order]]
    wrong = ((probability >= 0.5) != (label == AI))[order]
    kept = np.cumsum(weights)
    return kept, np.cumsum(weights * wrong) / kept


def plot_coverage(frame: Frame) -> Figure | None:
    """The curve of each tier; None when there are no probabilities of both classes."""
    if not frame.calibrated:
        return None
    figure, (axes,) = make_figure(3.6, width=5.4)
    drawn = 0
    for name, (colour, dashes) in zip(TIERS, STYLES, strict=False):
        part = frame.take(frame.transform == name)
        if not (part.of(REAL).any() and part.of(AI).any()):
            continue
        kept, risk = risk_by_coverage(part.probability, part.label)
        axes.plot(kept, risk, color=colour, linestyle=dashes, linewidth=1.4, label=name)
        drawn += 1
    if not drawn:
        return None
    axes.set(xlim=(0, 1), xlabel="coverage (share decided, surest first)", ylabel="risk (share wrong)")
    axes.set_ylim(bottom=0)
    axes.legend(frameon=False, fontsize=8, labelcolor=GREY)
    tidy(axes)
    return figure
