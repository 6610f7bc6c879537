"""Generating with several members: who is drawn, what it says, and who hears of it."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor

from moe_core.errors import ConfigError
from moe_core.methods.me.member import Member
from moe_core.methods.me.vocabulary import Translator

Mode = Literal["exact", "component", "conventional"]


class Sampling(BaseModel):
    """How a distribution is shaped before a token is drawn from it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    temperature: float = Field(default=1.0, gt=0, description="of the scores")
    top_k: int = Field(default=0, ge=0, description="tokens kept; 0 keeps all")
    top_p: float = Field(default=1.0, gt=0, le=1, description="share of probability kept")

    @property
    def plain(self) -> bool:
        """Whether the distribution stays as it is."""
        return self == Sampling()


# The released code's: a selected member is cut to its ten best tokens.
OFFICIAL = Sampling(top_k=10)


@dataclass
class Stats:
    """What generating cost.

    Attributes:
        generated: tokens.
        forwards: row turns per member.
        read: tokens read per member.
        lags: tokens read in one turn -> how often.
    """

    generated: int = 0
    forwards: list[int] = field(default_factory=list)
    read: list[int] = field(default_factory=list)
    lags: Counter[int] = field(default_factory=Counter)


class Written(NamedTuple):
    """Generated tokens, row by row.

    Attributes:
        tokens: those of the member that chose each.
        members: who chose each; -1 in conventional mode, where all did.
    """

    tokens: list[list[int]]
    members: list[list[int]]


class Loop:
    """One generation: rows, members and what each row has got so far."""

    def __init__(
        self,
        models: Sequence[Any],
        weights: Tensor,
        prompts: list[list[list[int]]],
        mode: Mode,
        sampling: Sampling,
        generator: torch.Generator | None,
        max_lag: int | None,
        translator: Translator | None = None,
    ) -> None:
        if not prompts or not all(tokens for row in prompts for tokens in row):
            raise ConfigError("a prompt is empty; members need at least one token to go on from")
        _check_windows(models, len(prompts))
        self._weights, self._mode, self._sampling = weights, mode, sampling
        self._generator, self._max_lag, self._translator = generator, max_lag, translator
        self._members = [Member(model, len(prompts)) for model in models]
        self._written = Written([[] for _ in prompts], [[] for _ in prompts])
        for row, own in enumerate(prompts):
            for member, tokens in zip(self._members, own, strict=True):
                member.append(row, tokens)

    def run(self, limit: int, ends: Sequence[set[int]], stop: Sequence[str] = ()) -> Written:
        """Up to `limit` tokens per row; one stops at its chooser's `ends`, or when `stop` is in its text."""
        open_rows = list(range(len(self._written.tokens)))
        for _ in range(limit):
            if not open_rows:
                break
            chosen = self._step(open_rows)
            open_rows = [
                row
                for row, member, token in chosen
                if token not in ends[member] and not self._stopped(row, stop)
            ]
            self._catch_up(open_rows)
        return self._written

    def stats(self) -> Stats:
        """What it cost so far."""
        members = self._members
        return Stats(
            generated=sum(map(len, self._written.tokens)),
            forwards=[member.forwards for member in members],
            read=[member.read for member in members],
            lags=sum((member.lags for member in members), Counter[int]()),
        )

    def _step(self, rows: list[int]) -> list[tuple[int, int, int]]:
        """(row, member, token) of one step, passed on to all members."""
        if self._mode == "conventional":
            scores = [member.logits(rows) for member in self._members]
            tokens = self._draw(mixed(scores, self._weights).log()).tolist()
            chosen = [(row, -1, token) for row, token in zip(rows, tokens, strict=True)]
        else:
            chosen = self._draw_members(rows)
        for row, member, token in chosen:
            self._written.tokens[row].append(token)
            self._written.members[row].append(member)
            said = self._translator.say(member, token) if self._translator else None
            for index, reader in enumerate(self._members):
                reader.append(row, said[index] if said else (token,))
        return chosen

    def _draw_members(self, rows: list[int]) -> list[tuple[int, int, int]]:
        # One uniform number per row, so that members without weight cost no randomness.
        bounds = self._weights.cumsum(dim=0)[:-1].contiguous()
        uniform = torch.rand(len(rows), generator=self._generator)
        drawn = torch.searchsorted(bounds, uniform, right=True).tolist()
        chosen: list[tuple[int, int, int]] = []
        for index, member in enumerate(self._members):
            own = [row for row, who in zip(rows, drawn, strict=True) if who == index]
            if own:
                tokens = self._draw(member.logits(own)).tolist()
                chosen += [(row, index, token) for row, token in zip(own, tokens, strict=True)]
        return sorted(chosen)

    def _draw(self, scores: Tensor) -> Tensor:
        """Tokens (B,) drawn from scores (B, V)."""
        probabilities = shape(scores, self._sampling)
        return torch.multinomial(probabilities, 1, generator=self._generator).flatten()

    def _catch_up(self, rows: list[int]) -> None:
        if self._max_lag is None:
            return
        for member in self._members:
            far = [row for row in rows if member.lag(row) > self._max_lag]
            if far:
                member.logits(far)

    def _stopped(self, row: int, stop: Sequence[str]) -> bool:
        """Looks at the end of the text only: decoding all of it at every token would be quadratic."""
        tail = max((len(word.encode()) for word in stop), default=0)
        return bool(stop) and any(word in self.text(self._written, row, tail) for word in stop)

    def text(self, written: Written, row: int, tail: int = 0) -> str:
        """The text of a row, or what its last `tail` tokens say."""
        pairs = list(zip(written.members[row], written.tokens[row], strict=True))[-tail:]
        parts = [self._translator.bytes_of(*pair) for pair in pairs] if self._translator else []
        return b"".join(parts).decode("utf-8", errors="replace")


def shape(scores: Tensor, sampling: Sampling) -> Tensor:
    """Probabilities (B, V) float32 of scores (B, V) after temperature, top-k and top-p."""
    scores = scores.float() / sampling.temperature
    if 0 < sampling.top_k < scores.shape[-1]:
        least = scores.topk(sampling.top_k, dim=-1).values[:, -1:]
        scores = scores.masked_fill(scores < least, float("-inf"))
    probabilities = scores.softmax(dim=-1)
    if sampling.top_p >= 1:
        return probabilities
    ranked, order = probabilities.sort(dim=-1, descending=True)
    cut = ranked.cumsum(dim=-1) - ranked >= sampling.top_p
    probabilities = torch.zeros_like(probabilities).scatter(-1, order, ranked.masked_fill(cut, 0.0))
    return probabilities / probabilities.sum(dim=-1, keepdim=True)


def mixed(scores: Sequence[Tensor], weights: Tensor) -> Tensor:
    """Mixture (B, V) float32 of the distributions of scores, (B, V) each."""
    probabilities = torch.stack([each.float().softmax(dim=-1) for each in scores])
    return (weights.view(-1, 1, 1) * probabilities).sum(dim=0)


def _check_windows(models: Sequence[Any], rows: int) -> None:
    """A window counts columns of the cache, and rows that lag leave columns that do not count."""
    for model in models:
        kinds = getattr(model.config, "layer_types", None) or ()
        if rows > 1 and "sliding_attention" in kinds:
            raise ConfigError(
                f"{type(model).__name__} attends through a sliding window; give it one row at a time, "
                f"not {rows}"
            )
