"""The cut that ExpertWeaver makes of each dense block from its profile."""

from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from moe_core.errors import ConfigError
from moe_core.glu import Combine, GluWeights
from moe_core.partition import balanced_kmeans, check_divides, members
from moe_core.transformers.calibration import GluProfile
from moe_core.transformers.conversion import (
    Cut,
    centroid_router,
    check_active,
    contribution,
    hidden_activations,
    outside,
)

FLOOR = 1e-8


@dataclass(frozen=True)
class Weave:
    """How experts are cut.

    Attributes:
        experts: N_e, shared and routed together.
        active: k, shared and chosen together.
        tau: coefficient of variation above which a neuron counts as specialised.
        alpha: smallest and largest share of shared neurons.
        tau_quantile: takes tau from this quantile of the coefficients of all layers (an extension).
        layer_adaptive: whether each layer has its own share; otherwise all have the mean of `alpha`.
        shared: fixed number of shared experts in every layer, for downcycling; None to follow `alpha`.
        profile: features to cluster by: mean gate of each sample, or gate of each token (an extension).
        normalise: whether each neuron's features are z-scored (an extension).
        shared_score: what makes a neuron shared: mean |gate|, or what it adds to the output (an extension).
        combine: weights of chosen experts.
        act: name of the activation.
        seed: of the clustering.
    """

    experts: int
    active: int
    act: str
    tau: float = 0.6
    alpha: tuple[float, float] = (0.2, 0.7)
    tau_quantile: float | None = None
    layer_adaptive: bool = True
    shared: int | None = None
    profile: Literal["sample", "token"] = "sample"
    normalise: bool = False
    shared_score: Literal["gate", "contribution"] = "gate"
    combine: Combine = "unit"
    seed: int = 0


class Woven(NamedTuple):
    """Cuts by layer, and for each layer: specialised share r, alpha, shared experts, whether clamped."""

    cuts: dict[int, Cut]
    layers: tuple[tuple[int, float, float, int, bool], ...]
    tau: float


def weave(weights: dict[int, GluWeights], profiles: tuple[GluProfile, ...], how: Weave) -> Woven:
    """Cuts of all layers.

    Args:
        weights: of each dense block, by layer.
        profiles: of the same blocks.
        how: settings.

    Raises:
        ConfigError: the numbers of experts do not fit the block or one another.

    Source: ExpertWeaver (arXiv 2602.15521), sections 3.1 to 3.4.
    Differs: where all active experts would be shared, one is routed, because otherwise nothing is routed.
    """
    check_active(how.experts, how.active)
    if how.active < 2 and how.shared != 0:
        raise ConfigError(f"{how.active} active expert leaves none to share; at least 2 are needed")
    variation = [coefficient_of_variation(profile) for profile in profiles]
    tau = how.tau
    if how.tau_quantile is not None:
        tau = float(torch.cat(variation).quantile(how.tau_quantile))
    cuts, layers = {}, []
    for profile, spread in zip(profiles, variation, strict=True):
        glu = weights[profile.layer]
        specialised = float((spread > tau).double().mean())
        alpha = shared_share(specialised, how)
        asked = shared_experts(alpha, len(spread), how.experts) if how.shared is None else how.shared
        number = min(asked, how.active - 1)
        cuts[profile.layer] = cut_block(glu, profile, number, how)
        layers.append((profile.layer, specialised, alpha, number, number < asked))
    return Woven(cuts, tuple(layers), tau)


def coefficient_of_variation(profile: GluProfile) -> Tensor:
    """(P,) spread of a neuron's mean |gate| over samples, in units of its mean; no scale changes it."""
    strength = profile.gate_strength.double()
    return strength.std(dim=1, correction=0) / (strength.mean(dim=1) + FLOOR)


def shared_share(specialised: float, how: Weave) -> float:
    """alpha of a layer: the more neurons are specialised, the fewer are shared.

    Source: ExpertWeaver, section 3.2: alpha_max - (alpha_max - alpha_min) r.
    """
    low, high = how.alpha
    return high - (high - low) * specialised if how.layer_adaptive else (low + high) / 2


def shared_experts(alpha: float, neurons: int, experts: int) -> int:
    """N_se = round(round(alpha d_ff) / d_expert), halves up."""
    return int(int(alpha * neurons + 0.5) / (neurons / experts) + 0.5)


def cut_block(glu: GluWeights, profile: GluProfile, shared: int, how: Weave) -> Cut:
    """One block's cut with `shared` experts always active."""
    width = check_divides(len(glu.gate), how.experts)
    kept = _shared_score(glu, profile, how).topk(shared * width).indices.sort().values
    rest = outside(kept, len(glu.gate))
    features = _features(glu, profile, how)[rest]
    labels = balanced_kmeans(features, how.experts - shared, seed=how.seed).labels
    routed = rest[members(labels, how.experts - shared)]
    return Cut(kept, routed, centroid_router(glu, routed), how.active - shared, how.combine)


def _shared_score(glu: GluWeights, profile: GluProfile, how: Weave) -> Tensor:
    if how.shared_score == "contribution":
        return contribution(glu, profile)
    return profile.gate_strength.mean(dim=1)


def _features(glu: GluWeights, profile: GluProfile, how: Weave) -> Tensor:
    features = profile.gate
    if how.profile == "token":
        features = hidden_activations(glu, how.act, profile.inputs.to(glu.gate.dtype))[0].T
    if how.normalise:
        features = (features - features.mean(dim=1, keepdim=True)) / (
            features.std(dim=1, keepdim=True) + FLOOR
        )
    return features
