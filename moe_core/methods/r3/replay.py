"""Recording a model's routing while it runs, and replaying it where the same tokens run again."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from moe_core.errors import ConfigError
from moe_core.methods.r3.trace import MISSING, Trace, fingerprint
from moe_core.transformers.find import find_moe
from moe_core.transformers.tap import Call, Choice, Frame, RoutingTap
from moe_core.transformers.weighting import selection_weights


class Recorder:
    """What was decided so far; `trace` puts it together.

    Passes that continue a cached text (as `generate` makes them) extend the texts of the pass before;
    a pass without cache begins new ones.
    """

    def __init__(self, model: nn.Module) -> None:
        blocks = find_moe(model)
        self._layers, self._num_experts = len(blocks), blocks[0].num_experts
        self._model = fingerprint(model)
        self._groups: list[list[tuple[Frame, list[Tensor]]]] = []

    def watch(self, call: Call) -> None:
        """Keep one decision, and leave it as it is."""
        if call.order == 0:
            self._begin(call.frame)
        rows, steps = call.frame.live.shape
        decided = call.experts.detach().view(rows, steps, -1)
        self._groups[-1][-1][1].append(decided.to("cpu", torch.int16))

    def _begin(self, frame: Frame) -> None:
        if frame.tokens is None:
            raise ConfigError(
                "routing is recorded by token; call the model with input_ids, not inputs_embeds"
            )
        if frame.cached == 0 or not self._groups:
            self._groups.append([])
        self._groups[-1].append((frame, []))

    @property
    def trace(self) -> Trace:
        """The trace of all texts so far.

        Raises:
            ConfigError: nothing was recorded.
        """
        texts = [text for group in self._groups for text in _texts(group, self._layers)]
        if not texts:
            raise ConfigError("nothing was recorded: the model was not called while recording")
        size, active = max(len(tokens) for tokens, _ in texts), texts[0][1].shape[-1]
        experts = torch.full((len(texts), size, self._layers, active), MISSING)
        fed = torch.full((len(texts), size), MISSING)
        for row, (tokens, decided) in enumerate(texts):
            fed[row, : len(tokens)] = tokens
            experts[row, : len(tokens)] = decided.long()
        return Trace(experts, fed, self._num_experts, self._model)


def _texts(group: list[tuple[Frame, list[Tensor]]], layers: int) -> list[tuple[Tensor, Tensor]]:
    """Per row of a batch its tokens (L,) and experts (L, M, K), padding left out."""
    if any(len(decided) != layers for _, decided in group):
        raise ConfigError("a forward pass broke off while it was recorded; record again")
    tokens = torch.cat([frame.tokens.cpu() for frame, _ in group if frame.tokens is not None], dim=1)
    live = torch.cat([frame.live.cpu() for frame, _ in group], dim=1)
    experts = torch.cat([torch.stack(decided, dim=2) for _, decided in group], dim=1)
    return [(tokens[row][live[row]], experts[row][live[row]]) for row in range(len(tokens))]


@contextmanager
def record(model: nn.Module) -> Iterator[Recorder]:
    """Recorder of the routing inside the block, also of `model.generate`.

    Pass `generate` an attention mask: it guesses one where a prompt contains the padding token.

    Raises:
        ConfigError: the model is dense.
    """
    recorder = Recorder(model)
    with RoutingTap(model, recorder.watch):
        yield recorder


@contextmanager
def replay(model: nn.Module, trace: Trace, strict: bool = True) -> Iterator["Replay"]:
    """Inside the block experts are those of the trace; weights and gradients are from the model's own scores.

    Texts are found by their tokens, whatever their order and padding. Tokens that the trace does not reach
    (the last sampled one was never fed) are routed by the model itself.

    Args:
        model: of the shape that was recorded; its weights may have changed since.
        trace: of the texts that will be run.
        strict: whether a text that the trace does not hold is an error, or else is routed by the model.

    Raises:
        ConfigError: the trace is of another model; or, on a forward pass, of other texts.

    Source: Ma et al., "Stabilizing MoE Reinforcement Learning by Aligning Training and Inference Routers"
    (arXiv 2510.11370), eq. for g_i. Differs: routers that use sigmoid, scaling or no normalisation keep
    their own formula over the replayed experts.
    """
    if fingerprint(model) != trace.model:
        blocks = find_moe(model)
        raise ConfigError(
            f"the trace was recorded on another model (fingerprint {trace.model}, "
            f"{trace.experts.shape[2]} MoE layers, {trace.num_experts} experts); this one is "
            f"{fingerprint(model)} with {len(blocks)} layers, {blocks[0].num_experts} experts"
        )
    replaying = Replay(trace, strict)
    with RoutingTap(model, replaying.decide):
        yield replaying


class Replay:
    """A trace laid over forward passes.

    Attributes:
        replayed, natural: tokens so far that the trace decided, and that the model decided itself.
    """

    def __init__(self, trace: Trace, strict: bool) -> None:
        self.replayed = 0
        self.natural = 0
        self._strict = strict
        self._experts = trace.experts
        lengths = (trace.tokens != MISSING).sum(dim=1).tolist()
        self._texts = [_key(row[:length]) for row, length in zip(trace.tokens, lengths, strict=True)]
        self._history: list[Tensor] = []
        self._frame: Frame | None = None
        self._rows: Any = None

    def decide(self, call: Call) -> Choice | None:
        """The decision that the trace prescribes."""
        if call.frame is not self._frame:
            self._enter(call.frame)
        prescribed = self._rows[:, :, call.order].flatten(0, 1).to(call.experts.device)
        experts = torch.where(prescribed == MISSING, call.experts, prescribed)
        weights = selection_weights(call.block.router, call.logits, experts)
        return Choice(weights.to(call.weights.dtype), experts)

    def _enter(self, frame: Frame) -> None:
        if frame.tokens is None:
            raise ConfigError(
                "routing is replayed by token; call the model with input_ids, not inputs_embeds"
            )
        fresh = [row[live].cpu() for row, live in zip(frame.tokens, frame.live, strict=True)]
        past = (
            self._history if frame.cached and len(self._history) == len(fresh) else [row[:0] for row in fresh]
        )
        self._history = [torch.cat(pair) for pair in zip(past, fresh, strict=True)]
        self._frame = frame
        self._rows = torch.stack([self._row(index, frame) for index in range(len(fresh))])
        known = int((self._rows[..., 0, 0] != MISSING).sum())
        self.replayed += known
        self.natural += int(frame.live.sum()) - known

    def _row(self, index: int, frame: Frame) -> Tensor:
        """Prescribed experts (S, M, K) of one row of the pass."""
        positions = frame.positions[index].cpu()
        text = self._find(index)
        rows = torch.full((len(positions), *self._experts.shape[2:]), MISSING)
        if text is None:
            return rows
        known = (positions >= 0) & (positions < self._experts.shape[1])
        rows[known] = self._experts[text, positions[known]]
        return rows

    def _find(self, index: int) -> int | None:
        """The text of the trace that begins like this row, the one at the same place first."""
        tokens = _key(self._history[index])
        places = [index % max(1, len(self._texts)), *range(len(self._texts))]
        for place in places:
            if self._texts and _agree(tokens, self._texts[place], self._strict):
                return place
        if self._strict and tokens:
            raise ConfigError(
                f"row {index} of the batch ({len(self._history[index])} tokens) is none of the "
                f"{len(self._texts)} texts of the trace; replay the texts that were recorded, or pass "
                "strict=False"
            )
        return None


def _key(tokens: Tensor) -> bytes:
    return tokens.int().numpy().tobytes()


def _agree(tokens: bytes, text: bytes, strict: bool) -> bool:
    """Whether one begins with the other; strictly, at most the last token may be beyond the text."""
    shared = min(len(tokens), len(text))
    if tokens[:shared] != text[:shared]:
        return False
    missing = (len(tokens) - shared) // 4
    return missing <= 1 if strict else shared > 0
