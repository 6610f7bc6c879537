"""From the release's tensors to our model, with the same forward pass.

What the release stores          what ours holds
`feature_extractor.*` W          `LowRankExperts.weight`, embeddings, norms and MLPs: the one backbone of
                                 both passes; the part that carries experts is checked against it
W - `weight_main`                `residual_u/s/v`: its r triplets, taken off W in every forward pass
`U_experts`, `S_experts`, `V_experts`    `u` (U transposed), `s`, `v`
`lora_B_experts`, `lora_A_experts`       `u` (B transposed), `v`; `s` = 1, no residual
`U_r`, `V_r`, `weight_original_fnorm`    nothing: checked to be the space and norm they are said to be
`gating_network.network`         `router.network`
`head`                           `head.linear`, with center 0 and scale 1

So W - residual = `weight_main` up to rounding, and the release's two passes are ours: without gates
W alone (the router's features), with gates `weight_main` and the gated experts.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from detector.checkpoint import build_undecomposed
from detector.errors import ModelError
from detector.model import DOMAINS, ModelConfig, OmniAID, RouterConfig
from detector.released.archive import Archive
from detector.released.names import (
    FROZEN,
    ROUTER,
    Sizes,
    check_tensors,
    expected_shapes,
    listed,
    place,
    projections,
    read_sizes,
    spell,
)
from detector.vit import ExpertConfig, TrunkConfig, weight_shapes
from detector.vit.weights import under
from moe_core.experts import LowRankExperts

# Number of experts -> names of the semantic ones; the last expert is the artifact expert.
DOMAINS_BY_EXPERTS: dict[int, tuple[str, ...]] = {6: DOMAINS, 3: ("human_animal", "object_scene")}
TOP_K_BY_EXPERTS = {6: 2, 3: 1}
# Relative to the Frobenius norm: far above float32 rounding, far below any other backbone.
TOLERANCE = 1e-4
Triplets = tuple[Tensor, Tensor, Tensor]


@dataclass(frozen=True)
class Release:
    """A converted checkpoint.

    Attributes:
        model: the model, in evaluation mode.
        sizes: what the tensors told.
        deviation: largest |W - residual - weight_main| over all projections, relative to |W|.
        frozen_from: `checkpoint` or `backbone`, where the router's frozen copy came from.
    """

    model: OmniAID
    sizes: Sizes
    deviation: float
    frozen_from: str


def convert_release(
    archive: Archive,
    name: str,
    trunk: TrunkConfig,
    *,
    domains: tuple[str, ...] | None = None,
    top_k: int | None = None,
    frozen: Mapping[str, Tensor] | None = None,
) -> Release:
    """The released model as ours.

    Args:
        archive: the file's tensors.
        name: of the backbone, kept in the model's configuration.
        trunk: its structure; a learned position table's size is read from the tensors instead.
        domains: names of the semantic experts; None where the number of experts says which.
        top_k: chosen experts; None where the number of experts says how many.
        frozen: the backbone's weights, for a file without `feature_extractor.*`.

    Raises:
        ModelError: a tensor is missing, unexpected, of a wrong shape or not finite, the router's copy is
            not the backbone that carries the experts, or the number of experts is none that is named.
    """
    source, tensors = archive.source, spell(archive.tensors, archive.source)
    stored = any(key.startswith(FROZEN) for key in tensors)
    if not stored and frozen is not None:
        tensors |= {FROZEN + key: value for key, value in frozen.items()}
    sizes = read_sizes(tensors, source)
    shape = _sized(trunk, tensors)
    if not 1 <= sizes.rank < shape.width:
        raise ModelError(f"experts of {source} have rank {sizes.rank}; 1..{shape.width - 1} is possible")
    _add_key_biases(tensors, shape)
    check_tensors(tensors, expected_shapes(shape, sizes), source)
    _check_frozen(tensors, shape, source)
    config = _config(name, sizes, source, domains, top_k)
    model = build_undecomposed(config, shape, under(tensors, FROZEN))
    deviation = _fill_experts(model, tensors, sizes, source)
    model.router.network.load_state_dict(under(tensors, ROUTER))
    model.head.linear.load_state_dict(under(tensors, "head."))
    return Release(model.eval(), sizes, deviation, "checkpoint" if stored else "backbone")


def _sized(trunk: TrunkConfig, tensors: Mapping[str, Tensor]) -> TrunkConfig:
    """The structure with the input size that the position table tells."""
    shape = trunk.model_copy(update={"final_norm": True})
    table = tensors.get("embeddings.position_embedding.weight")
    if trunk.positions == "rotary" or table is None or table.dim() != 2:
        return shape
    side = round(max(0, table.shape[0] - 1) ** 0.5)
    return shape.model_copy(update={"image_px": side * trunk.patch_px})


def _add_key_biases(tensors: dict[str, Tensor], trunk: TrunkConfig) -> None:
    """Zeros for the keys' biases, which DINOv3 does not have."""
    if trunk.positions != "rotary":
        return
    for block in range(trunk.depth):
        name = f"layers.{block}.self_attn.k_proj.bias"
        for key in (f"{FROZEN}encoder.{name}", f"encoder_{name}"):
            tensors.setdefault(key, torch.zeros(trunk.width))


def _check_frozen(tensors: Mapping[str, Tensor], trunk: TrunkConfig, source: str) -> None:
    """Make sure that what carries no experts is the same in both passes; ours holds it once."""
    other = [
        place(name)
        for name in weight_shapes(trunk)
        if not place(name).endswith(".weight_main")
        and not _close(tensors[place(name)], tensors[FROZEN + name])
    ]
    if other:
        raise ModelError(
            f"the router's frozen copy in {source} is another backbone than the one that carries the "
            f"experts: {len(other)} weights differ ({listed(other)})"
        )


def _close(mine: Tensor, other: Tensor) -> bool:
    return bool(torch.linalg.vector_norm(mine - other) <= TOLERANCE * torch.linalg.vector_norm(other))


def _config(
    name: str,
    sizes: Sizes,
    source: str,
    domains: tuple[str, ...] | None,
    top_k: int | None,
) -> ModelConfig:
    number, names, k = sizes.experts, domains or DOMAINS_BY_EXPERTS.get(sizes.experts), top_k
    k = TOP_K_BY_EXPERTS.get(number) if k is None else k
    if names is None or k is None:
        known = " or ".join(str(each) for each in sorted(DOMAINS_BY_EXPERTS))
        raise ModelError(
            f"{source} holds {number} experts; their domains and top-k are only known for {known}, name both"
        )
    if len(names) != number - 1 or len(set(names)) != len(names):
        raise ModelError(
            f"{source} has {number - 1} semantic experts; as many different domains are needed, "
            f"not {', '.join(names)}"
        )
    if not 1 <= k < number:
        raise ModelError(f"top-k is {k}; the {number - 1} semantic experts of {source} allow 1..{number - 1}")
    experts = ExpertConfig(kind=sizes.kind, num_experts=number, rank=sizes.rank)
    return ModelConfig(
        backbone=name,
        depth=None,
        features="final",
        taps=(),
        experts=experts,
        domains=names,
        router=RouterConfig(mode="two-pass", top_k=k, hidden=sizes.hidden),
    )


def _fill_experts(model: OmniAID, tensors: Mapping[str, Tensor], sizes: Sizes, source: str) -> float:
    """The largest relative deviation from `weight_main`, after every layer took over its experts."""
    worst = 0.0
    for name, layer in zip(projections(model.trunk.config), model.expert_layers(), strict=True):
        parts = under(tensors, f"encoder_layers.{name}.")
        whole, rank = layer.weight.double(), sizes.rank if sizes.kind == "svd" else 0
        residual = top_triplets(whole - parts["weight_main"].double(), rank)
        u, s, v = residual
        left = whole - (u.T * s) @ v - parts["weight_main"].double()
        deviation = float(left.norm() / whole.norm())
        # Not "<=": a norm of 0 gives NaN, which must not pass.
        if not deviation <= TOLERANCE:
            what = f"{rank} triplets" if rank else "nothing"
            raise ModelError(
                f"encoder_layers.{name}.weight_main of {source} differs from the router's frozen copy by "
                f"more than {what}: relative norm {deviation:.1e}, at most {TOLERANCE:.0e} is allowed"
            )
        if rank:
            _check_main_space(parts, whole, residual, f"encoder_layers.{name}", source)
        _fill(layer, residual, _factors(parts, sizes))
        worst = max(worst, deviation)
    return worst


def top_triplets(matrix: Tensor, rank: int) -> Triplets:
    """The largest singular triplets (R, D_out), (R,), (R, D_in) of a matrix of about that rank.

    A seeded random range finder: exact for a matrix of this rank, and far quicker than a whole
    decomposition of each of a large model's hundred projections.

    Args:
        matrix: (D_out, D_in).
        rank: R; 0 gives empty tensors.
    """
    generator = torch.Generator().manual_seed(0)
    wide = min(rank + 8, *matrix.shape) if rank else 0
    probe = torch.randn(matrix.shape[1], wide, generator=generator, dtype=matrix.dtype)
    basis = torch.linalg.qr(matrix @ probe)[0]
    basis = torch.linalg.qr(matrix @ (matrix.T @ basis))[0]
    left, values, right = torch.linalg.svd(basis.T @ matrix, full_matrices=False)
    return (basis @ left[:, :rank]).T, values[:rank], right[:rank]


def _check_main_space(
    parts: Mapping[str, Tensor], whole: Tensor, residual: Triplets, name: str, source: str
) -> None:
    """Make sure that U_r and V_r span weight_main and leave the residual out, and that the norm is W's."""
    main, (u, s, v) = parts["weight_main"].double(), residual
    left, right = parts["U_r"].double(), parts["V_r"].double()
    probe = torch.randn(main.shape[1], 4, generator=torch.Generator().manual_seed(0), dtype=main.dtype)
    columns, rows = main @ probe, main.T @ probe
    off = {
        "U_r": [(columns - left @ (left.T @ columns)) / columns.norm(), (left.T @ u.T) * s / whole.norm()],
        "V_r": [(rows - right.T @ (right @ rows)) / rows.norm(), (right @ v.T) * s / whole.norm()],
        "weight_original_fnorm": [parts["weight_original_fnorm"].double() / whole.norm() - 1],
    }
    for part, differences in off.items():
        most = max(float(difference.norm()) for difference in differences)
        if not most <= 10 * TOLERANCE:
            raise ModelError(
                f"{name}.{part} of {source} does not belong to its weight_main and the router's frozen copy: "
                f"relative difference {most:.1e}"
            )


def _factors(parts: Mapping[str, Tensor], sizes: Sizes) -> Triplets:
    """The experts (E, R, D_out), (E, R), (E, R, D_in)."""
    up, down = ("U_experts", "V_experts") if sizes.kind == "svd" else ("lora_B_experts", "lora_A_experts")
    numbers = range(sizes.experts)
    u = torch.stack([parts[f"{up}.{number}"].T for number in numbers])
    v = torch.stack([parts[f"{down}.{number}"] for number in numbers])
    if sizes.kind == "lora":
        return u, torch.ones(u.shape[:2]), v
    return u, torch.stack([parts[f"S_experts.{number}"] for number in numbers]), v


@torch.no_grad()
def _fill(layer: LowRankExperts, residual: Triplets, factors: Triplets) -> None:
    mine = (layer.residual_u, layer.residual_s, layer.residual_v, layer.u, layer.s, layer.v)
    for target, value in zip(mine, (*residual, *factors), strict=True):
        target.copy_(value)
