"""A tap on every router of a model: watch its decisions, or replace them, without touching its code."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor, nn

from moe_core.errors import ConfigError
from moe_core.transformers.find import MoeBlock, find_moe


class Frame(NamedTuple):
    """One forward pass of the whole model, as its routers cannot see it.

    Attributes:
        tokens: (B, S) int64, or None where the model was given embeddings.
        live: (B, S) bool, False at padding.
        positions: (B, S) int64, index of each token among the live ones of its row, cached ones
            included; -1 at padding.
        cached: columns of earlier passes, 0 in the first pass over a text.
    """

    tokens: Tensor | None
    live: Tensor
    positions: Tensor
    cached: int


class Choice(NamedTuple):
    """What a router's decision is replaced by.

    Attributes:
        weights: (T, K') float; a slot that should stay empty repeats an expert of its row with weight 0,
            which every implementation of fused experts takes.
        experts: (T, K') int64.
    """

    weights: Tensor
    experts: Tensor


@dataclass(frozen=True)
class Call:
    """One decision of one router; rows are the frame's tokens, row by row, T = B * S.

    Attributes:
        order: index among the model's MoE blocks, which skips dense layers.
        block: where it happens.
        frame: the forward pass it belongs to.
        logits: (T, E) scores before activation.
        weights: (T, K) of the router's own decision.
        experts: (T, K) int64 of the router's own decision.
    """

    order: int
    block: MoeBlock
    frame: Frame
    logits: Tensor
    weights: Tensor
    experts: Tensor


Rule = Callable[[Call], Choice | None]


class RoutingTap:
    """Context manager in which `rule` sees every routing decision and may replace it.

    A rule that returns None leaves the decision as it is, bit by bit. Under activation checkpointing the
    recomputation of a pass asks the rule again, with the frame of the latest pass: take one backward pass
    per forward pass there.

    Raises:
        ConfigError: the model has no MoE block, or its attention mask is not (B, length).
    """

    def __init__(self, model: nn.Module, rule: Rule) -> None:
        self.blocks = find_moe(model)
        self._body: Any = model.get_submodule("model")
        self._rule = rule
        self._frame: Frame | None = None
        self._handles: list[Any] = []

    def attach(self) -> None:
        """Start listening."""
        self._handles.append(self._body.register_forward_pre_hook(self._enter_pass, with_kwargs=True))
        for order, block in enumerate(self.blocks):
            self._handles.append(block.router.register_forward_hook(self._hook(order, block)))

    def remove(self) -> None:
        """Stop listening; the model is as it was."""
        while self._handles:
            self._handles.pop().remove()

    def __enter__(self) -> Self:
        self.attach()
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()

    def _enter_pass(self, _module: nn.Module, given: tuple[Any, ...], named: dict[str, Any]) -> None:
        self._frame = frame_of(dict(zip(("input_ids", "attention_mask"), given, strict=False)) | named)

    def _hook(self, order: int, block: MoeBlock) -> Callable[..., Any]:
        def decide(_module: nn.Module, _given: Any, output: tuple[Tensor, Tensor, Tensor]) -> Any:
            logits, weights, experts = output
            if self._frame is None or self._frame.live.numel() != len(logits):
                raise ConfigError(
                    f"the router of {block.path} decided on {len(logits)} rows outside a forward pass of the "
                    "model; call the model itself, not its layers"
                )
            choice = self._rule(Call(order, block, self._frame, logits, weights, experts))
            # None keeps the output; a hook that returned anything else would replace it.
            return None if choice is None else (logits, choice.weights, choice.experts)

        return decide


def frame_of(named: dict[str, Any]) -> Frame:
    """The frame of a forward pass with these arguments.

    Raises:
        ConfigError: the attention mask is not (B, length).
    """
    tokens, embeddings = named.get("input_ids"), named.get("inputs_embeds")
    given = tokens if tokens is not None else embeddings
    if given is None:
        raise ConfigError("the model was called with neither input_ids nor inputs_embeds")
    rows, steps = given.shape[:2]
    mask = named.get("attention_mask")
    if mask is None:
        cached = _cached(named)
        mask = torch.ones(rows, cached + steps, dtype=torch.bool, device=given.device)
    elif not isinstance(mask, Tensor) or mask.ndim != 2 or mask.shape[1] < steps:
        shape = tuple(mask.shape) if isinstance(mask, Tensor) else type(mask).__name__
        raise ConfigError(
            f"the attention mask is {shape}; a tapped model takes one of (B, length) = ({rows}, ..)"
        )
    live = mask.bool()
    positions = (live.cumsum(dim=1) - 1).masked_fill(~live, -1)
    return Frame(tokens, live[:, -steps:], positions[:, -steps:], mask.shape[1] - steps)


def cache_argument(model: nn.Module) -> str:
    """What a model's forward calls its cache; transformers renamed it."""
    return "cache" if "cache" in inspect.signature(model.forward).parameters else "past_key_values"


def _cached(named: dict[str, Any]) -> int:
    """Number of tokens in the cache, under either of its names."""
    held = named.get("cache") if named.get("cache") is not None else named.get("past_key_values")
    return 0 if held is None else int(held.get_seq_length())
