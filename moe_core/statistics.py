"""What routing decisions did, in numbers."""

from typing import NamedTuple

from torch import Tensor

from moe_core.errors import ConfigError
from moe_core.routing import Routing


class Agreement(NamedTuple):
    """How far two routings of the same rows are the same decision; every field is a mean over rows.

    Attributes:
        first: share of rows whose best expert is the same.
        chosen: share of rows whose set of chosen experts is the same, whatever the order.
        moved: share of gate weight that sits on another expert: half the sum of absolute differences.
    """

    first: float
    chosen: float
    moved: float


def routing_agreement(one: Routing, other: Routing) -> Agreement:
    """Agreement of two routings over the same rows and the same experts.

    Raises:
        ConfigError: they are about different numbers of rows or experts.
    """
    gates, others = one.dense().float(), other.dense().float()
    if gates.shape != others.shape:
        raise ConfigError(
            f"routings of {tuple(gates.shape)} and {tuple(others.shape)} (rows, experts) cannot be compared"
        )
    first = one.experts[:, 0] == other.experts[:, 0]
    chosen = (_members(one) == _members(other)).all(dim=-1)
    moved = (gates - others).abs().sum(dim=-1) / 2
    return Agreement(*(float(value.float().mean()) for value in (first, chosen, moved)))


def _members(routing: Routing) -> Tensor:
    """(B, E) bool: which experts each row goes to, also where the weight is zero."""
    return (
        Routing(routing.experts, routing.weights.new_ones(routing.weights.shape), routing.num_experts).dense()
        > 0
    )
