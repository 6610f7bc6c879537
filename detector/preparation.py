"""What a training run learns from and is judged on: samples, cached features, probe, domains, predictions."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from detector.card import ARTIFACT
from detector.domain_head import ARTIFACT_PAIR, NO_DOMAIN, index_domains
from detector.evaluate import Prediction, predict, read_predictions, write_predictions
from detector.features import FeatureCache, build_cache, build_evaluation_cache
from detector.model import OmniAID
from detector.phases import TrainingSet, group_views
from detector.probe import Probe, balance_weights, fit_probe
from detector.recipe import TrainRecipe
from detector.samples import (
    DOMAINS_FILE,
    MIXED,
    PictureStore,
    SampleRow,
    choose_both,
    list_samples,
    read_domains,
)

Progress = Callable[[str, int, int], None]
Fit = Callable[..., Probe]
Jobs = list[tuple[SampleRow, str]]


@dataclass(frozen=True)
class Materials:
    """A data set's samples as one recipe takes them, their bytes, and the folder of cached features.

    Attributes:
        splits: rows of train, calibration and devtest.
        told: domain by key, from `omniaid domains`; a mixed picture not in it is labelled by the head.
    """

    recipe: TrainRecipe
    splits: Mapping[str, list[SampleRow]]
    store: PictureStore
    run: Path
    told: Mapping[str, str]
    on_progress: Progress

    @classmethod
    def gather(cls, recipe: TrainRecipe, data: Path, run: Path, on_progress: Progress) -> "Materials":
        """The samples of the data set at `data`.

        Raises:
            RecipeError: the data set lacks a split or a class.
        """
        splits = _splits(recipe, data)
        used = [row for rows in splits.values() for row in rows]
        store = PictureStore(data, sorted({row.shard for row in used}))
        return cls(recipe, splits, store, run, read_domains(data), on_progress)

    def serve(self, recipe: TrainRecipe, data: Path) -> "Materials":
        """The materials of another recipe on the same data, which is read again only for other caps."""
        if recipe.samples.caps == self.recipe.samples.caps:
            return replace(self, recipe=recipe)
        return self.gather(recipe, data, self.run, self.on_progress)

    def training_caches(self, model: OmniAID) -> dict[str, FeatureCache]:
        """Features of augmented views of the train split, and of the calibration split to choose by."""
        samples, caches = self.recipe.samples, {}
        seed = self.recipe.seed if samples.seed is None else samples.seed
        for name in ("calibration", "train"):
            caches[name] = build_cache(
                *(model, self.splits[name], self.store, self.run / f"features-{name}"),
                self.recipe.preprocessing,
                seed=seed,
                draws=samples.draws,
                on_progress=self._reporter(f"features of {name}", len(self.splits[name])),
            )
        return caches

    def views(self, name: str) -> list[SampleRow]:
        """The row of every cached view of a split, with the domain that the recipe's model has for it."""
        merged = self.recipe.merged_domains
        rows = [replace(row, domain=merged.get(row.domain, row.domain)) for row in self.splits[name]]
        return [row for row in rows for _ in range(self.recipe.samples.draws)]

    def jobs(self, name: str) -> Jobs:
        """What a split is judged on: every devtest picture in every tier, calibration ones in turns."""
        tiers = self.recipe.tiers
        if name == "devtest":
            return [(row, tier) for tier in tiers for row in self.splits[name]]
        rows = [row for row in self.splits[name] if row.pair is None]
        return [(row, tiers[place % len(tiers)]) for place, row in enumerate(rows)]

    def predictions(self, name: str, model: OmniAID, probe: Probe, path: Path) -> list[Prediction]:
        """Predictions for `jobs(name)`, read from `path` or made and stored there."""
        if not path.exists():
            jobs = self.jobs(name)
            cache = build_evaluation_cache(
                *(model, jobs, self.store, self.run / f"features-{name}-tiers", self.recipe.preprocessing),
                on_progress=self._reporter(f"features of {name}, all tiers", len(jobs)),
            )
            report = self._reporter(f"predictions of {name}", len(jobs))
            write_predictions(predict(model.eval(), probe, jobs, cache, report), path)
        return read_predictions(path)

    def _reporter(self, name: str, total: int) -> Callable[[int], None]:
        return lambda done: self.on_progress(name, done, total)


def teach(
    materials: Materials, caches: Mapping[str, FeatureCache], fit: Fit = fit_probe
) -> tuple[TrainingSet, Probe, dict[str, Any]]:
    """The training set with domain labels, the linear probe, and what the card says of both.

    Args:
        materials: of the run.
        caches: as `Materials.training_caches` gives them.
        fit: fits the probe; several recipes on the same features can share one that remembers.
    """
    recipe, train, held_out = materials.recipe, materials.views("train"), materials.views("calibration")
    labels = _labels(train)
    told = {key: recipe.merged_domains.get(name, name) for key, name in materials.told.items()}
    domains = index_domains(caches["train"].frozen, train, told, recipe.model.domains)
    groups = list(zip(domains.tolist(), labels.tolist(), strict=True))
    validation = (np.asarray(caches["calibration"].frozen), _labels(held_out))
    weights = balance_weights(group_views(labels, domains, recipe))
    probe = fit(np.asarray(caches["train"].frozen), labels, weights, validation)
    named = {**dict(enumerate(recipe.model.domains)), ARTIFACT_PAIR: ARTIFACT, NO_DOMAIN: MIXED}
    facts = {
        "probe_strength": probe.strength,
        "views_per_expert": {
            f"{named[d]} / {('real', 'ai')[c]}": n for (d, c), n in sorted(Counter(groups).items())
        },
        "domains_from": dict(sorted(Counter(_origin(row, told, recipe) for row in train).items())),
    }
    return TrainingSet(caches["train"], labels, domains), probe, facts


def _splits(recipe: TrainRecipe, data: Path) -> dict[str, list[SampleRow]]:
    rows = list_samples(data)
    return {name: choose_both(rows, name, cap, data) for name, cap in recipe.samples.caps.items()}


def _origin(row: SampleRow, told: Mapping[str, str], recipe: TrainRecipe) -> str:
    """Who decided on a picture's domain, or that it stays `mixed`."""
    if row.domain in recipe.model.expert_names:
        return "recipe"
    return DOMAINS_FILE if row.key in told else "head"


def _labels(rows: Sequence[SampleRow]) -> NDArray[np.int64]:
    return np.array([row.label for row in rows], dtype=np.int64)
