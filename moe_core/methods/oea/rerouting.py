"""OEA on a model: while it decodes, as a simulation over known text, and kept in its configuration."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor

from moe_core.errors import ConfigError
from moe_core.methods.oea.selection import Selection, gates, preferences, select
from moe_core.toys.models import token_losses
from moe_core.transformers.find import MoeBlock, find_moe
from moe_core.transformers.storage import note, restorers
from moe_core.transformers.tap import Call, Choice, RoutingTap, Rule

Mode = Literal["oea", "pruned", "vanilla"]


class Rerouting(BaseModel):
    """How tokens are rerouted; the names are the paper's."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    k0: int = Field(ge=1, description="experts that a token brings in itself")
    k_max: int | None = Field(default=None, ge=1, description="experts a token may use; the model's own K")
    p: float = Field(default=1.0, gt=0, le=1, description="share of scores at which fewer than k0 suffice")
    max_rank: int | None = Field(default=None, ge=1, description="preferences looked at for takeovers; all")
    decode_only: bool = Field(
        default=True, description="whether passes of several tokens a row are left alone"
    )
    min_batch: int = Field(default=2, ge=1, description="batches with fewer live rows are left alone")


@dataclass
class Activity:
    """What rerouting did; filled while it is on.

    Attributes:
        decisions: of a layer on a batch.
        experts: sum over decisions of the experts that the live tokens of the batch used.
        rows: sum over decisions of the live rows.
    """

    decisions: int = 0
    experts: float = 0.0
    rows: int = 0

    def add(self, experts: float, rows: int) -> None:
        """Count one decision."""
        self.decisions += 1
        self.experts += experts
        self.rows += rows

    @property
    def mean_experts(self) -> float:
        """T of the paper, averaged over layers and steps; NaN before the first."""
        return self.experts / self.decisions if self.decisions else float("nan")

    @property
    def mean_rows(self) -> float:
        """B of the paper, averaged likewise; NaN before the first."""
        return self.rows / self.decisions if self.decisions else float("nan")


@contextmanager
def enable(
    model: Any,
    k0: int,
    k_max: int | None = None,
    p: float = 1.0,
    max_rank: int | None = None,
    decode_only: bool = True,
    min_batch: int = 2,
) -> Iterator[Activity]:
    """Activity of a block of code in which the model's decode steps are rerouted.

    What a token gets depends on the tokens it is batched with: do not compare likelihoods across batch
    sizes. Experts run by `eager` or `grouped_mm` gain from it; `batched_mm` copies an expert per token.

    Args:
        model: with MoE blocks.
        k0, k_max, p, max_rank, decode_only, min_batch: see `Rerouting`.

    Raises:
        ConfigError: the model is dense, or the numbers do not fit it.
    """
    settings = Rerouting(
        k0=k0, k_max=k_max, p=p, max_rank=max_rank, decode_only=decode_only, min_batch=min_batch
    )
    activity = Activity()
    with RoutingTap(model, decode_rule(model, settings, activity)):
        yield activity


def decode_rule(model: Any, settings: Rerouting, activity: Activity) -> Rule:
    """The rule of `enable`.

    Raises:
        ConfigError: the numbers do not fit the model.
    """
    check(find_moe(model), settings)

    def rule(call: Call) -> Choice | None:
        live, pad = call.frame.live, _padding_token(model)
        if settings.decode_only and live.shape[1] > 1:
            return None
        if pad is not None and call.frame.tokens is not None and live.shape[1] == 1:
            # `generate` feeds finished rows the padding token, with a mask that calls it real.
            live = live & (call.frame.tokens != pad)
        rows = int(live.any(dim=1).sum())
        choice = reroute(call, settings, live) if rows >= settings.min_batch else None
        experts, weights = (
            (call.experts, call.weights) if choice is None else (choice.experts, choice.weights)
        )
        activity.add(distinct(experts, weights, live, call.block.num_experts), rows)
        return choice

    return rule


def reroute(call: Call, settings: Rerouting, live: Tensor) -> Choice | None:
    """The rerouted decision; None where the router's own is the same by construction.

    Args:
        call: with B * S rows; the B rows at one position are one batch.
        settings: that fit the block.
        live: (B, S) bool.
    """
    limit = settings.k_max or call.block.active
    if settings.k0 == limit == call.block.active and settings.p == 1.0:
        return None
    scores = preferences(call.block, call.logits.detach()).view(*live.shape, -1)
    picked = select(scores, live, base=settings.k0, limit=limit, mass=settings.p, reach=settings.max_rank)
    return _choice(call, picked)


def prune(call: Call, k0: int) -> Choice | None:
    """The baseline: the k0 best experts and no others."""
    if k0 == call.block.active:
        return None
    scores = preferences(call.block, call.logits.detach()).view(*call.frame.live.shape, -1)
    experts = scores.topk(k0, dim=-1).indices
    return _choice(call, Selection(experts, torch.ones_like(experts, dtype=torch.bool)))


def _choice(call: Call, picked: Selection) -> Choice:
    weights = gates(call.block.router, call.logits, picked)
    return Choice(weights.to(call.weights.dtype), picked.experts.flatten(0, 1))


def distinct(experts: Tensor, weights: Tensor, live: Tensor, num_experts: int) -> float:
    """T: experts with weight in a live row, counted per position and averaged over positions.

    Args:
        experts, weights: (B * S, K).
        live: (B, S) bool.
        num_experts: E.
    """
    used = (weights > 0).view(*live.shape, -1) & live.unsqueeze(-1)
    seen = torch.zeros(*live.shape, num_experts, dtype=torch.int64, device=experts.device)
    seen.scatter_add_(-1, experts.view(*live.shape, -1), used.long())
    counts = (seen > 0).any(dim=0).sum(dim=-1)[live.any(dim=0)]
    return float(counts.double().mean()) if len(counts) else 0.0


def simulate(model: Any, ids: Tensor, k0: int, batch: int, mode: Mode = "oea") -> tuple[Tensor, float]:
    """Loss (N,) of each sequence in nats per token, and T, when `batch` sequences decode side by side.

    All positions run in one pass: the tokens at one position of a group of sequences are one batch.

    Args:
        model: with MoE blocks.
        ids: (N, L) int64 without padding; N is a multiple of `batch`.
        k0: experts that a token brings in itself.
        batch: B.
        mode: rerouted, cut to k0, or left alone.

    Raises:
        ConfigError: the numbers do not fit the model or the text.
    """
    if len(ids) % batch:
        raise ConfigError(f"{len(ids)} sequences cannot be cut into batches of {batch}")
    settings, activity = Rerouting(k0=k0, decode_only=False, min_batch=1), Activity()
    check(find_moe(model), settings)

    def rule(call: Call) -> Choice | None:
        choice = RULES[mode](call, settings)
        used = choice or Choice(call.weights, call.experts)
        live = call.frame.live
        activity.add(distinct(used.experts, used.weights, live, call.block.num_experts), len(live))
        return choice

    with RoutingTap(model, rule):
        losses = token_losses(model, ids, batch)
    return losses, activity.mean_experts


RULES = {
    "oea": lambda call, settings: reroute(call, settings, call.frame.live),
    "pruned": lambda call, settings: prune(call, settings.k0),
    "vanilla": lambda call, settings: None,
}


def check(blocks: tuple[MoeBlock, ...], settings: Rerouting) -> None:
    """Nothing, when the numbers fit every block.

    Raises:
        ConfigError: one does not; the message says what is allowed.
    """
    for block in blocks:
        limit = settings.k_max or block.active
        if not settings.k0 <= limit <= block.num_experts:
            raise ConfigError(
                f"k0 = {settings.k0} and k_max = {limit} do not fit {block.path} with {block.num_experts} "
                f"experts, {block.active} active; 1 <= k0 <= k_max <= {block.num_experts} is allowed"
            )


def remember(model: Any, settings: Rerouting) -> Activity:
    """Activity of a model that is rerouted from now on, also after saving and loading; weights are untouched.

    Raises:
        ConfigError: the numbers do not fit the model, or its architecture cannot be saved with settings.
    """
    check(find_moe(model), settings)
    note(model)["oea"] = settings.model_dump(mode="json")
    activity = Activity()
    RoutingTap(model, decode_rule(model, settings, activity)).attach()
    return activity


@restorers.register("oea")
def restore(model: Any, value: Any) -> None:
    """Switch rerouting on as a loaded configuration says."""
    RoutingTap(model, decode_rule(model, Rerouting.model_validate(value), Activity())).attach()


def _padding_token(model: Any) -> int | None:
    generation = getattr(model, "generation_config", None)
    chosen = getattr(generation, "pad_token_id", None)
    return chosen if chosen is not None else getattr(model.config, "pad_token_id", None)
