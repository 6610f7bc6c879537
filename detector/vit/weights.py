"""The one naming of trunk weights, and the check that a set of weights is complete.

Names are those of Hugging Face's CLIP image tower without `vision_model.`, and more of the kind
for what CLIP does not have. Every projection has a bias: a source without one stores zeros.
"""

from collections.abc import Mapping

from torch import Tensor

from detector.errors import ModelError
from detector.vit.shapes import TrunkConfig

ATTENTION = ("q_proj", "k_proj", "v_proj", "out_proj")

Shapes = dict[str, tuple[int, ...]]


def weight_shapes(config: TrunkConfig) -> Shapes:
    """Shape by name of every weight a trunk of this structure has.

    The position table holds the class token's row first, then the patches row by row.
    """
    width, patch = config.width, config.patch_px
    shapes: Shapes = {
        "embeddings.class_embedding": (width,),
        "embeddings.patch_embedding.weight": (width, 3, patch, patch),
    }
    if config.patch_bias:
        shapes["embeddings.patch_embedding.bias"] = (width,)
    if config.registers:
        shapes["embeddings.register_embedding"] = (config.registers, width)
    if config.positions != "rotary":
        shapes["embeddings.position_embedding.weight"] = (config.grid**2 + 1, width)
    if config.embedding_norm:
        shapes |= _norm("pre_layrnorm", width)
    if config.final_norm:
        shapes |= _norm("post_layernorm", width)
    for index in range(config.depth):
        shapes |= {f"encoder.layers.{index}.{name}": shape for name, shape in _block_shapes(config).items()}
    return shapes


def _block_shapes(config: TrunkConfig) -> Shapes:
    width, hidden = config.width, config.mlp_width
    shapes = _norm("layer_norm1", width) | _norm("layer_norm2", width)
    for name in ATTENTION:
        shapes |= _linear(f"self_attn.{name}", width, width)
    for name in ("fc1", "gate") if config.gated_mlp else ("fc1",):
        shapes |= _linear(f"mlp.{name}", hidden, width)
    shapes |= _linear("mlp.fc2", width, hidden)
    if config.layer_scale:
        shapes |= {"layer_scale1": (width,), "layer_scale2": (width,)}
    return shapes


def _norm(name: str, width: int) -> Shapes:
    return {f"{name}.weight": (width,), f"{name}.bias": (width,)}


def _linear(name: str, outputs: int, inputs: int) -> Shapes:
    return {f"{name}.weight": (outputs, inputs), f"{name}.bias": (outputs,)}


def check_weights(config: TrunkConfig, weights: Mapping[str, Tensor], source: str) -> None:
    """Make sure that `weights` are exactly those of a trunk of this structure.

    Args:
        config: the structure.
        weights: weights under the internal names.
        source: what the weights came from, for the message.

    Raises:
        ModelError: a weight is missing, unexpected or of another shape; the message names it.
    """
    shapes = weight_shapes(config)
    wrong = {
        "misses": sorted(shapes.keys() - weights.keys()),
        "has the unexpected": sorted(weights.keys() - shapes.keys()),
    }
    for what, names in wrong.items():
        if names:
            more = f" and {len(names) - 1} more" if len(names) > 1 else ""
            raise ModelError(f"{source} {what} weight {names[0]}{more}")
    for name, shape in shapes.items():
        if tuple(weights[name].shape) != shape:
            raise ModelError(
                f"weight {name} of {source} is {tuple(weights[name].shape)}; {shape} is expected"
            )


def block_weights(weights: Mapping[str, Tensor], index: int) -> dict[str, Tensor]:
    """The weights of one block, counted from 0, without their common prefix."""
    return under(weights, f"encoder.layers.{index}.")


def under(weights: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """The weights whose names start with `prefix`, without it."""
    return {name.removeprefix(prefix): value for name, value in weights.items() if name.startswith(prefix)}
