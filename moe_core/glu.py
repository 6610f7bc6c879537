"""Gated linear units: one, many as routed experts in grouped matrix products, and a block of both."""

from collections.abc import Callable
from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from moe_core.errors import ConfigError

Combine = Literal["unit", "softmax"]
ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "silu": F.silu,
    "swish": F.silu,
    "gelu": F.gelu,
    "gelu_pytorch_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "relu": F.relu,
}
ALIGNED_BYTES = 16


class GluWeights(NamedTuple):
    """Weights of one gated linear unit: gate and up (P, D), down (D, P); biases or None."""

    gate: Tensor
    up: Tensor
    down: Tensor
    gate_bias: Tensor | None = None
    up_bias: Tensor | None = None
    down_bias: Tensor | None = None


class Dispatch(NamedTuple):
    """(token, slot) pairs of a routing, sorted by expert.

    Attributes:
        order: (N,) int64, positions in the flattened (T * K) routing.
        tokens: (N,) int64, the token of each pair.
        experts: (N,) int64, ascending.
    """

    order: Tensor
    tokens: Tensor
    experts: Tensor

    @classmethod
    def of(cls, experts: Tensor) -> "Dispatch":
        """The pairs of a (T, K) choice of experts."""
        flat, order = experts.reshape(-1).sort(stable=True)
        return cls(order, order // experts.shape[-1], flat)

    def combine(self, outputs: Tensor, weights: Tensor) -> Tensor:
        """(T, D): outputs (N, D) of the pairs, weighted by (T, K) and summed over each token's slots."""
        weighted = outputs * weights.reshape(-1)[self.order].unsqueeze(-1).to(outputs.dtype)
        back = torch.empty_like(self.order)
        back[self.order] = torch.arange(len(back), device=back.device)
        return weighted[back].view(*weights.shape, -1).sum(dim=1)


def activation(name: str) -> Callable[[Tensor], Tensor]:
    """The activation function of that name.

    Raises:
        ConfigError: there is none.
    """
    if name not in ACTIVATIONS:
        raise ConfigError(f"activation {name!r} is unknown; there are: {', '.join(sorted(ACTIVATIONS))}")
    return ACTIVATIONS[name]


def grouped_linear(x: Tensor, weight: Tensor, groups: Tensor) -> Tensor:
    """(N, D_out): row n is weight[groups[n]] @ x[n], in one grouped matrix product.

    Args:
        x: (N, D_in).
        weight: (E, D_out, D_in).
        groups: (N,) int64, ascending; the matrix of each row.
    """
    ends = torch.searchsorted(groups, torch.arange(len(weight), device=x.device), right=True)
    step = ALIGNED_BYTES // x.element_size()
    outputs = weight.shape[1]
    # The kernel wants rows of a multiple of 16 bytes; widths of real models are, odd ranks are not.
    if short := -x.shape[1] % step:
        x, weight = F.pad(x, (0, short)), F.pad(weight, (0, short))
    if short := -outputs % step:
        weight = F.pad(weight, (0, 0, 0, short))
    product = F.grouped_mm(x.contiguous(), weight.transpose(1, 2), offs=ends.int())
    return product[:, :outputs]


class DenseGlu(nn.Module):
    """act(x W_gate) * (x W_up) W_down with (B, ..., D) in and out.

    Named like the blocks of Hugging Face models, so that it can stand in for one.
    """

    def __init__(self, hidden: int, width: int, act: str, *, bias: bool = False) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(hidden, width, bias=bias)
        self.up_proj = nn.Linear(hidden, width, bias=bias)
        self.down_proj = nn.Linear(width, hidden, bias=bias)
        self.act_fn = activation(act)

    def forward(self, x: Tensor) -> Tensor:
        """(B, ..., D)."""
        return self.down_proj(self.act_fn(self.gate_proj(x)) * self.up_proj(x))

    @torch.no_grad()
    def fill(self, glu: GluWeights, neurons: Tensor, *, down_bias: bool = True) -> None:
        """Take over some neurons of a dense block; without its down bias where `down_bias` is False."""
        self.gate_proj.weight.copy_(glu.gate[neurons])
        self.up_proj.weight.copy_(glu.up[neurons])
        self.down_proj.weight.copy_(glu.down[:, neurons])
        if self.gate_proj.bias is None:
            return
        for layer, bias in ((self.gate_proj, glu.gate_bias), (self.up_proj, glu.up_bias)):
            layer.bias.zero_() if bias is None else layer.bias.copy_(bias[neurons])
        if glu.down_bias is not None and down_bias:
            self.down_proj.bias.copy_(glu.down_bias)
        else:
            self.down_proj.bias.zero_()


class GluExperts(nn.Module):
    """E gated linear units of one width, all in two grouped matrix products.

    Attributes:
        gate_up_proj: (E, 2P, D), gate rows first.
        down_proj: (E, D, P).
        gate_up_bias: (E, 2P) or None. The down projection's bias is added once, outside.
    """

    def __init__(self, num_experts: int, hidden: int, width: int, act: str, *, bias: bool = False) -> None:
        super().__init__()
        self.num_experts = num_experts
        self.gate_up_proj = nn.Parameter(torch.zeros(num_experts, 2 * width, hidden))
        self.down_proj = nn.Parameter(torch.zeros(num_experts, hidden, width))
        self.gate_up_bias = nn.Parameter(torch.zeros(num_experts, 2 * width)) if bias else None
        self.act_fn = activation(act)

    def forward(self, x: Tensor, experts: Tensor, weights: Tensor) -> Tensor:
        """(T, D): the weighted sum of the chosen experts' outputs.

        Args:
            x: (T, D).
            experts: (T, K) int64.
            weights: (T, K).
        """
        pairs = Dispatch.of(experts)
        fused = grouped_linear(x[pairs.tokens], self.gate_up_proj, pairs.experts)
        if self.gate_up_bias is not None:
            fused = fused + self.gate_up_bias[pairs.experts]
        gate, up = fused.chunk(2, dim=-1)
        return pairs.combine(grouped_linear(self.act_fn(gate) * up, self.down_proj, pairs.experts), weights)


class GluTopKRouter(nn.Module):
    """Top-k choice of experts by linear scores, or by what one neuron of each expert does.

    Attributes:
        weight: (E, D), rows that score the input.
        up_weight: (E, D) or None; when there, the score is |act(x weight) * (x up_weight)|, the
            activation of one representative neuron of each expert (CMoE).
        top_k: K.
    """

    def __init__(
        self, num_experts: int, hidden: int, top_k: int, combine: Combine, act: str | None = None
    ) -> None:
        super().__init__()
        self.top_k = top_k
        self.num_experts = num_experts
        self.combine = combine
        self.weight = nn.Parameter(torch.zeros(num_experts, hidden))
        self.up_weight = nn.Parameter(torch.zeros(num_experts, hidden)) if act else None
        self.act_fn = activation(act) if act else None

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Scores (T, E), weights (T, K) and chosen experts (T, K)."""
        x = x.reshape(-1, x.shape[-1])
        scores = F.linear(x, self.weight)
        if self.act_fn is not None and self.up_weight is not None:
            scores = (self.act_fn(scores) * F.linear(x, self.up_weight)).abs()
        experts = scores.topk(self.top_k, dim=-1).indices
        return scores, self.weigh(scores, experts), experts

    def weigh(self, scores: Tensor, experts: Tensor) -> Tensor:
        """Weights (T, K) of a choice: ones, or its entries of the softmax over all experts."""
        chosen = scores.softmax(dim=-1, dtype=torch.float32).to(scores.dtype).gather(-1, experts)
        return chosen if self.combine == "softmax" else torch.ones_like(chosen)


class RoutedGlu(nn.Module):
    """A GLU cut into experts: some always active, the rest routed; with ones as weights a part of the sum.

    Attributes:
        shared_experts: `DenseGlu` of the neurons that are always active, or None.
        experts: `GluExperts`, the routed ones.
        gate: `GluTopKRouter`.
        down_bias: (D,) or None, added once.

    Source: ExpertWeaver (arXiv 2602.15521), pruning and downcycling; DOT-MoE (arXiv 2606.01666), export.
    """

    def __init__(
        self,
        hidden: int,
        *,
        shared: int,
        routed: int,
        width: int,
        active: int,
        act: str,
        combine: Combine = "unit",
        representative: bool = False,
        bias: bool = False,
    ) -> None:
        """Zero weights of the right shapes.

        Args:
            hidden: D.
            shared: number of always active experts; 0 for none.
            routed: E >= 1, number of routed experts.
            width: neurons of one expert.
            active: K in 1..E, routed experts per token.
            act: name of the activation.
            combine: how chosen experts are weighted.
            representative: whether the router scores by representative neurons instead of linearly.
            bias: whether the GLU has biases.

        Raises:
            ConfigError: `active` is out of range.
        """
        super().__init__()
        if not 1 <= active <= routed:
            raise ConfigError(f"{active} routed experts per token were asked for; 1..{routed} are allowed")
        self.shared_experts = DenseGlu(hidden, shared * width, act, bias=bias) if shared else None
        self.experts = GluExperts(routed, hidden, width, act, bias=bias)
        self.gate = GluTopKRouter(routed, hidden, active, combine, act if representative else None)
        self.down_bias = nn.Parameter(torch.zeros(hidden)) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        """(B, ..., D)."""
        rows = x.reshape(-1, x.shape[-1])
        _, weights, experts = self.gate(rows)
        total = self.experts(rows, experts, weights)
        if self.shared_experts is not None:
            total = total + self.shared_experts(rows)
        if self.down_bias is not None:
            total = total + self.down_bias
        return total.view_as(x)

    @torch.no_grad()
    def fill(self, glu: GluWeights, shared: Tensor, routed: Tensor) -> None:
        """Take over the neurons of a dense block: `shared` (S,), `routed` (E, P) indices."""
        if self.shared_experts is not None:
            self.shared_experts.fill(glu, shared, down_bias=False)
        width = routed.shape[1]
        self.experts.gate_up_proj[:, :width].copy_(glu.gate[routed])
        self.experts.gate_up_proj[:, width:].copy_(glu.up[routed])
        self.experts.down_proj.copy_(glu.down[:, routed].transpose(0, 1))
        if self.experts.gate_up_bias is not None and glu.gate_bias is not None and glu.up_bias is not None:
            self.experts.gate_up_bias.copy_(torch.cat([glu.gate_bias[routed], glu.up_bias[routed]], dim=1))
        if self.down_bias is not None and glu.down_bias is not None:
            self.down_bias.copy_(glu.down_bias)
