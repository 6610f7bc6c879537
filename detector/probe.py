"""The linear model on frozen features: the baseline, and the head's initial state."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from detector.model import Head

STRENGTHS = (3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 1e-1)
MAX_WEIGHT = 4.0


class Probe(NamedTuple):
    """sigmoid(weight . (x - center) / scale + bias)."""

    center: NDArray[np.float64]
    scale: NDArray[np.float64]
    weight: NDArray[np.float64]
    bias: float
    strength: float

    def margins(self, features: NDArray[np.float32]) -> NDArray[np.float64]:
        """AI-minus-real score of features (N, F): (N,)."""
        return ((features - self.center) / self.scale) @ self.weight + self.bias

    def load_into(self, head: Head) -> None:
        """Make this probe the state of a head."""
        center, scale, weight = (
            torch.from_numpy(v.astype(np.float32)) for v in (self.center, self.scale, self.weight)
        )
        head.load_probe(center, scale, weight, self.bias)


def balance_weights(groups: Sequence[object]) -> NDArray[np.float64]:
    """One weight per sample so that every group counts alike, at most MAX_WEIGHT, mean one."""
    _, index, counts = np.unique([str(g) for g in groups], return_inverse=True, return_counts=True)
    weights = (len(index) / (len(counts) * counts))[index].clip(max=MAX_WEIGHT)
    return weights / weights.mean()


def fit_probe(
    features: NDArray[np.float32],
    labels: NDArray[np.int64],
    weights: NDArray[np.float64],
    validation: tuple[NDArray[np.float32], NDArray[np.int64]],
) -> Probe:
    """Logistic regression; its regularisation is the best of STRENGTHS by AUROC on `validation`.

    Args:
        features: (N, F).
        labels: (N,) 0 real, 1 AI.
        weights: (N,) sample weights.
        validation: features and labels of sources that are not in the training samples.
    """
    from sklearn.metrics import roc_auc_score

    center, scale = _spread(features)
    scaled = (features - center) / scale
    best: tuple[float, Probe] | None = None
    for strength in STRENGTHS:
        weight, bias = _logistic(scaled, labels, weights, strength)
        probe = Probe(center, scale, weight[0], float(bias[0]), strength)
        score = float(roc_auc_score(validation[1], probe.margins(validation[0])))
        if best is None or score > best[0]:
            best = (score, probe)
    assert best is not None
    return best[1]


def _spread(features: NDArray[np.float32]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Mean and standard deviation (F,) of each column of (N, F), the latter never zero."""
    return features.mean(axis=0, dtype=np.float64), features.std(axis=0, dtype=np.float64) + 1e-6


def _logistic(
    features: NDArray[np.float64], labels: NDArray[np.int64], weights: NDArray[np.float64], strength: float
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    from sklearn.linear_model import LogisticRegression

    model = LogisticRegression(C=strength, max_iter=300, tol=1e-4)
    model.fit(features.astype(np.float32), labels, sample_weight=weights)
    return model.coef_.astype(np.float64), model.intercept_.astype(np.float64)
