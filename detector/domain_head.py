"""The domain head: logistic regression from the frozen backbone's features to a picture's semantic domain."""

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from detector.card import ARTIFACT
from detector.errors import RecipeError
from detector.samples import PictureStore, SampleRow
from detector.threads import available_threads

if TYPE_CHECKING:
    from detector.recipe import TrainRecipe

STRENGTH = 1e-3
# Few big folds make the measured accuracy depend on which sources happen to share one.
FOLDS = 10
CONFIDENCE = 0.5
# What takes a gate's place for pictures that belong to no semantic expert.
ARTIFACT_PAIR, NO_DOMAIN = -1, -2


@dataclass(frozen=True)
class DomainHead:
    """softmax(model / temperature) over the domains the model was taught; all others get zero.

    Attributes:
        model: scikit-learn pipeline, standardisation and logistic regression.
        domains: how many domains there are (D), taught or not.
        temperature: divides the logits, so that a probability says how often it is right.
    """

    model: Any
    domains: int
    temperature: float = 1.0

    def scores(self, features: NDArray[np.float32]) -> NDArray[np.float64]:
        """Logits (N, D) for features (N, F); minus infinity for a domain the model was not taught."""
        taught = self.model.decision_function(features).astype(np.float64)
        if taught.ndim == 1:  # of two classes scikit-learn gives the log odds of the second
            taught = np.stack([-taught / 2, taught / 2], axis=1)
        scores = np.full((len(features), self.domains), -np.inf)
        scores[:, self.model.classes_] = taught
        return scores

    def probabilities(self, features: NDArray[np.float32]) -> NDArray[np.float64]:
        """(N, D), rows sum to one."""
        return softmax(self.scores(features) / self.temperature)


def fit_head(
    features: NDArray[np.float32], labels: NDArray[np.int64], sources: NDArray[np.str_], domains: int
) -> DomainHead:
    """A head taught by all samples given: every domain counts alike, and within it every source.

    Args:
        features: (N, F) frozen features.
        labels: (N,) domain, at least two different ones.
        sources: (N,) names.
        domains: how many domains there are.
    """
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    model = make_pipeline(StandardScaler(), LogisticRegression(C=STRENGTH, max_iter=300, tol=1e-4))
    model.fit(features, labels, logisticregression__sample_weight=balance_sources(labels, sources))
    return DomainHead(model, domains)


class Fitted(NamedTuple):
    """A head and what it is worth.

    Attributes:
        head: fitted on every teaching picture.
        held_out: (N, D) probabilities of every known picture by a head that saw no picture of its
            source; NaN where no other source teaches the picture's domain, and for unknown pictures.
        folds: how many heads judged.
    """

    head: DomainHead
    held_out: NDArray[np.float64]
    folds: int


def cross_fit(
    features: NDArray[np.float32],
    labels: NDArray[np.int64],
    sources: Sequence[str],
    domains: int,
    *,
    teaches: NDArray[np.bool_],
    seed: int,
) -> Fitted:
    """The head taught by the pictures of known domain, with its leave-source-out probabilities.

    The temperature is the one that suits the held-out scores best.

    Args:
        features: (N, F) frozen features.
        labels: (N,) domain, negative where unknown.
        sources: the N names of the sources; pictures of one source are never on both sides of a fold.
        domains: how many domains there are.
        teaches: (N,) which known pictures may teach; the others are only judged.
        seed: decides which sources share a fold.

    Raises:
        RecipeError: fewer than two domains have a picture that may teach.
    """
    groups, known = np.asarray(sources), labels >= 0
    taught = known & teaches
    if len(np.unique(labels[taught])) < 2:
        raise RecipeError(
            "a domain head needs training pictures of at least two known domains, "
            f"and there are {len(np.unique(labels[taught]))}"
        )
    scores = np.full((len(labels), domains), np.nan)
    folds = _folds(labels[known], groups[known], seed)
    for fold in folds:
        held = known & np.isin(groups, fold)
        others = taught & ~held
        present = np.unique(labels[others])
        judged = held & np.isin(labels, present)
        if len(present) > 1 and judged.any():
            head = fit_head(features[others], labels[others], groups[others], domains)
            scores[judged] = head.scores(features[judged])
    judged = ~np.isnan(scores).any(axis=1)
    temperature = _temperature(scores[judged], labels[judged], groups[judged])
    head = fit_head(features[taught], labels[taught], groups[taught], domains)
    return Fitted(replace(head, temperature=temperature), softmax(scores / temperature), len(folds))


def judge_rows(
    features: NDArray[np.float32], rows: Sequence[SampleRow], domains: Sequence[str], *, seed: int
) -> tuple[NDArray[np.float64], dict[str, Any]]:
    """Probabilities (N, D) and facts about the head: held-out for known rows, the whole head's for others.

    Only the train split teaches, so that nothing in the other splits shapes a training label.

    Args:
        features: (N, F) frozen features.
        rows: the N samples; their domain is the recipe's.
        domains: names of the semantic domains.
        seed: of the folds.

    Raises:
        RecipeError: fewer than two domains have a training picture.
    """
    places = {name: number for number, name in enumerate(domains)}
    known = np.array([places.get(row.domain, NO_DOMAIN) for row in rows], dtype=np.int64)
    teaches = np.array([row.split == "train" for row in rows], dtype=bool)
    sources = [row.source for row in rows]
    head, held_out, folds = cross_fit(features, known, sources, len(domains), teaches=teaches, seed=seed)
    taught = teaches & (known >= 0)
    facts = {
        "temperature": round(head.temperature, 4),
        "taught_by": {"pictures": int(taught.sum()), "sources": len(set(np.array(sources)[taught]))},
        "folds": folds,
        "judged": "pictures of known domain, by a head that saw no picture of their source",
    }
    return np.where(known[:, None] < 0, head.probabilities(features), held_out), facts


def index_domains(
    features: NDArray[np.float32],
    rows: Sequence[SampleRow],
    told: Mapping[str, str],
    domains: Sequence[str],
) -> NDArray[np.int64]:
    """Gate index of every row's domain: the recipe's where it names one, else what was told, else the head's.

    Rows that the recipe calls `artifact` get ARTIFACT_PAIR, rows told to be `mixed` NO_DOMAIN. Where
    nothing was told the head's likeliest domain counts however unsure it is: experts need pictures.

    Args:
        features: (N, F) frozen features.
        rows: the N samples; those whose recipe names a domain teach the head.
        told: domain by key, for rows whose recipe names none; need not hold every row.
        domains: names of the semantic domains, in gate order.
    """
    places = {name: number for number, name in enumerate(domains)} | {ARTIFACT: ARTIFACT_PAIR}
    names = [row.domain if row.domain in places else told.get(row.key) for row in rows]
    index = np.array([places.get(name or "", NO_DOMAIN) for name in names], dtype=np.int64)
    untold = np.array([name is None for name in names])
    taught = np.array([row.domain in domains for row in rows])
    if untold.any() and len(np.unique(index[taught])) > 1:
        sources = np.array([row.source for row in rows])
        head = fit_head(features[taught], index[taught], sources[taught], len(domains))
        index[untold] = head.scores(features[untold]).argmax(axis=1)
    return index


def frozen_features(
    data: Path,
    splits: Mapping[str, Sequence[SampleRow]],
    recipe: "TrainRecipe",
    cache: Path,
    on_progress: Callable[[str, int, int], None],
) -> tuple[NDArray[np.float32], str]:
    """Features (N, F) of all rows, split after split, and the digest of the backbone's weights.

    They are those that training caches: of each picture the first view, after one draw of degradations.

    Args:
        data: the data set that holds the rows' shards.
        splits: rows by the name of their split.
        recipe: backbone, views and seed.
        cache: folder with a sub-folder `features-<split>` each, as in a run folder; continued or made.
        on_progress: called with the step's name, how much is done, and of how much.
    """
    import torch

    from detector.backbones import load_backbone
    from detector.features import build_cache
    from detector.model import build_model
    from detector.zero_shot import tensor_digest

    torch.set_num_threads(recipe.threads or available_threads())
    backbone = load_backbone(recipe.model.backbone)
    model = build_model(recipe.model, seed=recipe.seed, backbone=backbone)
    parts = []
    for name, rows in splits.items():
        store = PictureStore(data, sorted({row.shard for row in rows}))
        report = partial(_report, on_progress, f"features of {name}", len(rows))
        place, draws = cache / f"features-{name}", recipe.samples.draws
        built = build_cache(
            *(model, rows, store, place, recipe.preprocessing),
            seed=recipe.seed,
            draws=draws,
            on_progress=report,
        )
        parts.append(np.asarray(built.frozen)[::draws])
    return np.concatenate(parts), tensor_digest(backbone[1])


def _report(on_progress: Callable[[str, int, int], None], step: str, total: int, done: int) -> None:
    on_progress(step, done, total)


def balance_sources(labels: NDArray[np.int64], sources: NDArray[np.str_]) -> NDArray[np.float64]:
    """One weight per sample, mean one: domains count alike, and within each its sources, up to a cap."""
    from detector.probe import balance_weights

    weights = np.empty(len(labels))
    for domain in np.unique(labels):
        members = labels == domain
        weights[members] = balance_weights(sources[members].tolist()) / members.sum()
    return weights / weights.mean()


def softmax(scores: NDArray[np.float64]) -> NDArray[np.float64]:
    """Probabilities (N, D) of scores (N, D)."""
    shifted = np.exp(scores - scores.max(axis=1, keepdims=True))
    return shifted / shifted.sum(axis=1, keepdims=True)


def _folds(labels: NDArray[np.int64], groups: NDArray[np.str_], seed: int) -> list[NDArray[np.str_]]:
    """Sources by fold, domains spread over the folds as evenly as whole sources allow."""
    from sklearn.model_selection import StratifiedGroupKFold

    number = min(FOLDS, len(np.unique(groups)), int(np.bincount(labels).max()))
    if number < 2:
        return []
    folds = StratifiedGroupKFold(number, shuffle=True, random_state=seed)
    with warnings.catch_warnings():
        # A domain of fewer pictures than folds is in some folds only, and judged all the same.
        warnings.filterwarnings("ignore", "The least populated class", UserWarning)
        return [np.unique(groups[held]) for _, held in folds.split(labels, labels, groups)]


def _temperature(scores: NDArray[np.float64], labels: NDArray[np.int64], sources: NDArray[np.str_]) -> float:
    """The temperature with the smallest cross-entropy; 1 without scores. Source: Guo et al. 2017."""
    from scipy.optimize import minimize_scalar

    if not len(labels):
        return 1.0
    weights = balance_sources(labels, sources)

    def loss(log_temperature: float) -> float:
        right = softmax(scores / np.exp(log_temperature))[np.arange(len(labels)), labels]
        return float(-(weights * np.log(right.clip(1e-12))).mean())

    return float(np.exp(minimize_scalar(loss, bounds=(-3.0, 4.0), method="bounded").x))
