"""A dense GLU under a learnable split: optimal transport of neurons, straight-through choice."""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from moe_core.glu import GluWeights, activation
from moe_core.losses import balance_loss
from moe_core.partition import Rounding, balanced_round, members, sinkhorn
from moe_core.routing import Routing
from moe_core.transformers.conversion import Cut, check_active

NOISE = 0.01


class Penalties(NamedTuple):
    """Balance and z-loss of one forward pass."""

    balance: Tensor
    z: Tensor


class MaskedGlu(nn.Module):
    """Y = (H * (R M^T)) W_down, with H = act(x W_gate) * x W_up of a frozen dense block.

    M (P, E) is a balanced assignment of neurons and R (T, E) a top-k choice; both are hard forward and soft
    backward, so the affinities and the router learn.

    Attributes:
        affinity: (P, E) parameter that the assignment is made from.
        router: (E, D) parameter, rows that score inputs.
        temperature: tau of the transport, set by the schedule.

    Source: DOT-MoE (arXiv 2606.01666), equations 7 to 16 as numbered by an independent reproduction.
    Differs: the router's soft part is scaled by k, so that its rows sum to as much as the hard ones.
    """

    def __init__(
        self, glu: GluWeights, labels: Tensor, router: Tensor, active: int, act: str, *, seed: int
    ) -> None:
        """A split that starts at the given labels.

        Args:
            glu: weights of the block, which stay as they are.
            labels: (P,) int64 experts of the neurons.
            router: (E, D) rows to start from.
            active: k.
            act: name of the activation.
            seed: of the noise, without which equal affinities would have no gradient.
        """
        super().__init__()
        experts = len(router)
        check_active(experts, active)
        self.glu, self.active, self.act_fn = glu, active, activation(act)
        noise = torch.randn(len(labels), experts, generator=torch.Generator().manual_seed(seed))
        start = F.one_hot(labels, experts) + NOISE * noise
        self.affinity = nn.Parameter(start.to(router))
        self.router = nn.Parameter(router.detach().clone())
        self.temperature = 1.0
        self.labels = labels
        self.penalties: Penalties | None = None

    def forward(self, x: Tensor) -> Tensor:
        """(B, ..., D); what the losses need beside it is left in `penalties`."""
        rows = x.reshape(-1, x.shape[-1])
        hidden = self.hidden(rows)
        scores = F.linear(rows, self.router)
        choice, self.penalties = self._route(scores)
        mask = choice @ self.assignment().T
        return F.linear(hidden * mask, self.glu.down, self.glu.down_bias).view_as(x)

    def hidden(self, rows: Tensor) -> Tensor:
        """H (T, P) of the dense block."""
        gate = self.act_fn(F.linear(rows, self.glu.gate, self.glu.gate_bias))
        return gate * F.linear(rows, self.glu.up, self.glu.up_bias)

    def assignment(self) -> Tensor:
        """M (P, E): one-hot `labels` forward, the transport plan backward."""
        hard = F.one_hot(self.labels, self.affinity.shape[1]).to(self.affinity.dtype)
        if not (self.affinity.requires_grad and torch.is_grad_enabled()):
            return hard
        plan = self.plan()
        # In this order the forward value is hard to the last bit.
        return hard + (plan - plan.detach())

    def plan(self) -> Tensor:
        """(P, E) soft assignment at the present temperature."""
        return sinkhorn(self.affinity, self.temperature)

    @torch.no_grad()
    def settle(self, rounding: Rounding = "greedy") -> int:
        """Round the affinities to balanced `labels`; the number of neurons that moved."""
        before, self.labels = self.labels, balanced_round(self.plan(), rounding)
        return int((before != self.labels).sum())

    def cut(self) -> Cut:
        """What is exported: neurons by expert and the router, with ones as weights; the transport is gone."""
        routed = members(self.labels, len(self.router))
        return Cut(routed.new_empty(0), routed, self.router.detach(), self.active)

    def _route(self, scores: Tensor) -> tuple[Tensor, Penalties]:
        """R (T, E), k ones in each row forward and k softmax backward, and the router's penalties."""
        soft = scores.softmax(dim=-1)
        experts = scores.topk(self.active, dim=-1).indices
        hard = torch.zeros_like(soft).scatter(1, experts, 1.0)
        routing = Routing(experts, hard.gather(1, experts), scores.shape[-1])
        penalties = Penalties(balance_loss(scores, routing), scores.logsumexp(dim=-1).square().mean())
        return hard + self.active * (soft - soft.detach()), penalties
