"""Routing traces: which experts each token of a text went to, in every layer."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from moe_core.errors import ConfigError
from moe_core.transformers.find import find_moe

FORMAT = "moe_core routing trace 1"
MISSING = -1


@dataclass(frozen=True)
class Trace:
    """The routing of N texts.

    Attributes:
        experts: (N, L, M, K) int64 over M MoE layers, in the order the router gave; -1 where unknown.
        tokens: (N, L) int64 that were fed to the model; -1 after a text's end.
        num_experts: E.
        model: fingerprint of the model's shape, see `fingerprint`.
    """

    experts: Tensor
    tokens: Tensor
    num_experts: int
    model: str

    def save(self, path: str | Path) -> None:
        """Write a safetensors file with one or two bytes per expert."""
        from safetensors.torch import save_file

        kind = _smallest(self.num_experts)
        stored = torch.where(self.experts < 0, torch.iinfo(kind).max, self.experts)
        tensors = {"experts": stored.to(kind).contiguous(), "tokens": self.tokens.int().contiguous()}
        notes = {
            "format": FORMAT,
            "model": self.model,
            "num_experts": str(self.num_experts),
            "tokens_sha256": _digest(self.tokens),
        }
        save_file(tensors, str(path), metadata=notes)


def load_trace(path: str | Path) -> Trace:
    """The trace in a file.

    Raises:
        ConfigError: the file is missing, no trace, or its tokens are not those it was written with.
    """
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(str(path), framework="pt") as file:
            notes = file.metadata() or {}
            if notes.get("format") != FORMAT:
                raise ConfigError(f"{path} holds no routing trace; its format is {notes.get('format')!r}")
            stored, tokens = file.get_tensor("experts"), file.get_tensor("tokens").long()
    except (OSError, SafetensorError) as error:
        raise ConfigError(f"{path} cannot be read as a routing trace: {error}") from error
    if _digest(tokens) != notes["tokens_sha256"]:
        raise ConfigError(f"{path} was changed: its tokens are not those that the trace was recorded on")
    experts, top = stored.long(), torch.iinfo(stored.dtype).max
    trace = Trace(
        experts.masked_fill(experts == top, MISSING), tokens, int(notes["num_experts"]), notes["model"]
    )
    check(trace)
    return trace


def from_vllm(routed: Sequence[Any], tokens: Sequence[Sequence[int]], model: nn.Module) -> Trace:
    """The trace of texts that vLLM generated with `enable_return_routed_experts`.

    Args:
        routed: per text an integer array (length - 1, M, K) of logical experts; the last sampled token
            was never fed, so it has no row.
        tokens: per text all its tokens, prompt and answer.
        model: the one that was served, for its shape.

    Raises:
        ConfigError: the arrays fit neither the tokens nor the model.
    """
    blocks = find_moe(model)
    layers, active, size = len(blocks), blocks[0].active, max((len(row) for row in tokens), default=0)
    if len(routed) != len(tokens):
        raise ConfigError(f"there are {len(routed)} routing arrays for {len(tokens)} texts")
    experts = torch.full((len(tokens), size, layers, active), MISSING)
    fed = torch.full((len(tokens), size), MISSING)
    for row, (array, text) in enumerate(zip(routed, tokens, strict=True)):
        given = torch.as_tensor(array).long()
        if (
            given.ndim != 3
            or given.shape[1:] != (layers, active)
            or not len(text) - 1 <= len(given) <= len(text)
        ):
            raise ConfigError(
                f"the routing of text {row} is {tuple(given.shape)}; a text of {len(text)} tokens on this "
                f"model has ({len(text) - 1}, {layers}, {active})"
            )
        experts[row, : len(given)] = given
        fed[row, : len(given)] = torch.as_tensor(text).long()[: len(given)]
    trace = Trace(experts, fed, blocks[0].num_experts, fingerprint(model))
    check(trace)
    return trace


def check(trace: Trace) -> None:
    """Nothing, when every decision names K different experts or is unknown as a whole.

    Raises:
        ConfigError: one does not; the message says which.
    """
    known = (trace.experts != MISSING).any(dim=-1)
    outside = ((trace.experts < 0) | (trace.experts >= trace.num_experts)).any(dim=-1)
    ranked = trace.experts.sort(dim=-1).values
    twice = (ranked[..., 1:] == ranked[..., :-1]).any(dim=-1)
    bad = (known & (outside | twice)).nonzero()
    if len(bad):
        text, position, layer = bad[0].tolist()
        named = trace.experts[text, position, layer].tolist()
        raise ConfigError(
            f"the trace names experts {named} for token {position} of text {text} in MoE layer {layer}; "
            f"different ones of 0..{trace.num_experts - 1} are allowed"
        )


def fingerprint(model: nn.Module) -> str:
    """Sixteen hex digits that change with the shape of the model's routing, not with its weights."""
    shape = [(block.layer, block.num_experts, block.active, block.hidden) for block in find_moe(model)]
    kind = str(model.config.model_type).removeprefix("moe_core_")  # type: ignore[union-attr]
    return hashlib.sha256(json.dumps([kind, shape]).encode()).hexdigest()[:16]


def _smallest(num_experts: int) -> torch.dtype:
    """The highest value is kept for "unknown"."""
    return torch.uint8 if num_experts < 255 else torch.uint16


def _digest(tokens: Tensor) -> str:
    return hashlib.sha256(tokens.int().cpu().numpy().tobytes()).hexdigest()
