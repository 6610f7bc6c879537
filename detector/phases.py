"""What is trained one after another on cached features: experts, router, or all at once.

Source: OmniAID (arXiv 2511.08423) and its released implementation.
Differs: samples are weighted so that both classes count alike within a domain; augmentation is drawn
once per view.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from detector.errors import RecipeError
from detector.features import FeatureCache
from detector.model import OmniAID
from detector.probe import balance_weights
from detector.recipe import StageConfig, TrainRecipe
from detector.vit import SharedTokens
from moe_core.losses import balance_loss, gate_loss, orthogonality_loss

Index = NDArray[np.int64]
Loss = Callable[[Index, Tensor], tuple[Tensor, dict[str, float]]]
ROUTER_SEED, WHOLE_SEED = 100, 200


@dataclass(frozen=True)
class TrainingSet:
    """What all phases learn from; every array has one entry per cached view.

    Attributes:
        labels: (N,) 0 real, 1 AI.
        domains: (N,) index of the semantic domain, which the router is taught; -1 for artifact pairs, -2
            for pictures whose domain is not known: they train the router's stage and no expert.
    """

    cache: FeatureCache
    labels: NDArray[np.int64]
    domains: NDArray[np.int64]


@dataclass
class Phase:
    """One optimiser's life: an expert of stage 1, stage 2, or everything at once."""

    name: str
    stage: StageConfig
    index: Index
    loss: Loss
    parameters: list[nn.Parameter]
    head: list[nn.Parameter]
    seed: int
    weights: Tensor = field(default_factory=lambda: torch.zeros(0))

    @property
    def steps(self) -> int:
        """Optimiser steps in all epochs; the last batch of an epoch may be smaller."""
        return self.stage.epochs * math.ceil(len(self.index) / self.stage.batch)

    def batch(self, step: int) -> Index:
        """Sample numbers of one step: a permutation of the phase's samples for each epoch."""
        per_epoch = math.ceil(len(self.index) / self.stage.batch)
        epoch, place = divmod(step, per_epoch)
        order = np.random.default_rng([self.seed, epoch]).permutation(self.index)
        return np.sort(order[place * self.stage.batch : (place + 1) * self.stage.batch])


def group_views(labels: Index, domains: Index, recipe: TrainRecipe) -> list[object]:
    """The group of every view (N,), of those that the recipe wants to count alike."""
    if recipe.samples.balance == "label":
        return labels.tolist()
    return list(zip(domains.tolist(), labels.tolist(), strict=True))


class Phases:
    """The phases of one recipe over one model and training set."""

    def __init__(self, model: OmniAID, data: TrainingSet, recipe: TrainRecipe) -> None:
        self.model, self.data, self.recipe = model, data, recipe

    def __iter__(self) -> Iterator[Phase]:
        """The phases in order.

        Raises:
            RecipeError: an expert has no pictures of one class.
        """
        return PLANS[self.recipe.scheme](self)

    def two_stage(self) -> Iterator[Phase]:
        """The paper's order: every expert on its own domain, then the router on everything."""
        yield from self.experts_only()
        yield self._router()

    def experts_only(self) -> Iterator[Phase]:
        """Stage 1 alone; gates stay uniform over the semantic experts."""
        names = self.model.config.expert_names
        trained = names if self.model.config.artifact_gate else names[:-1]
        for expert, name in enumerate(trained):
            artifact = expert == len(names) - 1
            index = np.flatnonzero(self.data.domains == (-1 if artifact else expert))
            if len(np.unique(self.data.labels[index])) < 2:
                raise RecipeError(f"expert {name!r} has no training pictures of one class; both are needed")
            yield self._expert(expert, name, index)

    def joint(self) -> Iterator[Phase]:
        """A standard mixture of experts: experts, router and head at once, no domain is taught."""
        yield self._whole("joint", self.recipe.experts, [*self._factors(), *self.model.router.parameters()])

    def dense(self) -> Iterator[Phase]:
        """The first expert alone, always on, trained on everything: an ordinary adapter, no mixture."""
        index = np.arange(len(self.data.labels))
        yield self._expert(0, "dense", index)

    def _expert(self, expert: int, name: str, index: Index) -> Phase:
        """Stage 1: hard-sampled pictures of one domain train one expert and a fresh head."""
        config, layers = self.model.config, self.model.expert_layers()
        earlier = tuple(range(expert)) if name in config.domains else ()
        gate = F.one_hot(torch.tensor(expert), len(config.expert_names)).float()
        apart = config.experts.kind == "svd"

        def loss(batch: Index, weights: Tensor) -> tuple[Tensor, dict[str, float]]:
            features = self.model.trunk.finish(self.data.cache.shared(batch), gate.expand(len(batch), -1))
            decision = self._decision(self.model.head(features), batch, weights)
            overlap = orthogonality_loss(layers, expert, earlier) if apart else decision.new_zeros(())
            total = decision + self.recipe.losses.orthogonality * overlap
            return total, {"decision": float(decision.detach()), "orthogonality": float(overlap.detach())}

        weights = balance_weights(self.data.labels[index].tolist())
        named = "dense" if name == "dense" else f"expert-{name}"
        return self._phase(named, self.recipe.experts, index, loss, self._factors(), 1 + expert, weights)

    def _router(self) -> Phase:
        """Stage 2: merged experts stay as they are; router and a fresh head train on everything."""
        return self._whole("router", self.recipe.router, list(self.model.router.parameters()))

    def _whole(self, name: str, stage: StageConfig, parameters: list[nn.Parameter]) -> Phase:
        """A phase on everything through the router's gates."""
        taught = self.recipe.scheme != "joint"

        def loss(batch: Index, weights: Tensor) -> tuple[Tensor, dict[str, float]]:
            led, read = self._read_router(batch)
            router_logits, routing, gates = self.model.route_features(read)
            logits = self.model.head(self.model.trunk.finish(led, gates))
            parts = {
                "decision": self._decision(logits, batch, weights),
                "balance": balance_loss(router_logits, routing),
                "gate": gate_loss(router_logits, torch.from_numpy(self.data.domains[batch])),
            }
            losses = self.recipe.losses
            total = parts["decision"] + losses.balance * parts["balance"]
            total = total + losses.gate * parts["gate"] if taught else total
            return total, {part: float(value.detach()) for part, value in parts.items()}

        groups = group_views(self.data.labels, self.data.domains, self.recipe)
        index, seed = np.arange(len(self.data.labels)), WHOLE_SEED if name == "joint" else ROUTER_SEED
        return self._phase(name, stage, index, loss, parameters, seed, balance_weights(groups))

    def _read_router(self, batch: Index) -> tuple[SharedTokens, Tensor]:
        """As `OmniAID.read_router`; what the two-pass router reads is in the cache already."""
        shared = self.data.cache.shared(batch)
        if self.model.two_pass:
            return shared, self.data.cache.features(batch)
        return self.model.read_router(shared)

    def _factors(self) -> list[nn.Parameter]:
        layers = self.model.expert_layers()
        return [p for layer in layers for p in (layer.u, layer.s, layer.v) if p.requires_grad]

    def _phase(
        self,
        name: str,
        stage: StageConfig,
        index: Index,
        loss: Loss,
        parameters: list[nn.Parameter],
        offset: int,
        weights: NDArray[np.float64],
    ) -> Phase:
        spread = np.zeros(len(self.data.labels))
        spread[index] = weights
        head = list(self.model.head.linear.parameters())
        seed = self.recipe.seed * 1000 + offset
        return Phase(name, stage, index, loss, parameters, head, seed, torch.from_numpy(spread).float())

    def _decision(self, logits: Tensor, batch: Index, weights: Tensor) -> Tensor:
        labels = torch.from_numpy(self.data.labels[batch])
        smoothing = self.recipe.losses.label_smoothing
        each = F.cross_entropy(logits, labels, reduction="none", label_smoothing=smoothing)
        return (each * weights).mean()


PLANS: dict[str, Callable[[Phases], Iterator[Phase]]] = {
    "two-stage": Phases.two_stage,
    "experts-only": Phases.experts_only,
    "joint": Phases.joint,
    "dense": Phases.dense,
}
