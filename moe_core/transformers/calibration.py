"""What blocks of a model do on calibration text, in one streaming pass that keeps sums, not activations."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from moe_core.errors import ConfigError
from moe_core.transformers.find import DenseBlock, MoeBlock, find_dense, find_moe


@dataclass(frozen=True)
class RoutingStatistics:
    """How often one MoE block uses its experts, and what goes in.

    Attributes:
        layer: index of the decoder layer.
        counts: (E,) int64, tokens sent to each expert.
        weights: (E,) float64, sum of the weights it got.
        moment: (D, D) float64 sum of x x^T over tokens.
        tokens: number of tokens; counts sum to tokens * K.
    """

    layer: int
    counts: Tensor
    weights: Tensor
    moment: Tensor
    tokens: int

    @property
    def frequency(self) -> Tensor:
        """(E,) float64 shares of use; they sum to 1."""
        return self.counts.double() / self.counts.sum()


@dataclass(frozen=True)
class GluProfile:
    """How the neurons of one dense GLU block act on samples.

    Attributes:
        layer: index of the decoder layer.
        gate: (P, M) float32 mean of act(gate) over the tokens of each of M samples.
        gate_strength: (P, M) float32 mean of |act(gate)|.
        hidden_strength: (P,) float64 mean of |act(gate) * up| over all tokens.
        inputs: (R, D) block inputs of R tokens drawn without replacement.
        tokens: number of tokens seen.
    """

    layer: int
    gate: Tensor
    gate_strength: Tensor
    hidden_strength: Tensor
    inputs: Tensor
    tokens: int


def routing_statistics(
    model: nn.Module, ids: Tensor, *, mask: Tensor | None = None, batch: int = 8
) -> tuple[RoutingStatistics, ...]:
    """Statistics of every MoE block.

    Args:
        model: with MoE blocks.
        ids: (N, L) int64 tokens.
        mask: (N, L), zero where a token is padding and must not count; every token counts without it.
        batch: sequences per forward pass.

    Raises:
        ConfigError: the model is dense, or there is no token.
    """
    mask = _checked(ids, mask)
    sums = [_RoutingSums(block) for block in find_moe(model)]
    _stream(model, ids, mask, batch, [(one.block.router, one.hook) for one in sums])
    return tuple(one.statistics() for one in sums)


def glu_profiles(
    model: nn.Module,
    ids: Tensor,
    *,
    mask: Tensor | None = None,
    batch: int = 8,
    keep: int = 1024,
    seed: int = 0,
) -> tuple[GluProfile, ...]:
    """Profiles of every dense GLU block; each sequence is a sample.

    Args:
        model: with dense GLU blocks.
        ids: (N, L) int64 tokens.
        mask: (N, L), zero where a token is padding and must not count.
        batch: sequences per forward pass.
        keep: R, number of tokens whose inputs are kept; all of them when there are fewer.
        seed: of the draw of these tokens.

    Raises:
        ConfigError: the model is not dense, or there is no token.
    """
    mask = _checked(ids, mask)
    places = mask.flatten().nonzero().squeeze(1)
    draw = torch.randperm(len(places), generator=torch.Generator().manual_seed(seed))[:keep]
    kept = torch.zeros(mask.numel(), dtype=torch.bool)
    kept[places[draw]] = True
    sums = [_GluSums(block, kept.view_as(mask)) for block in find_dense(model)]
    hooks = [hook for one in sums for hook in one.hooks()]
    _stream(model, ids, mask, batch, hooks)
    return tuple(one.profile() for one in sums)


def expert_fisher(model: nn.Module, ids: Tensor, *, batch: int = 4) -> tuple[Tensor, ...]:
    """(E,) float64 for every MoE block: mean squared gradient of the loss by its gate and up weights.

    A layer's gradient is reduced and dropped as soon as it is there, so memory for one is enough.

    Raises:
        ConfigError: the model is dense.
    """
    blocks = find_moe(model)
    sums = [torch.zeros(block.num_experts, dtype=torch.float64) for block in blocks]
    wanted = {id(block.experts.gate_up_proj) for block in blocks}
    before = [(weight, weight.requires_grad) for weight in model.parameters()]
    with ExitStack() as stack:
        for weight, _ in before:
            weight.requires_grad_(id(weight) in wanted)
        for block, total in zip(blocks, sums, strict=True):
            hook = block.experts.gate_up_proj.register_post_accumulate_grad_hook(_reducer(total))
            stack.callback(hook.remove)
        stack.callback(lambda: [weight.requires_grad_(flag) for weight, flag in before])
        for part in ids.split(batch):
            model(input_ids=part, labels=part, use_cache=False).loss.backward()
    return tuple(sums)


def _reducer(total: Tensor) -> Callable[[Tensor], None]:
    def reduce(weight: Tensor) -> None:
        assert weight.grad is not None
        total.add_(weight.grad.square().mean(dim=(1, 2)).double().cpu())
        weight.grad = None

    return reduce


class _RoutingSums:
    """Running sums of one MoE block."""

    def __init__(self, block: MoeBlock) -> None:
        self.block = block
        self.counts = torch.zeros(block.num_experts, dtype=torch.int64)
        self.weights = torch.zeros(block.num_experts, dtype=torch.float64)
        self.moment = torch.zeros(block.hidden, block.hidden, dtype=torch.float64)
        self.tokens = 0

    def hook(self, inputs: Tensor, output: Any, mask: Tensor, first: int) -> None:
        rows = mask.flatten()
        _, weights, experts = (part[rows].cpu() for part in output)
        x = inputs.reshape(-1, inputs.shape[-1])[rows].float()
        self.counts += experts.flatten().bincount(minlength=len(self.counts))
        self.weights.index_add_(0, experts.flatten(), weights.flatten().double())
        self.moment += (x.T @ x).double().cpu()
        self.tokens += len(x)

    def statistics(self) -> RoutingStatistics:
        return RoutingStatistics(self.block.layer, self.counts, self.weights, self.moment, self.tokens)


class _GluSums:
    """Running sums of one dense GLU block."""

    def __init__(self, block: DenseBlock, kept: Tensor) -> None:
        self.block, self.kept = block, kept
        self.gate: list[Tensor] = []
        self.gate_strength: list[Tensor] = []
        self.hidden = torch.zeros(block.width, dtype=torch.float64)
        self.inputs: list[Tensor] = []
        self.tokens = 0

    def hooks(self) -> Iterator[tuple[nn.Module, Callable[..., None]]]:
        yield self.block.module.gate_proj, self.see_gate
        yield self.block.module.down_proj, self.see_hidden

    def see_gate(self, inputs: Tensor, output: Tensor, mask: Tensor, first: int) -> None:
        kept = self.kept[first : first + len(mask)].to(inputs.device)
        self.inputs.append(inputs.view(*mask.shape, -1)[kept].float().cpu())
        gate = self.block.module.act_fn(output).float().view(*mask.shape, -1) * mask.unsqueeze(-1)
        lengths = mask.sum(dim=1, keepdim=True).clamp_min(1)
        self.gate.append((gate.sum(dim=1) / lengths).cpu())
        self.gate_strength.append((gate.abs().sum(dim=1) / lengths).cpu())

    def see_hidden(self, inputs: Tensor, output: Tensor, mask: Tensor, first: int) -> None:
        rows = inputs.reshape(-1, inputs.shape[-1])[mask.flatten()]
        self.hidden += rows.abs().sum(dim=0).double().cpu()
        self.tokens += len(rows)

    def profile(self) -> GluProfile:
        gate, size = (torch.cat(parts).T.contiguous() for parts in (self.gate, self.gate_strength))
        return GluProfile(
            self.block.layer, gate, size, self.hidden / self.tokens, torch.cat(self.inputs), self.tokens
        )


def _checked(ids: Tensor, mask: Tensor | None) -> Tensor:
    if ids.dim() != 2 or not ids.numel():
        raise ConfigError(f"calibration tokens have shape {tuple(ids.shape)}; (sequences, length) is needed")
    mask = torch.ones_like(ids, dtype=torch.bool) if mask is None else mask.bool()
    if not mask.any():
        raise ConfigError(f"all {ids.numel()} calibration tokens are padding; at least one must count")
    return mask


@torch.no_grad()
def _stream(
    model: nn.Module,
    ids: Tensor,
    mask: Tensor,
    batch: int,
    hooks: Sequence[tuple[nn.Module, Callable[..., None]]],
) -> None:
    """Run the model over the batches; each hook gets (inputs, output, mask, number of the first sequence)."""
    body = model.get_submodule("model")
    device = next(model.parameters()).device
    for first in range(0, len(ids), batch):
        part, counted = ids[first : first + batch].to(device), mask[first : first + batch].to(device)
        with _hooked(hooks, counted, first):
            body(input_ids=part, attention_mask=counted.long(), use_cache=False)


@contextmanager
def _hooked(
    hooks: Sequence[tuple[nn.Module, Callable[..., None]]], mask: Tensor, first: int
) -> Iterator[None]:
    with ExitStack() as stack:
        for module, see in hooks:

            def forward(_: nn.Module, inputs: Any, output: Any, see: Callable[..., None] = see) -> None:
                see(inputs[0], output, mask, first)

            stack.callback(module.register_forward_hook(forward).remove)
        yield
