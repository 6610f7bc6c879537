"""From the names of five libraries to the one naming of `detector.vit.weights`.

Names are rewritten by tables of patterns, a name that none fits is an error; fused matrices are
split by rows, which is exact.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from detector.errors import ModelError
from detector.vit.shapes import TrunkConfig
from detector.vit.weights import check_weights

Backbone = tuple[TrunkConfig, dict[str, Tensor]]
Table = Sequence[tuple[str, str]]

# Both the names in files of older releases (attention.attention.query) and today's (attention.q_proj).
_HUGGING_FACE_BLOCK = r"(?:encoder\.|model\.)?layer\.(\d+)\."
DINO_NAMES: Table = (
    (r"embeddings\.cls_token", "embeddings.class_embedding"),
    (r"embeddings\.register_tokens", "embeddings.register_embedding"),
    (r"embeddings\.position_embeddings", "embeddings.position_embedding.weight"),
    (r"embeddings\.patch_embeddings\.(?:projection\.)?(weight|bias)", r"embeddings.patch_embedding.\1"),
    (r"(?:layernorm|norm)\.(weight|bias)", r"post_layernorm.\1"),
    (_HUGGING_FACE_BLOCK + r"norm([12])\.(\w+)", r"encoder.layers.\1.layer_norm\2.\3"),
    (_HUGGING_FACE_BLOCK + r"attention\.([qkv])_proj\.(\w+)", r"encoder.layers.\1.self_attn.\2_proj.\3"),
    (_HUGGING_FACE_BLOCK + r"attention\.o_proj\.(\w+)", r"encoder.layers.\1.self_attn.out_proj.\2"),
    (
        _HUGGING_FACE_BLOCK + r"attention\.attention\.(q|k|v)(?:uery|ey|alue)\.(\w+)",
        r"encoder.layers.\1.self_attn.\2_proj.\3",
    ),
    (_HUGGING_FACE_BLOCK + r"attention\.output\.dense\.(\w+)", r"encoder.layers.\1.self_attn.out_proj.\2"),
    (_HUGGING_FACE_BLOCK + r"layer_scale([12])\.lambda1", r"encoder.layers.\1.layer_scale\2"),
    (_HUGGING_FACE_BLOCK + r"mlp\.(fc[12])\.(\w+)", r"encoder.layers.\1.mlp.\2.\3"),
    (_HUGGING_FACE_BLOCK + r"mlp\.up_proj\.(\w+)", r"encoder.layers.\1.mlp.fc1.\2"),
    (_HUGGING_FACE_BLOCK + r"mlp\.gate_proj\.(\w+)", r"encoder.layers.\1.mlp.gate.\2"),
    (_HUGGING_FACE_BLOCK + r"mlp\.(?:down_proj|weights_out)\.(\w+)", r"encoder.layers.\1.mlp.fc2.\2"),
    (_HUGGING_FACE_BLOCK + r"mlp\.weights_in\.(\w+)", r"encoder.layers.\1.mlp.gate_and_fc1.\2"),
    (r"embeddings\.mask_token|rope_embeddings\.inv_freq", ""),
)
CLIP_NAMES: Table = (
    (r"(?:vision_model\.)?embeddings\.position_ids", ""),
    (r"text_model\..*|(?:visual|text)_projection\.weight|logit_scale", ""),
    (r"(?:vision_model\.)?((?:embeddings|pre_layrnorm|encoder|post_layernorm)\..*)", r"\1"),
)
TIMM_NAMES: Table = (
    (r"cls_token", "embeddings.class_embedding"),
    (r"reg_token", "embeddings.register_embedding"),
    (r"pos_embed", "embeddings.position_embedding.weight"),
    (r"patch_embed\.proj\.(\w+)", r"embeddings.patch_embedding.\1"),
    (r"norm_pre\.(\w+)", r"pre_layrnorm.\1"),
    (r"norm\.(\w+)", r"post_layernorm.\1"),
    (r"blocks\.(\d+)\.norm([12])\.(\w+)", r"encoder.layers.\1.layer_norm\2.\3"),
    (r"blocks\.(\d+)\.attn\.qkv\.(\w+)", r"encoder.layers.\1.self_attn.qkv.\2"),
    (r"blocks\.(\d+)\.attn\.([qkv])_proj\.(\w+)", r"encoder.layers.\1.self_attn.\2_proj.\3"),
    (r"blocks\.(\d+)\.attn\.([qkv])_bias", r"encoder.layers.\1.self_attn.\2_proj.bias"),
    (r"blocks\.(\d+)\.attn\.proj\.(\w+)", r"encoder.layers.\1.self_attn.out_proj.\2"),
    (r"blocks\.(\d+)\.(?:ls([12])\.gamma)", r"encoder.layers.\1.layer_scale\2"),
    (r"blocks\.(\d+)\.gamma_([12])", r"encoder.layers.\1.layer_scale\2"),
    (r"blocks\.(\d+)\.mlp\.(fc[12])\.(\w+)", r"encoder.layers.\1.mlp.\2.\3"),
    (r"blocks\.(\d+)\.mlp\.fc1_g\.(\w+)", r"encoder.layers.\1.mlp.gate.\2"),
    (r"blocks\.(\d+)\.mlp\.fc1_x\.(\w+)", r"encoder.layers.\1.mlp.fc1.\2"),
    (r"(?:head|fc_norm)\..*", ""),
)
OPEN_CLIP_NAMES: Table = (
    (r"class_embedding", "embeddings.class_embedding"),
    (r"positional_embedding", "embeddings.position_embedding.weight"),
    (r"conv1\.weight", "embeddings.patch_embedding.weight"),
    (r"ln_pre\.(\w+)", r"pre_layrnorm.\1"),
    (r"ln_post\.(\w+)", r"post_layernorm.\1"),
    (r"transformer\.resblocks\.(\d+)\.ln_([12])\.(\w+)", r"encoder.layers.\1.layer_norm\2.\3"),
    (
        r"transformer\.resblocks\.(\d+)\.attn\.in_proj_(weight|bias)",
        r"encoder.layers.\1.self_attn.qkv.\2",
    ),
    (
        r"transformer\.resblocks\.(\d+)\.attn\.out_proj\.(\w+)",
        r"encoder.layers.\1.self_attn.out_proj.\2",
    ),
    (r"transformer\.resblocks\.(\d+)\.mlp\.c_fc\.(\w+)", r"encoder.layers.\1.mlp.fc1.\2"),
    (r"transformer\.resblocks\.(\d+)\.mlp\.c_proj\.(\w+)", r"encoder.layers.\1.mlp.fc2.\2"),
    (r"transformer\.resblocks\.(\d+)\.ls_([12])\.gamma", r"encoder.layers.\1.layer_scale\2"),
    (r"proj", ""),
)
# Matrix that holds several, one after another by rows -> what it holds.
FUSED = {"qkv": ("q_proj", "k_proj", "v_proj"), "gate_and_fc1": ("gate", "fc1")}
WITHOUT_LEADING_ONES = {"class_embedding": 1, "register_embedding": 2, "position_embedding.weight": 2}


def rename(weights: Mapping[str, Tensor], table: Table, source: str) -> dict[str, Tensor]:
    """The weights under the internal names, float32, fused matrices split.

    Args:
        weights: as a library stores them.
        table: (pattern of a whole name, replacement); an empty replacement leaves the weight out.
        source: what the weights came from, for the message.

    Raises:
        ModelError: no pattern fits a name; the message names it.
    """
    renamed: dict[str, Tensor] = {}
    for name, value in weights.items():
        new = next(
            (match.expand(to) for pattern, to in table if (match := re.fullmatch(pattern, name))), None
        )
        if new is None:
            raise ModelError(f"{source} has the unexpected weight {name}")
        if new:
            renamed |= _split(new, _flat(new, value.detach().float()))
    return renamed


def _flat(name: str, value: Tensor) -> Tensor:
    """Tokens as (D,) or (N, D): libraries keep a leading batch dimension of 1."""
    dimensions = WITHOUT_LEADING_ONES.get(name.removeprefix("embeddings."), value.dim())
    while value.dim() > dimensions:
        value = value[0]
    return value


def _split(name: str, value: Tensor) -> dict[str, Tensor]:
    stem, part, kind = ["", "", *name.rsplit(".", 2)][-3:]
    if part not in FUSED:
        return {name: value}
    names = FUSED[part]
    return {
        f"{stem}.{each}.{kind}": piece for each, piece in zip(names, value.chunk(len(names)), strict=True)
    }


def add_zero_biases(
    weights: dict[str, Tensor], layers: tuple[str, ...] = ("self_attn", "mlp")
) -> dict[str, Tensor]:
    """The weights with a zero bias for every projection that has none.

    Only for the weights of a loaded model, where nothing can be missing, or for projections that
    never have one in their family.

    Args:
        weights: weights under the internal names.
        layers: parts of a block, or single projections such as `self_attn.k_proj`.
    """
    added = {}
    for name, value in weights.items():
        place = name.removeprefix("encoder.layers.").partition(".")[2]
        if place.startswith(layers) and name.endswith(".weight"):
            added[name.removesuffix("weight") + "bias"] = torch.zeros(value.shape[0])
    return added | weights


def assemble(weights: dict[str, Tensor], source: str, **known: Any) -> Backbone:
    """A checked backbone: its structure is read from the tensors, the rest is `known`.

    Args:
        weights: all weights under the internal names.
        source: what the weights came from, for messages.
        known: fields of TrunkConfig that the tensors do not tell (`heads`, `activation`, `image_px` of
            rotary positions ...), and those where a missing weight must not pass for a structure without it.

    Raises:
        ModelError: a weight is missing, unexpected or of another shape; the message names it.
    """
    for name in ("patch_embedding.weight", "class_embedding"):
        if f"embeddings.{name}" not in weights:
            raise ModelError(f"{source} misses weight embeddings.{name}")
    config = TrunkConfig(**(_read(weights) | known))
    check_weights(config, weights, source)
    return config, weights


def _read(weights: Mapping[str, Tensor]) -> dict[str, Any]:
    """The fields of TrunkConfig that tensors tell."""
    width, _, patch_px, _ = weights["embeddings.patch_embedding.weight"].shape
    table = weights.get("embeddings.position_embedding.weight")
    registers = weights.get("embeddings.register_embedding")
    hidden = weights.get("encoder.layers.0.mlp.fc1.weight")
    numbers = [int(name.split(".")[2]) for name in weights if name.startswith("encoder.layers.")]
    found: dict[str, Any] = {
        "width": width,
        "depth": 1 + max(numbers, default=-1),
        "patch_px": patch_px,
        "mlp_width": 4 * width if hidden is None else hidden.shape[0],
        "registers": 0 if registers is None else registers.shape[0],
        "patch_bias": "embeddings.patch_embedding.bias" in weights,
        "embedding_norm": "pre_layrnorm.weight" in weights,
        "final_norm": "post_layernorm.weight" in weights,
        "layer_scale": "encoder.layers.0.layer_scale1" in weights,
        "gated_mlp": "encoder.layers.0.mlp.gate.weight" in weights,
    }
    return found if table is None else found | {"image_px": round((table.shape[0] - 1) ** 0.5) * patch_px}
