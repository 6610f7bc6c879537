"""What Prometheus reads: latency, queue, verdicts, and whether scores drift from what they were."""

import math
import threading
from collections import deque
from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.exposition import generate_latest

from detector.report import ImageReport

BINS = 10
WINDOW = 500  # scores compared; the first so many are what later ones are compared with
LATENCY_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)


class Drift:
    """How far the latest scores are from the first ones, as population stability index.

    Below 0.1 nothing moved, above 0.25 the pictures or the world changed: look at the verdicts.

    Source: Siddiqi 2006, Credit Risk Scorecards, chapter 10. Differs: half a score is added to every
    bin, so that an empty one does not give infinity.
    """

    def __init__(self, window: int = WINDOW) -> None:
        self._first: list[int] = []
        self._latest: deque[int] = deque(maxlen=window)
        self._window = window

    def add(self, probability: float) -> None:
        """Count one score."""
        place = min(BINS - 1, int(probability * BINS))
        if len(self._first) < self._window:
            self._first.append(place)
        else:
            self._latest.append(place)

    def index(self) -> float:
        """The population stability index; NaN until two windows are full."""
        if len(self._latest) < self._window:
            return math.nan
        total = self._window + BINS / 2
        shares = [
            ((self._first.count(place) + 0.5) / total, (self._latest.count(place) + 0.5) / total)
            for place in range(BINS)
        ]
        return sum((now - before) * math.log(now / before) for before, now in shares)


class Metrics:
    """The numbers of one process."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._lock = threading.Lock()
        self._drift = Drift()
        self.requests = Counter(
            "omniaid_requests", "answers", ["route", "method", "status"], registry=self.registry
        )
        self.latency = Histogram(
            "omniaid_request_seconds",
            "time to the answer",
            ["route"],
            buckets=LATENCY_S,
            registry=self.registry,
        )
        self.verdicts = Counter(
            "omniaid_verdicts", "pictures by verdict, or error", ["verdict"], registry=self.registry
        )
        self.cached = Counter(
            "omniaid_cached_reports", "pictures whose report was known", registry=self.registry
        )
        self.scores = Histogram(
            "omniaid_score",
            "probability of AI of scored pictures",
            buckets=[(place + 1) / BINS for place in range(BINS)],
            registry=self.registry,
        )
        self.scoring = Histogram(
            "omniaid_scoring_seconds",
            "decoding and inference of one picture",
            buckets=LATENCY_S,
            registry=self.registry,
        )
        Gauge(
            "omniaid_score_drift", "population stability index of scores", registry=self.registry
        ).set_function(self._drift.index)

    def watch(self, name: str, meaning: str, value: Callable[[], float]) -> None:
        """Publish what `value` gives at the moment of reading."""
        Gauge(f"omniaid_{name}", meaning, registry=self.registry).set_function(value)

    def count(self, report: ImageReport, seconds: float) -> None:
        """Count one picture that was scored just now."""
        self.verdicts.labels(report.verdict or "error").inc()
        self.scoring.observe(seconds)
        if report.probability is not None:
            self.scores.observe(report.probability)
            with self._lock:
                self._drift.add(report.probability)

    def text(self) -> bytes:
        """Everything in Prometheus' text format."""
        return generate_latest(self.registry)
