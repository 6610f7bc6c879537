"""Conversion of dense GLU blocks into routed experts, and the cuts that need no training."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from moe_core.errors import ConfigError
from moe_core.glu import Combine, DenseGlu, GluWeights, RoutedGlu, activation
from moe_core.ledger import Ledger, count, total
from moe_core.partition import balanced_kmeans, check_divides, members, random_split
from moe_core.transformers.calibration import GluProfile
from moe_core.transformers.find import DenseBlock, find_dense
from moe_core.transformers.storage import build, swap


@dataclass(frozen=True)
class Cut:
    """How the neurons of one dense block become experts; shared and routed together hold each neuron once.

    Attributes:
        shared: (S,) int64 neurons that are always active; S is a multiple of P, or 0.
        routed: (E, P) int64 neurons of the routed experts.
        router: (E, D) rows that score inputs.
        active: routed experts per token.
        combine: weights of chosen experts.
        router_up: (E, D) or None, see `GluTopKRouter`.
    """

    shared: Tensor
    routed: Tensor
    router: Tensor
    active: int
    combine: Combine = "unit"
    router_up: Tensor | None = None


class Converted(NamedTuple):
    """Ledgers of all blocks before and after."""

    before: Ledger
    after: Ledger


def convert(model: nn.Module, cuts: Mapping[int, Cut]) -> Converted:
    """Ledgers; the model's dense blocks are replaced in place, one layer after the other.

    Args:
        model: with dense GLU blocks.
        cuts: by index of the decoder layer.

    Raises:
        ConfigError: a cut is no partition of the block's neurons, or the architecture is not supported.
    """
    before, after = [], []
    for layer, cut in cuts.items():
        block = _block(model, layer)
        _check_partition(block, cut)
        args = _arguments(model, block, cut)
        routed = build("routed_glu", args)
        assert isinstance(routed, RoutedGlu)
        _fill(routed, block.weights(), cut)
        before.append(count(block.module))
        stored = count(routed)
        idle = count(routed.experts).stored * (len(cut.routed) - cut.active) // len(cut.routed)
        after.append(stored._replace(active=stored.stored - idle))
        swap(model, layer, "routed_glu", args, routed)
    return Converted(total(before), total(after))


def prune(model: nn.Module, kept: Mapping[int, Tensor]) -> Converted:
    """Ledgers; the model's dense blocks keep only some neurons, for every token the same (static pruning).

    Args:
        model: with dense GLU blocks.
        kept: (K,) int64 neurons, by index of the decoder layer.
    """
    before, after = [], []
    for layer, neurons in kept.items():
        block = _block(model, layer)
        args: dict[str, Any] = {"hidden": block.hidden, "width": len(neurons)}
        args["act"] = cast(Any, model.config).hidden_act
        args["bias"] = block.weights().gate_bias is not None
        narrow = build("dense_glu", args)
        assert isinstance(narrow, DenseGlu)
        narrow.fill(block.weights(), neurons)
        before.append(count(block.module))
        after.append(count(narrow))
        swap(model, layer, "dense_glu", args, narrow)
    return Converted(total(before), total(after))


def dense_weights(model: nn.Module) -> dict[int, GluWeights]:
    """Weights of each dense block by layer, detached views."""
    found = {}
    for block in find_dense(model):
        parts: list[Any] = [part if part is None else part.detach() for part in block.weights()]
        found[block.layer] = GluWeights(*parts)
    return found


def check_active(experts: int, active: int) -> None:
    """Nothing, when `active` of `experts` is a number of experts that can be chosen.

    Raises:
        ConfigError: it is not.
    """
    if not 1 <= active <= experts:
        raise ConfigError(f"{active} active experts were asked for; 1..{experts} are allowed")


def centroid_router(glu: GluWeights, routed: Tensor) -> Tensor:
    """(E, D): the mean gate row of each expert's neurons."""
    return glu.gate[routed].mean(dim=1)


def contribution(glu: GluWeights, profile: GluProfile) -> Tensor:
    """(P,) mean |h| times the length of the down column: what a neuron adds to the output on average."""
    return profile.hidden_strength.to(glu.down.dtype) * glu.down.norm(dim=0)


def hidden_activations(glu: GluWeights, act: str, x: Tensor) -> tuple[Tensor, Tensor]:
    """act(gate) and h = act(gate) * up of inputs (R, D), each (R, P)."""
    gate = activation(act)(F.linear(x, glu.gate, glu.gate_bias))
    return gate, gate * F.linear(x, glu.up, glu.up_bias)


def magnitude_neurons(glu: GluWeights, profile: GluProfile, share: float) -> Tensor:
    """(K,) neurons that contribute most, ascending: the baseline of static pruning."""
    most = int(share * len(glu.gate) + 0.5)
    return contribution(glu, profile).topk(most).indices.sort().values


def random_cut(glu: GluWeights, experts: int, active: int, *, seed: int) -> Cut:
    """A balanced split that knows nothing of the neurons."""
    return labelled_cut(glu, random_split(len(glu.gate), experts, seed=seed), experts, active)


def moefication_cut(glu: GluWeights, experts: int, active: int, *, seed: int) -> Cut:
    """Balanced k-means of the directions of gate rows.

    Source: Zhang et al. 2022 (MoEfication), parameter clustering. Differs: the router is the mean gate row
    of each expert instead of a trained one, as for the other training-free cuts.
    """
    labels = balanced_kmeans(F.normalize(glu.gate, dim=1), experts, seed=seed).labels
    return labelled_cut(glu, labels, experts, active)


def labelled_cut(glu: GluWeights, labels: Tensor, experts: int, active: int) -> Cut:
    """A cut without shared neurons from labels (P,), with the centroid router."""
    check_active(experts, active)
    routed = members(labels, experts)
    return Cut(labels.new_empty(0), routed, centroid_router(glu, routed), active)


def cmoe_cut(
    glu: GluWeights, profile: GluProfile, experts: int, active: int, *, act: str, seed: int, top: float = 0.1
) -> Cut:
    """Half of the active experts shared, by how often a neuron is among a token's strongest.

    Args:
        glu: of the block.
        profile: of the block.
        experts: shared and routed.
        active: shared and chosen.
        act: name of the activation.
        seed: of the clustering.
        top: share of a token's neurons that count as active.

    Source: CMoE (arXiv 2502.04416), a reconstruction: activation rates of the top |h|, balanced clusters of
    binary activation vectors, and a router that scores by each cluster's most central neuron.
    """
    check_active(experts, active)
    width = check_divides(len(glu.gate), experts)
    shared_experts = active // 2
    _, hidden = hidden_activations(glu, act, profile.inputs.to(glu.gate.dtype))
    most = max(1, int(top * hidden.shape[1]))
    fired = torch.zeros_like(hidden).scatter_(1, hidden.abs().topk(most, dim=1).indices, 1.0)
    shared = fired.mean(dim=0).topk(shared_experts * width).indices.sort().values
    rest = outside(shared, len(glu.gate))
    clusters = balanced_kmeans(fired.T[rest], experts - shared_experts, seed=seed)
    groups = members(clusters.labels, experts - shared_experts)
    away = (fired.T[rest][groups] - clusters.means[:, None]).norm(dim=2)
    central = rest[groups.gather(1, away.argmin(dim=1, keepdim=True)).squeeze(1)]
    return Cut(shared, rest[groups], glu.gate[central], active - shared_experts, router_up=glu.up[central])


def outside(neurons: Tensor, width: int) -> Tensor:
    """Neurons of 0..width - 1 that are not among `neurons`, ascending."""
    free = torch.ones(width, dtype=torch.bool)
    free[neurons] = False
    return free.nonzero().squeeze(1)


def _block(model: nn.Module, layer: int) -> DenseBlock:
    return next(block for block in find_dense(model) if block.layer == layer)


def _check_partition(block: DenseBlock, cut: Cut) -> None:
    neurons = torch.cat([cut.shared, cut.routed.flatten()]).sort().values
    if not torch.equal(neurons, torch.arange(block.width)):
        raise ConfigError(
            f"the cut of {block.path} holds {len(neurons.unique())} of {block.width} neurons "
            f"in {len(neurons)} places; each belongs in exactly one"
        )


def _arguments(model: Any, block: DenseBlock, cut: Cut) -> dict[str, Any]:
    width = cut.routed.shape[1]
    return {
        "hidden": block.hidden,
        "shared": len(cut.shared) // width,
        "routed": len(cut.routed),
        "width": width,
        "active": cut.active,
        "act": model.config.hidden_act,
        "combine": cut.combine,
        "representative": cut.router_up is not None,
        "bias": block.weights().gate_bias is not None,
    }


@torch.no_grad()
def _fill(routed: RoutedGlu, glu: GluWeights, cut: Cut) -> None:
    routed.fill(glu, cut.shared, cut.routed)
    routed.gate.weight.copy_(cut.router)
    if routed.gate.up_weight is not None and cut.router_up is not None:
        routed.gate.up_weight.copy_(cut.router_up)
