"""Gradient-boosted trees that guess labels from header features, judged on what they have not seen.

The mathematics of `mirage.bias.audit`: no files, no shards. Letters: N pictures, F features.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np

from mirage.bias.features import CATEGORIES, FEATURE_NAMES
from mirage.extras import need

ABSENT = -1.0  # no feature is negative, so trees can tell absent values from all others
# Trees see no more steps than this. Done here because scikit-learn is slow at it with weights.
BINS = 255
HeldOut = Literal["source", "picture"]


@dataclass(frozen=True)
class Table:
    """Pictures as numbers.

    Attributes:
        features: (N, F) float64, `ABSENT` where a format has no such fact; a column with more than
            `BINS` values holds their ranks, so many to a rank that `BINS` are not exceeded.
        labels: (N,) int, 1 = ai.
        sources: (N,) str.
        weights: (N,) float64, such that both labels weigh the same, and within a label all its sources.
    """

    features: np.ndarray
    labels: np.ndarray
    sources: np.ndarray
    weights: np.ndarray


class Fold(NamedTuple):
    """Trees grown without the rows they are judged on; None when the rest holds one label only."""

    trees: Any
    held_out: np.ndarray


def tabulate(features: np.ndarray, labels: np.ndarray, sources: np.ndarray) -> Table:
    """The table of (N, F) features with NaN where absent, (N,) labels and (N,) sources, weights added."""
    weights = np.ones(len(labels))
    for label in np.unique(labels):
        chosen = labels == label
        names, places, counts = np.unique(sources[chosen], return_inverse=True, return_counts=True)
        weights[chosen] = 1 / (len(names) * counts[places])
    columns = [_binned(column) for column in np.nan_to_num(features, nan=ABSENT).T]
    return Table(np.stack(columns, axis=1), labels, sources, weights / weights.mean())


def _binned(column: np.ndarray) -> np.ndarray:
    if len(np.unique(column)) <= BINS:
        return column
    edges = np.unique(np.quantile(column, np.linspace(0, 1, BINS)[1:-1]))
    return np.searchsorted(edges, column, side="right").astype(float)


def grow(table: Table, held_out: HeldOut, folds: int, trees: int, seed: int) -> list[Fold]:
    """One fold after another with its trees; `seed` deals sources or pictures into folds.

    Args:
        table: N pictures.
        held_out: whether whole sources or single pictures are kept from the trees.
        folds: at most the number of sources of the label that has fewer, if sources are held out.
        trees: per fold.
        seed: 0 or more.
    """
    selection, ensemble = need("sklearn.model_selection"), need("sklearn.ensemble")
    dealers = {"source": selection.StratifiedGroupKFold, "picture": selection.StratifiedKFold}
    dealer = dealers[held_out](folds, shuffle=True, random_state=seed)
    groups = table.sources if held_out == "source" else None
    forest = ensemble.HistGradientBoostingClassifier(
        max_iter=trees,
        max_leaf_nodes=15,
        l2_regularization=1.0,
        early_stopping=False,
        categorical_features=[FEATURE_NAMES.index(name) for name in CATEGORIES],
        random_state=seed,
    )
    return [
        Fold(_fitted(forest, table, table.features, kept), judged)
        for kept, judged in dealer.split(table.features, table.labels, groups)
    ]


def _fitted(model: Any, table: Table, features: np.ndarray, rows: np.ndarray) -> Any:
    if len(np.unique(table.labels[rows])) < 2:
        return None
    return need("sklearn.base").clone(model).fit(features[rows], table.labels[rows], table.weights[rows])


def score(features: np.ndarray, folds: Sequence[Fold]) -> np.ndarray:
    """(N,) probability of "ai" of every row of (N, F) `features`, from the trees that have not seen it."""
    scores = np.full(len(features), 0.5)
    for trees, held_out in folds:
        if trees is not None:
            scores[held_out] = trees.predict_proba(features[held_out])[:, 1]
    return scores


def auc(table: Table, scores: np.ndarray, *, macro: bool) -> float:
    """How well (N,) `scores` rank AI above real; `macro` lets every source count the same."""
    weights = table.weights if macro else None
    return float(need("sklearn.metrics").roc_auc_score(table.labels, scores, sample_weight=weights))


def auc_shuffled(table: Table, folds: Sequence[Fold], place: int, seed: int) -> float:
    """The macro AUC of grown trees once the values of one feature are dealt to other pictures."""
    features = table.features.copy()
    features[:, place] = np.random.default_rng(seed).permutation(features[:, place])
    return auc(table, score(features, folds), macro=True)


def auc_alone(table: Table, folds: Sequence[Fold], place: int, seed: int) -> float:
    """The macro AUC, on the same held-out rows, of a small tree that sees one feature only."""
    classifier = need("sklearn.tree").DecisionTreeClassifier
    tree = classifier(max_leaf_nodes=16, min_samples_leaf=20, random_state=seed)
    column = table.features[:, [place]]
    everything = np.arange(len(column))
    alone = [
        Fold(_fitted(tree, table, column, np.delete(everything, held_out)), held_out) for _, held_out in folds
    ]
    return auc(table, score(column, alone), macro=True)
