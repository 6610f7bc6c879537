"""The ensemble: per token a member is drawn, runs alone, and its word is passed on to the others."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from moe_core.errors import ConfigError
from moe_core.methods.me.generation import OFFICIAL, Loop, Mode, Sampling, Stats, Written, mixed
from moe_core.methods.me.vocabulary import Translator


class Ensemble:
    """Models whose next-token distributions are mixed by weight.

    Attributes:
        models: of one vocabulary, or with a tokenizer each.
        weights: lambda, normalised.
        stats: of the latest generation.

    Source: Fu et al. 2026, Mixture-model-like Ensemble (arXiv 2605.00419): drawing member i with lambda_i
    and a token from it alone has the marginal sum_i lambda_i p_i(x | prefix), the conventional ensemble's.
    Differs: one generator draws both; the released code has one for members and another for tokens.
    """

    def __init__(
        self, models: Sequence[Any], weights: Sequence[float], tokenizers: Sequence[Any] | None = None
    ) -> None:
        self.models = list(models)
        self.weights = _normalised(weights, len(models))
        self.tokenizers = None if tokenizers is None else list(tokenizers)
        self.stats = Stats()
        if tokenizers is None:
            _check_one_vocabulary(self.models)
        elif len(tokenizers) != len(models):
            raise ConfigError(f"there are {len(tokenizers)} tokenizers for {len(models)} models")
        self._translator = None if tokenizers is None else Translator(tokenizers)

    @torch.no_grad()
    def next_dist(self, ids: Tensor) -> Tensor:
        """Mixture (B, V) of the members' next-token distributions after ids (B, L) without padding.

        Raises:
            ConfigError: the members have tokenizers of their own, so there is no one vocabulary.
        """
        self._one_vocabulary()
        return mixed([model(input_ids=ids).logits[:, -1] for model in self.models], self.weights)

    def generate(
        self,
        ids: Tensor,
        max_new_tokens: int = 512,
        *,
        mode: Mode = "exact",
        sampling: Sampling | None = None,
        generator: torch.Generator | None = None,
        stop_tokens: Sequence[int] | None = None,
        max_lag: int | None = None,
    ) -> Written:
        """Tokens drawn after each row of `ids`, until any member's end token.

        Args:
            ids: (B, L) int64 prompts without padding.
            max_new_tokens: at most.
            mode: "exact" draws from the mixture itself; "component" shapes the drawn member's distribution,
                as the released code does; "conventional" runs all members and shapes their mixture.
            sampling: none in exact mode; in component mode the released code's top 10 unless given.
            generator: of members and tokens.
            stop_tokens: that end a row; all members' end tokens.
            max_lag: a member further behind than this reads without being drawn.

        Raises:
            ConfigError: exact mode with a shaped distribution, an empty prompt, or several vocabularies.
        """
        self._one_vocabulary()
        prompts = [[row] * len(self.models) for row in ids.tolist()]
        ends = set(_end_tokens(self.models) if stop_tokens is None else stop_tokens)
        shaped = _shaped(mode, sampling)
        loop = Loop(self.models, self.weights, prompts, mode, shaped, generator, max_lag)
        written = loop.run(max_new_tokens, [ends] * len(self.models))
        self.stats = loop.stats()
        return written

    def write(
        self,
        prompt: str,
        max_new_tokens: int = 512,
        *,
        mode: Mode = "exact",
        sampling: Sampling | None = None,
        generator: torch.Generator | None = None,
        stop: Sequence[str] = (),
        max_lag: int | None = None,
    ) -> str:
        """Text drawn after the prompt, by members that have a tokenizer each.

        Args:
            prompt: not empty.
            max_new_tokens: choices at most.
            mode, sampling, generator, max_lag: see `generate`; "conventional" needs one vocabulary.
            stop: strings that end the text, and are left out of it.

        Raises:
            ConfigError: there are no tokenizers, or a member cannot spell another's token.
        """
        if self._translator is None or self.tokenizers is None:
            raise ConfigError("writing text needs a tokenizer per member; give tokenizers to the ensemble")
        if mode == "conventional":
            raise ConfigError("members with tokenizers of their own have no common distribution to mix")
        prompts = [[tokenizer(prompt)["input_ids"] for tokenizer in self.tokenizers]]
        shaped, words = _shaped(mode, sampling), self._translator
        loop = Loop(self.models, self.weights, prompts, mode, shaped, generator, max_lag, words)
        written = loop.run(max_new_tokens, [_end_tokens([model]) for model in self.models], stop)
        self.stats = loop.stats()
        text = loop.text(written, 0)
        return text[: min((text.find(word) for word in stop if word in text), default=len(text))]

    def save(self, folder: str | Path) -> None:
        """Write `ensemble.json` and a folder per member, each of which `from_pretrained` reads by itself."""
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        names = [f"member-{index}" for index in range(len(self.models))]
        for index, name in enumerate(names):
            self.models[index].save_pretrained(folder / name)
            if self.tokenizers is not None:
                self.tokenizers[index].save_pretrained(folder / name)
        notes = {"version": 1, "members": names, "weights": self.weights.tolist()}
        notes["tokenizers"] = self.tokenizers is not None
        (folder / "ensemble.json").write_text(json.dumps(notes, indent=1) + "\n", "utf-8")

    def _one_vocabulary(self) -> None:
        if self._translator is not None:
            raise ConfigError("members with tokenizers of their own share no token ids; use write(prompt)")


def load(folder: str | Path) -> Ensemble:
    """The ensemble in a folder.

    Raises:
        ConfigError: the folder holds none.
    """
    from transformers import AutoTokenizer

    from moe_core.transformers.storage import load as load_model

    path = Path(folder) / "ensemble.json"
    try:
        notes = json.loads(path.read_text("utf-8"))
        folders = [Path(folder) / name for name in notes["members"]]
        weights, own = notes["weights"], notes["tokenizers"]
    except (OSError, ValueError, KeyError) as error:
        raise ConfigError(f"{path} cannot be read as an ensemble: {error}") from error
    tokenizers = [AutoTokenizer.from_pretrained(place) for place in folders] if own else None
    return Ensemble([load_model(place) for place in folders], weights, tokenizers)


def _shaped(mode: Mode, sampling: Sampling | None) -> Sampling:
    if mode != "exact":
        usual = OFFICIAL if mode == "component" else Sampling()
        return usual if sampling is None else sampling
    if sampling is not None and not sampling.plain:
        raise ConfigError(
            f"exact mode is given {sampling.model_dump()}; the mixture of shaped members is not the shaped "
            "mixture, so it takes temperature 1, top_k 0 and top_p 1; or use mode='component'"
        )
    return Sampling()


def _normalised(weights: Sequence[float], members: int) -> Tensor:
    given = torch.tensor(list(weights), dtype=torch.float32)
    if (
        len(given) != members
        or members < 1
        or not (given >= 0).all()
        or not 0 < float(given.sum()) < float("inf")
    ):
        raise ConfigError(
            f"weights {list(weights)} do not fit {members} models; one number >= 0 each, not all 0, is needed"
        )
    return given / given.sum()


def _check_one_vocabulary(models: Sequence[Any]) -> None:
    sizes = [model.config.vocab_size for model in models]
    if len(set(sizes)) > 1:
        raise ConfigError(
            f"the models have vocabularies of {', '.join(map(str, sizes))} tokens; without one vocabulary "
            "the ensemble needs a tokenizer per model"
        )


def _end_tokens(models: Sequence[Any]) -> set[int]:
    ends: set[int] = set()
    for model in models:
        own = getattr(model.generation_config, "eos_token_id", None)
        own = own if own is not None else model.config.eos_token_id
        ends |= set(own if isinstance(own, list) else [] if own is None else [own])
    return ends
