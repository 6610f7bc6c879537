"""From pictures to reports: decode and views on threads, batched inference, calibrated verdicts."""

import math
import os
from collections import deque
from collections.abc import Generator, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from detector.card import ModelCard
from detector.decode import DEFAULT_LIMITS, read_bytes
from detector.errors import UnscorableImage
from detector.opening import open_picture, refuse
from detector.paths import printable
from detector.preprocess import make_views
from detector.reasons import explain_flips, explain_steadiness, give_reasons
from detector.report import ImageReport, ModelIdentity, Verdict
from detector.runtime import Runtime, Scores, default_model_path
from detector.scan import Input
from detector.scope import too_small
from detector.stability import compare, reencode
from detector.threads import available_threads
from mirage.decode import Limits


@dataclass(frozen=True)
class _Prepared:
    """A picture on its way to a report: `views` (R x V, 3, S, S) uint8, or None when `report` is final.

    There are R sets of V views: of the picture as it is and, for the stability check, of its re-encodings.
    """

    report: ImageReport
    views: NDArray[np.uint8] | None = None


class Detector:
    """Scores pictures with one model. Safe to share between threads."""

    def __init__(
        self,
        model: Path | None = None,
        threads: int | None = None,
        limits: Limits = DEFAULT_LIMITS,
        *,
        thresholds: Path | None = None,
        false_positive_rate: float | None = None,
        stability: bool = False,
    ) -> None:
        """Detector with the model that ships with the package, or the ONNX file `model`.

        Args:
            model: an ONNX file with its card beside it.
            threads: for inference and, separately, for decoding; None takes what the process may use.
            limits: what a picture may cost, in bytes and pixels.
            thresholds: file of `omniaid calibrate` whose thresholds replace the card's.
            false_positive_rate: of the card's operating point to use instead of its default, e.g. 0.01.
            stability: score re-encodings too, and withdraw a verdict that they change; four times the work.

        Raises:
            ModelError: the model or its card is missing, damaged, or they disagree.
            DetectorError: the thresholds asked for cannot be had.
        """
        self.runtime = Runtime(
            model or default_model_path(),
            threads,
            thresholds=thresholds,
            false_positive_rate=false_positive_rate,
        )
        self._stability = stability
        self.card = self.runtime.card
        self.identity = ModelIdentity(name=self.card.name, version=self.card.version, sha256=self.card.sha256)
        self._workers = threads or available_threads()
        self._limits = limits

    def score(self, data: bytes, path: str) -> ImageReport:
        """The report on a picture's bytes; `path` is only its name. A bad picture gives an error report."""
        return self._finish([self._prepare_bytes(data, printable(path))])[0]

    def score_file(self, path: str | os.PathLike[str]) -> ImageReport:
        """The report on one file; never raises for a bad or missing one."""
        return self._finish([self._prepare(Input(Path(path)))])[0]

    def score_many(
        self, paths: Iterable[str | os.PathLike[str] | Input], batch_size: int = 8
    ) -> Generator[ImageReport]:
        """One report per input, in the order given; memory does not grow with their number.

        Args:
            paths: consumed a little ahead of the reports.
            batch_size: pictures per inference, at least 1.
        """
        if batch_size < 1:
            raise ValueError(f"batch_size is {batch_size}; it must be at least 1")
        pool = ThreadPoolExecutor(self._workers, thread_name_prefix="decode")
        pending: deque[Future[_Prepared]] = deque()
        try:
            for path in paths:
                item = path if isinstance(path, Input) else Input(Path(path))
                pending.append(pool.submit(self._prepare, item))
                # One batch is scored while the next is being decoded.
                if len(pending) >= 2 * batch_size:
                    yield from self._finish([pending.popleft().result() for _ in range(batch_size)])
            while pending:
                count = min(batch_size, len(pending))
                yield from self._finish([pending.popleft().result() for _ in range(count)])
        finally:
            pool.shutdown(cancel_futures=True)

    def _prepare(self, item: Input) -> _Prepared:
        name = printable(item.path)
        if item.problem is not None:
            return _Prepared(refuse(name, item.problem, self.identity))
        try:
            data = read_bytes(item.path, self._limits.max_bytes)
        except UnscorableImage as error:
            return _Prepared(refuse(name, str(error), self.identity))
        return self._prepare_bytes(data, name)

    def _prepare_bytes(self, data: bytes, name: str) -> _Prepared:
        report, picture = open_picture(data, name, self._limits, self.identity)
        if picture is None:
            return _Prepared(report)
        images = [picture.image, *(reencode(picture.image) if self._stability else ())]
        views = [make_views(image, self.card.preprocessing) for image in images]
        return _Prepared(report, np.concatenate(views))

    def _finish(self, batch: list[_Prepared]) -> list[ImageReport]:
        """Reports of a batch, in order; pictures that could not be prepared keep theirs."""
        stacks = [item.views for item in batch if item.views is not None]
        if not stacks:
            return [item.report for item in batch]
        scores = self.runtime.score_views(np.concatenate(stacks))
        reports, start = [], 0
        for item in batch:
            if item.views is None:
                reports.append(item.report)
                continue
            rows = slice(start, start + len(item.views))
            start += len(item.views)
            reports.append(self._judge(item.report, Scores(scores.logits[rows], scores.gates[rows])))
        return reports

    def _judge(self, report: ImageReport, scores: Scores) -> ImageReport:
        """The report with its verdict, by the first set of views, and the stability check by the others."""
        count = len(self.card.preprocessing.views)
        sets = [
            Scores(scores.logits[start : start + count], scores.gates[start : start + count])
            for start in range(0, len(scores.logits), count)
        ]
        judged = judge(report, sets[0], self.card)
        return judge_stability(judged, sets[1:], self.card) if sets[1:] else judged


def judge(report: ImageReport, scores: Scores, card: ModelCard) -> ImageReport:
    """`report` completed with probability, verdict, reasons and gates.

    Args:
        report: of a decoded picture, with width and height; its `reasons` are those of `why_out_of_scope`.
        scores: of its views, in the order of `card.preprocessing.views`.
        card: of the model that gave the scores.
    """
    margins = _margins(scores)
    probability = calibrate(float(margins.mean()), card)
    shorter = min(report.width or 0, report.height or 0)
    views = {
        name: calibrate(float(margin), card)
        for name, margin in zip(card.preprocessing.views, margins, strict=True)
    }
    outside = (*too_small(shorter, card.min_side_px), *report.reasons)
    decided: Verdict = "out_of_scope" if outside else verdict(probability, shorter, card)
    return report.model_copy(
        update={
            "verdict": decided,
            "reasons": outside or give_reasons(decided, probability, views, card.thresholds),
            "probability": probability,
            # A card without temperature and bias holds raw scores.
            "calibrated": (card.temperature, card.bias) != (1.0, 0.0),
            "threshold": card.thresholds.ai,
            "threshold_real": card.thresholds.real,
            "threshold_source": card.thresholds.source,
            "gates": dict(zip(card.experts, map(float, scores.gates.mean(axis=0)), strict=True)),
            "view_probabilities": views,
            "view_spread": max(views.values()) - min(views.values()),
            "interval": (min(views.values()), max(views.values())),
        }
    )


def judge_stability(report: ImageReport, others: Sequence[Scores], card: ModelCard) -> ImageReport:
    """`report` with the stability check; a verdict that a re-encoding changes becomes `uncertain`.

    Args:
        report: already judged.
        others: scores of the views of each of `stability.REENCODINGS`, in their order.
        card: of the model that gave the scores.
    """
    assert report.probability is not None and report.verdict is not None and report.interval is not None
    shorter = min(report.width or 0, report.height or 0)
    values = [calibrate(float(_margins(scores).mean()), card) for scores in others]
    own = (report.probability, verdict(report.probability, shorter, card))
    # The size that counts is the picture's own, not that of a copy made for the check.
    stability = compare(own, [(value, verdict(value, shorter, card)) for value in values])
    low, high = report.interval
    update: dict[str, object] = {"stability": stability, "interval": (min(low, *values), max(high, *values))}
    if report.verdict == "out_of_scope":
        return report.model_copy(update=update)
    if stability.flips and report.verdict != "uncertain":
        said = explain_flips(stability, report.verdict)
        return report.model_copy(update=update | {"verdict": "uncertain", "reasons": (*report.reasons, said)})
    steady = () if stability.flips else (explain_steadiness(stability),)
    return report.model_copy(update=update | {"reasons": (*report.reasons, *steady)})


def _margins(scores: Scores) -> NDArray[np.float64]:
    return (scores.logits[:, 1] - scores.logits[:, 0]).astype(np.float64)


def calibrate(margin: float, card: ModelCard) -> float:
    """Probability of AI from the AI-minus-real logit, by the card's temperature and bias."""
    return 0.5 * (1.0 + math.tanh(0.5 * (margin + card.bias) / card.temperature))


def verdict(probability: float, shorter_side_px: int, card: ModelCard) -> Verdict:
    """The verdict by score and size; a picture below the card's minimum side is always `out_of_scope`."""
    if shorter_side_px < card.min_side_px:
        return "out_of_scope"
    if probability >= card.thresholds.ai:
        return "ai"
    return "real" if probability <= card.thresholds.real else "uncertain"
