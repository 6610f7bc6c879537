"""Token sequences for calibration and for measuring, from a text of one's own or from the toy corpus."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from moe_core.errors import ConfigError


def calibration_text(
    tokenizer: Any, path: Path | None, corpus: Callable[..., Tensor], count: int, length: int, seed: int
) -> Tensor:
    """(count, length) int64 tokens from a file, or from the corpus where none is named.

    Args:
        tokenizer: of the model, or None for the toys.
        path: of a UTF-8 text, or None.
        corpus: (split, count, length, seed) -> tokens.
        count, length, seed: of the sequences; a file is read evenly, whatever the seed.

    Raises:
        ConfigError: the file is too short, or the model has no tokenizer to read it.
    """
    if path is None:
        return corpus("train", count, length, seed)
    if tokenizer is None:
        raise ConfigError(f"the text {path} cannot be given to the toy, which reads its own corpus only")
    return tokenise(tokenizer, path, count, length)


def tokenise(tokenizer: Any, path: str | Path, count: int, length: int) -> Tensor:
    """(count, length) int64 tokens, evenly spaced over a UTF-8 text.

    Raises:
        ConfigError: the text cannot be read, or is too short for one pass without overlap.
    """
    try:
        text = Path(path).read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read as UTF-8 text: {error}") from error
    return spread(torch.tensor(tokenizer(text, verbose=False)["input_ids"]), count, length, str(path))


def spread(tokens: Tensor, count: int, length: int, name: str) -> Tensor:
    """(count, length) int64 pieces of a run of tokens, evenly spaced and without overlap.

    Raises:
        ConfigError: there are fewer than count * length tokens.
    """
    if len(tokens) < count * length:
        raise ConfigError(
            f"{name} has {len(tokens)} tokens; {count} sequences of {length} need {count * length}"
        )
    gap = len(tokens) // count
    return torch.stack([tokens[start : start + length] for start in range(0, gap * count, gap)])
