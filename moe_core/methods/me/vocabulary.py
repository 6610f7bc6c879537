"""Tokens of one tokenizer said in the tokens of another, through the bytes they stand for."""

from collections.abc import Sequence
from functools import cached_property
from typing import Any

from moe_core.errors import ConfigError


class Alphabet:
    """The tokens of one tokenizer as bytes.

    Attributes:
        pieces: per token id its bytes; empty for control tokens.
        name: for messages.
    """

    def __init__(self, tokenizer: Any, name: str) -> None:
        self.name = name
        silent = set(tokenizer.all_special_ids)
        written = tokenizer.convert_ids_to_tokens(list(range(len(tokenizer))))
        read = _byte_level if "ByteLevel" in str(tokenizer.backend_tokenizer.decoder) else _plain
        self.pieces = [
            b"" if index in silent or text is None else read(text) for index, text in enumerate(written)
        ]

    @cached_property
    def ids(self) -> dict[bytes, int]:
        """Bytes -> the first token that stands for them."""
        found: dict[bytes, int] = {}
        for index, piece in enumerate(self.pieces):
            if piece:
                found.setdefault(piece, index)
        return found

    @cached_property
    def longest(self) -> int:
        """Bytes of the longest token."""
        return max(map(len, self.ids), default=0)

    def spell(self, text: bytes) -> tuple[int, ...]:
        """Tokens that stand for `text`, the longest that fits first.

        Raises:
            ConfigError: some of its bytes have no token.
        """
        said, place = [], 0
        while place < len(text):
            ends = range(min(len(text), place + self.longest), place, -1)
            end = next((end for end in ends if text[place:end] in self.ids), None)
            if end is None:
                raise ConfigError(
                    f"the vocabulary of {self.name} has no token for byte {text[place]:#04x}; ensembles need "
                    "vocabularies that can spell one another's tokens"
                )
            said.append(self.ids[text[place:end]])
            place = end
        return tuple(said)


class Translator:
    """What each member appends when one of them has chosen a token.

    Source: the union vocabularies of GaC and UniTE, which the paper's code uses.
    Differs: a token is matched by its bytes, longest match first, so that pieces of characters and
    differently marked spaces need no table of exceptions.
    """

    def __init__(self, tokenizers: Sequence[Any]) -> None:
        self._alphabets = [Alphabet(tokenizer, f"member {i}") for i, tokenizer in enumerate(tokenizers)]
        self._known: dict[tuple[int, int], tuple[tuple[int, ...], ...]] = {}

    def bytes_of(self, member: int, token: int) -> bytes:
        """What a member's token stands for."""
        return self._alphabets[member].pieces[token]

    def say(self, member: int, token: int) -> tuple[tuple[int, ...], ...]:
        """Per member the tokens that say what `member` chose.

        Raises:
            ConfigError: a member cannot spell it.
        """
        key = (member, token)
        if key not in self._known:
            text = self.bytes_of(member, token)
            self._known[key] = tuple(
                (token,) if index == member else alphabet.spell(text)
                for index, alphabet in enumerate(self._alphabets)
            )
        return self._known[key]


def _byte_level(text: str) -> bytes:
    """Byte-level tokens write each byte as one printable character."""
    from transformers.convert_slow_tokenizer import bytes_to_unicode

    table = _byte_table(tuple(bytes_to_unicode().items()))
    # Added tokens are written as they are.
    return bytes(table[c] for c in text) if all(c in table for c in text) else text.encode()


def _byte_table(pairs: tuple[tuple[int, str], ...]) -> dict[str, int]:
    return {character: byte for byte, character in pairs}


def _plain(text: str) -> bytes:
    """SentencePiece marks spaces with U+2581 and single bytes as <0xNN>."""
    if len(text) == 6 and text.startswith("<0x") and text.endswith(">"):
        return bytes([int(text[3:5], 16)])
    return text.replace("\u2581", " ").encode()
