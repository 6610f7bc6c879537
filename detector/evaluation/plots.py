"""Plots of an evaluation, drawn from the report and the predictions, for colour-blind eyes."""

from collections.abc import Callable
from typing import NamedTuple

from detector.evaluation.bars import plot_generators, plot_real_sources
from detector.evaluation.canvas import Figure, encode_png
from detector.evaluation.curves import plot_reliability, plot_robustness, plot_roc, plot_scores
from detector.evaluation.frame import Frame
from detector.evaluation.report import Report


class Plot(NamedTuple):
    """One drawn plot.

    Attributes:
        name: of its file, without the ending.
        title: a few words.
        text: what it shows, also for those who cannot see it.
        png: the picture.
    """

    name: str
    title: str
    text: str
    png: bytes


def draw(report: Report, frame: Frame) -> tuple[Plot, ...]:
    """The plots that these predictions have data for.

    Raises:
        MissingExtra: matplotlib is not installed.
    """
    drawn = []
    for name, (title, text, plot) in PLOTS.items():
        figure = plot(report, frame)
        if figure is not None:
            drawn.append(Plot(name, title, text, encode_png(figure)))
    return tuple(drawn)


# File name -> title, what it shows, how it is drawn.
PLOTS: dict[str, tuple[str, str, Callable[[Report, Frame], Figure | None]]] = {
    "roc": (
        "ROC curves",
        "Lines: AI pictures found against real pictures flagged, over all thresholds; dotted lines at 1 % "
        "and 5 %.",
        plot_roc,
    ),
    "reliability": (
        "Reliability",
        "Dots: observed share of AI pictures at each stated probability; the diagonal is perfect. Bars "
        "below: pictures of each class per bin.",
        plot_reliability,
    ),
    "scores": (
        "Scores by class",
        "Histograms of the probability of AI, real against AI pictures; dotted lines are the thresholds.",
        plot_scores,
    ),
    "robustness": (
        "Robustness",
        "Lines from no degradation to the most severe: AUROC, share of AI pictures found, share of real "
        "pictures flagged; bands are the intervals.",
        plot_robustness,
    ),
    "generators": (
        "By generator",
        "Left: verdicts on the pictures of each generator; pictures in brackets. Right: AUROC with the "
        "interval, dashed where it comes from one AI source and only real sources were drawn.",
        plot_generators,
    ),
    "real_sources": (
        "By real source",
        "Verdicts on the pictures of each real source; pictures in brackets.",
        plot_real_sources,
    ),
}
