"""What a method is tried on: a model by name, with text it can read."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from moe_core.errors import ConfigError
from moe_core.toys.corpus import Split, passages, sequences
from moe_core.toys.models import Kind, Size, load_toy

# English and code have about four bytes per token; ask for more, so that a passage is long enough.
BYTES_PER_TOKEN = 12
UPCYCLED_WIDTH = 1024
UPCYCLING_TEXT = (12, 128)


@dataclass(frozen=True)
class Subject:
    """A model and its text.

    Attributes:
        model: in evaluation mode.
        text: (split, count, length, seed) -> (count, length) int64 tokens of the corpus.
        tokenizer: None for the toys, whose tokens are bytes.
    """

    model: Any
    text: Callable[[Split, int, int, int], Tensor]
    tokenizer: Any = None


def subject(kind: Kind, model: str = "toy", size: Size = "full", toys: Path | None = None) -> Subject:
    """The model under that name, of that kind.

    Args:
        kind: of the toy; "moe" also asks for SmolLM2 made into a mixture.
        model: "toy", "smollm2", or a folder that `from_pretrained` reads, with its tokenizer.
        size, toys: see `load_toy`.

    Raises:
        ConfigError: the folder holds no model and tokenizer.
        MissingPackage: the packages that hold SmolLM2 are not installed.
    """
    if model == "toy":
        return Subject(load_toy(kind, size, toys), sequences)
    loaded, tokenizer = _smollm2(kind) if model == "smollm2" else _from_folder(model)
    return Subject(loaded, tokenised(tokenizer), tokenizer)


def tokenised(tokenizer: Any) -> Callable[[Split, int, int, int], Tensor]:
    """Text of the corpus as that tokenizer cuts it."""

    def text(split: Split, count: int, length: int, seed: int) -> Tensor:
        rows = []
        for piece in passages(split, count, length * BYTES_PER_TOKEN, seed):
            ids = tokenizer(piece.decode("utf-8", errors="ignore"), add_special_tokens=False)["input_ids"]
            if len(ids) < length:
                raise ConfigError(f"a passage of the corpus has {len(ids)} tokens; {length} are asked for")
            rows.append(ids[:length])
        return torch.tensor(rows)

    return text


def _smollm2(kind: Kind) -> tuple[Any, Any]:
    from moe_core.toys.pretrained import load_smollm2, upcycle

    model, tokenizer = load_smollm2()
    if kind != "moe":
        return model, tokenizer
    return upcycle(model, tokenised(tokenizer)("train", *UPCYCLING_TEXT, 0), width=UPCYCLED_WIDTH), tokenizer


def _from_folder(folder: str) -> tuple[Any, Any]:
    from transformers import AutoTokenizer

    from moe_core.transformers.storage import load

    model = load(folder)
    try:
        return model, AutoTokenizer.from_pretrained(folder)
    except (OSError, ValueError) as error:
        reason = str(error).strip().splitlines()[0]
        raise ConfigError(f"{folder} holds no tokenizer: {reason}") from error
