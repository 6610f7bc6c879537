"""Finding the mixture-of-experts and the dense GLU blocks of a causal language model."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from moe_core.errors import ConfigError
from moe_core.glu import GluWeights

SHARED_NAMES = ("shared_experts", "shared_expert")
GLU_NAMES = ("gate_proj", "up_proj", "down_proj")


@dataclass(frozen=True)
class DenseBlock:
    """A dense GLU block of a model.

    Attributes:
        layer: index of its decoder layer.
        path: name of the module in the model.
        module: with `gate_proj`, `up_proj`, `down_proj` and `act_fn`.
        hidden: D, width of the residual stream.
        width: P, number of GLU neurons.
    """

    layer: int
    path: str
    module: Any
    hidden: int
    width: int

    def weights(self) -> GluWeights:
        """The block's weights; views, not copies."""
        layers = [getattr(self.module, name) for name in GLU_NAMES]
        gate, up, down = ((layer.weight, layer.bias) for layer in layers)
        return GluWeights(gate[0], up[0], down[0], gate[1], up[1], down[1])


@dataclass(frozen=True)
class MoeBlock:
    """A mixture-of-experts block of a model.

    Attributes:
        layer: index of its decoder layer.
        path: name of the module in the model.
        module: the whole block.
        router: returns (logits (T, E), weights (T, K), experts (T, K)) for inputs (T, D).
        experts: holds fused weights, or factors of them.
        shared: the block's always-active GLU, or None.
        num_experts: E.
        active: K, experts per token.
        hidden: D.
        width: P, neurons of one expert.
    """

    layer: int
    path: str
    module: Any
    router: Any
    experts: Any
    shared: Any
    num_experts: int
    active: int
    hidden: int
    width: int

    @property
    def interleaved(self) -> bool:
        """Whether gate and up rows alternate instead of following one another (GPT-OSS)."""
        return not getattr(self.experts, "is_concatenated", True)

    @property
    def transposed(self) -> bool:
        """Whether fused weights are stored (E, in, out) instead of (E, out, in) (GPT-OSS)."""
        return bool(getattr(self.experts, "is_transposed", False))

    def weights(self, expert: int) -> GluWeights:
        """Weights of one expert, in the layout of a dense block; views, not copies."""
        fused, down = self._fused()
        fused, down = fused[expert], down[expert]
        if self.transposed:
            fused, down = fused.T, down.T
        gate, up = self._halves(fused)
        if getattr(self.experts, "gate_up_proj_bias", None) is None:
            return GluWeights(gate, up, down)
        gate_bias, up_bias = self._halves(self.experts.gate_up_proj_bias[expert])
        return GluWeights(gate, up, down, gate_bias, up_bias, self.experts.down_proj_bias[expert])

    def stacked(self) -> tuple[Tensor, Tensor, Tensor]:
        """All experts' gate (E, P, D), up (E, P, D) and down (E, D, P); views of the fused weights."""
        fused, down = self._fused()
        if self.transposed:
            fused, down = fused.transpose(1, 2), down.transpose(1, 2)
        gate, up = (fused[:, ::2], fused[:, 1::2]) if self.interleaved else fused.chunk(2, dim=1)
        return gate, up, down

    def _fused(self) -> tuple[Tensor, Tensor]:
        if not hasattr(self.experts, "gate_up_proj"):
            raise ConfigError(
                f"the experts of {self.path} ({type(self.experts).__name__}) hold no fused weights; "
                "a model that was compressed before cannot be compressed again"
            )
        return self.experts.gate_up_proj, self.experts.down_proj

    def _halves(self, fused: Tensor) -> tuple[Tensor, Tensor]:
        if self.interleaved:
            return fused[::2], fused[1::2]
        gate, up = fused.chunk(2)
        return gate, up


def find_dense(model: nn.Module) -> tuple[DenseBlock, ...]:
    """Dense GLU blocks, in layer order; those that are a part of an MoE block do not count.

    Raises:
        ConfigError: there is none; the message says what the model is instead.
    """
    found = tuple(_dense_blocks(model))
    if not found:
        kind = "has mixture-of-experts blocks only" if any(_moe_blocks(model)) else "has no GLU block"
        raise ConfigError(
            f"{_name(model)} {kind}; this method takes a dense model whose layers have an mlp with "
            "gate_proj, up_proj and down_proj, such as Llama, Mistral, Qwen2 or Qwen3"
        )
    return found


def find_moe(model: nn.Module) -> tuple[MoeBlock, ...]:
    """Mixture-of-experts blocks, in layer order; dense layers of the same model are passed over.

    Raises:
        ConfigError: there is none; the message says what the model is instead.
    """
    found = tuple(_moe_blocks(model))
    if not found:
        kind = "is dense" if any(_dense_blocks(model)) else "has no mixture-of-experts block that is known"
        raise ConfigError(
            f"{_name(model)} {kind}; this method takes a model with routed experts, such as Qwen2-MoE, "
            "Qwen3-MoE, Mixtral, OLMoE, DeepSeek-V2, DeepSeek-V3 or GPT-OSS"
        )
    return found


def check_finite(model: nn.Module) -> None:
    """Nothing, when all weights are finite.

    Raises:
        ConfigError: one is not; the message names the tensor.
    """
    for name, weight in model.named_parameters():
        # A sum is finite only if every term is, and needs no boolean copy of the weight.
        if not torch.isfinite(weight.detach().sum(dtype=torch.float64)):
            raise ConfigError(
                f"{_name(model)} holds a weight that is not finite in {name}; finite ones are needed"
            )


def _dense_blocks(model: nn.Module) -> Iterator[DenseBlock]:
    for layer, path, module in _mlps(model):
        if all(hasattr(module, name) for name in GLU_NAMES):
            width, hidden = module.gate_proj.weight.shape
            yield DenseBlock(layer, path, module, hidden, width)


def _moe_blocks(model: nn.Module) -> Iterator[MoeBlock]:
    for layer, path, module in _mlps(model):
        router = getattr(module, "gate", None) or getattr(module, "router", None)
        experts = getattr(module, "experts", None)
        if router is None or experts is None or not hasattr(router, "top_k"):
            continue
        shared = next((getattr(module, name) for name in SHARED_NAMES if hasattr(module, name)), None)
        num_experts, hidden = router.weight.shape
        yield MoeBlock(
            layer, path, module, router, experts, shared, num_experts, router.top_k, hidden, _width(experts)
        )


def _width(experts: Any) -> int:
    """P: the down projection is (E, D, P), or (E, P, D) where it is stored transposed."""
    if not isinstance(getattr(experts, "down_proj", None), Tensor):
        return experts.width
    return experts.down_proj.shape[1 if getattr(experts, "is_transposed", False) else 2]


def _mlps(model: nn.Module) -> Iterator[tuple[int, str, Any]]:
    """(index, name, module) of the `mlp` of each decoder layer."""
    body = getattr(model, "model", None)
    layers: Sequence[Any] = getattr(body, "layers", ())
    for index, layer in enumerate(layers):
        if hasattr(layer, "mlp"):
            yield index, f"model.layers.{index}.mlp", layer.mlp


def _name(model: nn.Module) -> str:
    return type(model).__name__
