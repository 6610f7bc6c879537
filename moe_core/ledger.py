"""What a model stores and what one token touches, indices included."""

from collections.abc import Iterable
from typing import NamedTuple

from torch import Tensor, nn

REFERENCE_BITS = 16


class Ledger(NamedTuple):
    """Counts of one module; two of them add up.

    Attributes:
        stored: numbers held.
        active: numbers that one token is multiplied with.
        index_bits: bits of integer tables that say which number goes where.
        bytes: of everything, at each tensor's own precision.
    """

    stored: int
    active: int
    index_bits: int
    bytes: int

    def __add__(self, other: tuple) -> "Ledger":
        return Ledger(*(one + two for one, two in zip(self, other, strict=True)))

    @property
    def charged(self) -> float:
        """Numbers held, with index bits charged as numbers of 16 bits."""
        return self.stored + self.index_bits / REFERENCE_BITS


def count(module: nn.Module, *, active: int | None = None) -> Ledger:
    """The ledger of a module: all parameters, and all integer buffers as indices.

    Args:
        module: any.
        active: numbers one token is multiplied with; all stored ones where not given.
    """
    stored = sum(weight.numel() for weight in module.parameters())
    tables = [table for table in module.buffers() if not table.is_floating_point()]
    bits = sum(table.numel() * table.element_size() * 8 for table in tables)
    size = _bytes(module.parameters()) + _bytes(module.buffers())
    return Ledger(stored, stored if active is None else active, bits, size)


def total(ledgers: Iterable[Ledger]) -> Ledger:
    """The sum of ledgers."""
    return sum(ledgers, Ledger(0, 0, 0, 0))


def _bytes(tensors: Iterable[Tensor]) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)
