"""What each phase minimises: one forward pass from pixels to the parts of its loss."""

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from detector.model import OmniAID
from detector.recipe import LossWeights
from moe_core.experts import LowRankExperts
from moe_core.losses import balance_loss, gate_loss, joint_orthogonality_loss, orthogonality_loss

Parts = dict[str, Tensor]


class Objective(nn.Module):
    """A phase's trainable parameters, its pass through the model, and its loss.

    A module of its own, so that what wraps it for many devices sees every gradient.

    Attributes:
        parts: names of the parts of the loss besides the decision's, in order.
    """

    parts: tuple[str, ...] = ()

    def __init__(self, model: OmniAID, losses: LossWeights) -> None:
        super().__init__()
        self.model, self.losses = model, losses
        self.layers = reached_layers(model)
        self.model.requires_grad_(False)
        self.model.head.linear.requires_grad_(True)
        for parameter in self.taught():
            parameter.requires_grad_(True)

    def taught(self) -> Sequence[nn.Parameter]:
        """What learns besides the head."""
        raise NotImplementedError

    def logits(self, pixels: Tensor) -> tuple[Tensor, Any]:
        """Logits (B, 2) for views (B, 3, S, S), and what `extra` needs of the pass."""
        raise NotImplementedError

    def extra(self, state: Any, domains: Tensor) -> list[tuple[float, Tensor]]:
        """Weight and value of every one of `parts`."""
        raise NotImplementedError

    def forward(self, pixels: Tensor, labels: Tensor | None = None, domains: Tensor | None = None) -> Parts:
        """`margin` (B,), the AI-minus-real logit; with labels also `loss` and its parts, scalars.

        Args:
            pixels: (B, 3, S, S) uint8 views; of none, the loss is zero and so are all gradients.
            labels: (B,) 0 real, 1 AI.
            domains: (B,) index of the semantic domain, negative where there is none.
        """
        if not len(pixels):
            zero = self.nothing()
            return {name: zero.detach() for name in (*self.parts, "decision")} | {"loss": zero}
        logits, state = self.logits(pixels)
        logits = logits.float()
        margin = (logits[:, 1] - logits[:, 0]).detach()
        if labels is None or domains is None:
            return {"margin": margin}
        decision = F.cross_entropy(logits, labels, label_smoothing=self.losses.label_smoothing)
        total, parts = decision, {}
        for name, (weight, value) in zip(self.parts, self.extra(state, domains), strict=True):
            total = total + weight * value
            parts[name] = value.detach()
        return parts | {"decision": decision.detach(), "loss": total, "margin": margin}

    def nothing(self) -> Tensor:
        """A loss of zero that still reaches every trainable parameter."""
        return torch.stack([p.sum() * 0 for p in self.parameters() if p.requires_grad]).sum()


class ExpertObjective(Objective):
    """Stage 1: one expert and the head; all other gates are zero.

    Source: OmniAID (arXiv 2511.08423), stage 1 (hard sampling).
    """

    def __init__(self, model: OmniAID, losses: LossWeights, expert: int) -> None:
        super().__init__(model, losses)
        self.expert = expert
        self.earlier = tuple(range(expert)) if expert < len(model.config.domains) else ()
        self.parts = ("orthogonality",) if _is_svd(model) else ()

    def taught(self) -> Sequence[nn.Parameter]:
        """The factors; rows of other experts get a gradient of exactly zero."""
        return _factors(self.model, self.layers)

    def logits(self, pixels: Tensor) -> tuple[Tensor, Any]:
        """As the base class says; there is no state."""
        trunk = self.model.trunk
        gates = pixels.new_zeros(len(pixels), len(self.model.config.expert_names), dtype=trunk.mean.dtype)
        gates[:, self.expert] = 1
        return self.model.head(trunk.finish(trunk.shared(pixels), gates)), None

    def extra(self, state: Any, domains: Tensor) -> list[tuple[float, Tensor]]:
        """Distance to the main space and to earlier semantic experts."""
        if not self.parts:
            return []
        with full_precision(self.model):
            apart = orthogonality_loss(self.layers, self.expert, self.earlier)
        return [(self.losses.orthogonality, apart)]


class RouterObjective(Objective):
    """Stage 2: router and head; the experts stay as stage 1 left them.

    Source: OmniAID (arXiv 2511.08423), stage 2.
    """

    parts: tuple[str, ...] = ("balance", "gate")

    def taught(self) -> Sequence[nn.Parameter]:
        """The router's weights."""
        return list(self.model.router.parameters())

    def logits(self, pixels: Tensor) -> tuple[Tensor, Any]:
        """As the base class says; the state is the router's scores and decision."""
        model = self.model
        led, read = model.read_router(model.trunk.shared(pixels))
        router_logits, routing, gates = model.route_features(read)
        return model.head(model.trunk.finish(led, gates)), (router_logits, routing)

    def extra(self, state: Any, domains: Tensor) -> list[tuple[float, Tensor]]:
        """Balance of the experts, and the domain labels where they are known."""
        router_logits, routing = state
        return [
            (self.losses.balance, balance_loss(router_logits, routing)),
            (self.losses.gate, gate_loss(router_logits, domains)),
        ]


class JointObjective(RouterObjective):
    """End-to-end: experts, router and head at once; all experts are kept apart from one another."""

    def __init__(self, model: OmniAID, losses: LossWeights) -> None:
        super().__init__(model, losses)
        if _is_svd(model):
            self.parts = (*self.parts, "orthogonality")

    def taught(self) -> Sequence[nn.Parameter]:
        """The router's weights and the factors."""
        return [*super().taught(), *_factors(self.model, self.layers)]

    def extra(self, state: Any, domains: Tensor) -> list[tuple[float, Tensor]]:
        """The router's parts, and the overlap of all pairs."""
        parts = super().extra(state, domains)
        if "orthogonality" not in self.parts:
            return parts
        with full_precision(self.model):
            apart = joint_orthogonality_loss(self.layers)
        return [*parts, (self.losses.orthogonality, apart)]


def full_precision(model: OmniAID) -> torch.autocast:
    """No autocast inside: the distance of directions is a difference of numbers near one."""
    return torch.autocast(model.trunk.mean.device.type, enabled=False)


def reached_layers(model: OmniAID) -> list[LowRankExperts]:
    """Layers with experts in the blocks that are run; what follows the last tap never is."""
    blocks = list(model.trunk.blocks)[: model.trunk.last_block]
    return [layer for block in blocks for layer in block.modules() if isinstance(layer, LowRankExperts)]


def _factors(model: OmniAID, layers: Sequence[LowRankExperts]) -> list[nn.Parameter]:
    named = ("u", "s", "v") if _is_svd(model) else ("u", "v")
    return [getattr(layer, name) for layer in layers for name in named]


def _is_svd(model: OmniAID) -> bool:
    """Whether experts hold singular triplets; LoRA's have none to keep apart, and a fixed scale."""
    return model.config.experts.kind == "svd"
