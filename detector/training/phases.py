"""The phases of a run, in order: which pictures each learns from, what it minimises, and what judges it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from detector.card import ARTIFACT
from detector.domain_head import ARTIFACT_PAIR, NO_DOMAIN
from detector.errors import RecipeError
from detector.model import OmniAID
from detector.recipe import StageConfig, TrainRecipe
from detector.samples import MIXED, SampleRow
from detector.training.config import Balance, StreamedTraining
from detector.training.objectives import ExpertObjective, JointObjective, Objective, RouterObjective
from detector.training.plan import Plan, make_plan

LABEL_NAMES = ("real", "ai")
ROUTER_NUMBER, JOINT_NUMBER = 100, 200


@dataclass(frozen=True)
class Samples:
    """The rows of one split as training sees them.

    Attributes:
        rows: in stored order.
        domains: (N,) index of the semantic domain; ARTIFACT_PAIR, or NO_DOMAIN where it is not known.
    """

    rows: Sequence[SampleRow]
    domains: NDArray[np.int64]

    def of(self, domain: int) -> NDArray[np.bool_]:
        """(N,) which of them belong to a domain."""
        return self.domains == domain


@dataclass(frozen=True)
class Phase:
    """One optimiser's life.

    Attributes:
        name: `expert-DOMAIN`, `router` or `joint`.
        stage: epochs, batch and rates.
        plan: what it sees.
        number: tells the phases' random draws apart.
        judged: (N,) which pictures of the early-stopping split decide when it ends.
        make: its objective on a model.
    """

    name: str
    stage: StageConfig
    plan: Plan
    number: int
    judged: NDArray[np.bool_]
    make: Callable[[OmniAID], Objective]

    @property
    def epoch_steps(self) -> int:
        """Optimiser steps in one epoch."""
        return self.plan.epoch_pictures // self.stage.batch

    @property
    def steps(self) -> int:
        """Optimiser steps in all epochs."""
        return self.stage.epochs * self.epoch_steps


def index_rows(rows: Sequence[SampleRow], told: Mapping[str, str], recipe: TrainRecipe) -> Samples:
    """The rows with the gate each belongs to: the data recipe's, else what `omniaid domains` told.

    Args:
        rows: of one split.
        told: domain by key, for rows whose recipe names none.
        recipe: names the experts, and the domains that count as another.
    """
    numbers = {name: index for index, name in enumerate(recipe.model.domains)} | {ARTIFACT: ARTIFACT_PAIR}
    merged = recipe.merged_domains
    named = [merged.get(row.domain, row.domain) for row in rows]
    named = [
        name if name in numbers else merged.get(domain := told.get(row.key, MIXED), domain)
        for name, row in zip(named, rows, strict=True)
    ]
    return Samples(rows, np.array([numbers.get(name, NO_DOMAIN) for name in named], dtype=np.int64))


def list_phases(
    recipe: TrainRecipe, settings: StreamedTraining, train: Samples, judges: Samples | None
) -> list[Phase]:
    """Every phase of a run.

    Args:
        recipe: stages and losses.
        settings: lanes and the balance of groups.
        train: pictures to learn from.
        judges: pictures of the early-stopping split, if there is early stopping.

    Raises:
        RecipeError: an expert has no pictures of one class.
    """
    maker = _Maker(recipe, settings, train, judges)
    if settings.stages == "end-to-end":
        return [maker.union("joint", JOINT_NUMBER, recipe.experts, JointObjective)]
    # An artifact expert whose gate is zero never acts.
    trained = recipe.model.expert_names if recipe.model.artifact_gate else recipe.model.domains
    experts = [maker.expert(expert, name) for expert, name in enumerate(trained)]
    return [*experts, maker.union("router", ROUTER_NUMBER, recipe.router, RouterObjective)]


class _Maker:
    """Makes the phases of one run."""

    def __init__(
        self, recipe: TrainRecipe, settings: StreamedTraining, train: Samples, judges: Samples | None
    ) -> None:
        self.recipe, self.settings, self.train = recipe, settings, train
        self.judged = Samples((), np.zeros(0, np.int64)) if judges is None else judges

    def expert(self, expert: int, name: str) -> Phase:
        """Stage 1 of one expert: pictures of its own domain."""
        domain = ARTIFACT_PAIR if expert == len(self.recipe.model.domains) else expert
        members, losses = self.train.of(domain), self.recipe.losses
        labels = {row.label for row, member in zip(self.train.rows, members, strict=True) if member}
        if len(labels) < 2:
            raise RecipeError(f"expert {name!r} has no training pictures of one class; both are needed")
        by = "none" if self.settings.balance.by == "none" else "label"
        plan = self._plan(members, self.recipe.experts, by, 1 + expert)
        return Phase(
            f"expert-{name}",
            self.recipe.experts,
            plan,
            1 + expert,
            self.judged.of(domain),
            lambda model: ExpertObjective(model, losses, expert),
        )

    def union(self, name: str, number: int, stage: StageConfig, objective: Callable[..., Objective]) -> Phase:
        """A phase that sees everything."""
        everything, losses = np.ones(len(self.train.rows), bool), self.recipe.losses
        plan = self._plan(everything, stage, self.settings.balance.by, number)
        judged = np.ones(len(self.judged.rows), bool)
        return Phase(name, stage, plan, number, judged, lambda model: objective(model, losses))

    def _plan(self, members: NDArray[np.bool_], stage: StageConfig, by: str, number: int) -> Plan:
        names = self._groups(by)
        groups = [name if member else None for name, member in zip(names, members, strict=True)]
        there, settings = set(groups), self.settings
        known = set(self._groups(settings.balance.by)) | set(LABEL_NAMES)
        unknown = sorted(set(settings.balance.weights) - known)
        if unknown:
            raise RecipeError(
                f"streamed.balance.weights names group {unknown[0]!r}; there are {', '.join(sorted(known))}"
            )
        weights = {name: weight for name, weight in settings.balance.weights.items() if name in there}
        return make_plan(
            [row.shard for row in self.train.rows],
            groups,
            Balance(weights=weights, max_repeat=settings.balance.max_repeat),
            batch=stage.batch,
            micro_batch=settings.micro_batch,
            lanes=settings.lanes,
            seed=self.recipe.seed * 1000 + number,
        )

    def _groups(self, by: str) -> list[str]:
        """The name of every training picture's group."""
        names = {
            **dict(enumerate(self.recipe.model.expert_names)),
            ARTIFACT_PAIR: ARTIFACT,
            NO_DOMAIN: MIXED,
        }
        parts = {
            "none": lambda row, domain: "all",
            "label": lambda row, domain: LABEL_NAMES[row.label],
            "domain-and-label": lambda row, domain: f"{names[domain]}/{LABEL_NAMES[row.label]}",
        }[by]
        return [
            parts(row, int(domain)) for row, domain in zip(self.train.rows, self.train.domains, strict=True)
        ]
