"""Text that every installation has: prose and code of Python, headers and operator tables of torch."""

import random
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from moe_core.errors import ConfigError

Split = Literal["train", "test"]

DOMAIN_BYTES = 1_500_000
TEST_SHARE = 0.1
SHUFFLE_SEED = 20260
TABLES = ("ATen/native/native_functions.yaml", "autograd/derivatives.yaml")


def _prose() -> list[str]:
    """Pages of Python's language reference; a paragraph that several hold stays in the longest of them."""
    from pydoc_data.topics import topics

    seen: set[str] = set()
    pages = []
    for _, text in sorted(topics.items(), key=lambda page: (-len(page[1]), page[0])):
        fresh = [part for part in text.split("\n\n") if part.strip() not in seen]
        seen.update(part.strip() for part in fresh)
        pages.append("\n\n".join(fresh))
    return pages


def _code() -> list[str]:
    """Modules of Python's standard library."""
    folder = Path(random.__file__).parent
    return _read(folder.glob("*.py"))


def _headers() -> list[str]:
    """C++ headers of torch that people wrote."""
    folder = Path(torch.__file__).parent / "include"
    return _read([*(folder / "c10").rglob("*.h"), *(folder / "torch").rglob("*.h")])


def _tables() -> list[str]:
    """Entries of torch's operator tables."""
    import torchgen

    folder = Path(torchgen.__file__).parent / "packaged"
    return [entry for name in TABLES for entry in (folder / name).read_text("utf-8").split("\n\n")]


SOURCES: dict[str, Callable[[], list[str]]] = {
    "prose": _prose,
    "code": _code,
    "headers": _headers,
    "tables": _tables,
}
DOMAINS = tuple(SOURCES)


def _read(paths: Iterable[Path]) -> list[str]:
    return [path.read_text("utf-8", errors="replace") for path in sorted(paths)]


@cache
def domain_text(domain: str, split: Split) -> bytes:
    """The text of one domain, whole documents apart in train and test.

    Args:
        domain: one of `DOMAINS`.
        split: "train" (nine tenths) or "test".

    Raises:
        ConfigError: there is no such domain or split.
    """
    if domain not in SOURCES or split not in ("train", "test"):
        raise ConfigError(
            f"text of {domain!r}, {split!r} is unknown; there are {', '.join(DOMAINS)}, train and test"
        )
    documents = SOURCES[domain]()
    random.Random(SHUFFLE_SEED).shuffle(documents)
    encoded = [text.encode("utf-8") + b"\n" for text in documents]
    limit = min(DOMAIN_BYTES, sum(map(len, encoded)))
    test: list[bytes] = []
    train: list[bytes] = []
    size = 0
    for document in encoded:
        (test if size < TEST_SHARE * limit else train).append(document)
        size += len(document)
        if size >= limit:
            break
    return b"".join(test if split == "test" else train)


def passages(split: Split, count: int, length: int, seed: int) -> list[bytes]:
    """`count` pieces of `length` bytes, domains in turn, places drawn by `seed`.

    Raises:
        ConfigError: a piece would be longer than the text.
    """
    draw = random.Random(seed)
    pieces = []
    for index in range(count):
        text = domain_text(DOMAINS[index % len(DOMAINS)], split)
        if length >= len(text):
            raise ConfigError(f"a passage of {length} bytes is asked for; the text has {len(text)}")
        start = draw.randrange(len(text) - length)
        pieces.append(text[start : start + length])
    return pieces


def sequences(split: Split, count: int, length: int, seed: int) -> Tensor:
    """Byte tokens (count, length) int64, row i from domain i modulo their number.

    Raises:
        ConfigError: a sequence would be longer than the text.
    """
    pieces = passages(split, count, length, seed)
    return torch.stack([torch.frombuffer(bytearray(piece), dtype=torch.uint8).long() for piece in pieces])
