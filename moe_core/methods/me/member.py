"""One member of an ensemble, which reads what the others wrote only when it is its turn."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from moe_core.transformers.tap import cache_argument


class Member:
    """A model with a cache, and per row the tokens that it has not read yet.

    Rows may lag differently. A turn reads the lags of its rows in one pass, aligned at the right; the cache
    keeps a column for every one of them and a mask of the columns that count, so no row is read twice.

    Attributes:
        forwards: row turns so far (a pass over n rows counts n).
        read: tokens read so far.
        lags: tokens read in one turn -> how often.
    """

    def __init__(self, model: Any, rows: int) -> None:
        self.forwards = 0
        self.read = 0
        self.lags: Counter[int] = Counter()
        self._model = model
        self._pending: list[list[int]] = [[] for _ in range(rows)]
        self._seen = [0] * rows
        self._cache: Any = None
        self._mask = torch.zeros(rows, 0, dtype=torch.int64, device=model.device)
        self._last: list[Tensor | None] = [None] * rows
        self._cache_name = cache_argument(model)

    def append(self, row: int, tokens: Sequence[int]) -> None:
        """Note tokens that row `row` has got, without reading them."""
        self._pending[row].extend(tokens)

    def lag(self, row: int) -> int:
        """Tokens of the row that are not read yet."""
        return len(self._pending[row])

    @torch.no_grad()
    def logits(self, rows: Sequence[int]) -> Tensor:
        """Scores (len(rows), V) of the next token of those rows, after reading what they lag behind."""
        behind = [row for row in rows if self._pending[row]]
        if behind:
            for row, scores in zip(behind, self._read(behind), strict=True):
                self._last[row] = scores
        return torch.stack([scores for row in rows if (scores := self._last[row]) is not None])

    def _read(self, rows: list[int]) -> Tensor:
        ids, live, positions = self._columns(rows)
        known = torch.cat([self._mask[rows], live], dim=1)
        cache = self._cache_of(rows)
        named = {"logits_to_keep": 1, "use_cache": True, self._cache_name: cache}
        output = self._model(input_ids=ids, attention_mask=known, position_ids=positions, **named)
        self._keep(rows, cache, live)
        return output.logits[:, -1]

    def _columns(self, rows: list[int]) -> tuple[Tensor, Tensor, Tensor]:
        """Ids, mask and positions (rows, W) of the lags, padded at the left; counts them as read."""
        width = max(self.lag(row) for row in rows)
        ids, live, positions = (torch.zeros(len(rows), width, dtype=torch.int64) for _ in range(3))
        for index, row in enumerate(rows):
            tokens, size = self._pending[row], self.lag(row)
            ids[index, width - size :] = torch.tensor(tokens)
            live[index, width - size :] = 1
            positions[index, width - size :] = torch.arange(self._seen[row], self._seen[row] + size)
            self.forwards += 1
            self.read += size
            self.lags[size] += 1
            self._seen[row] += size
            self._pending[row] = []
        device = self._model.device
        return ids.to(device), live.to(device), positions.to(device)

    def _cache_of(self, rows: list[int]) -> Any:
        """The cache cut to those rows; the whole one itself where they are all."""
        from transformers import DynamicCache

        if self._cache is None:
            return DynamicCache()
        if len(rows) == len(self._seen):
            return self._cache
        part = DynamicCache()
        for index, layer in enumerate(self._cache.layers):
            part.update(layer.keys[rows], layer.values[rows], index)
        return part

    def _keep(self, rows: list[int], cache: Any, live: Tensor) -> None:
        """Put the new columns of those rows into the whole cache; in other rows they do not count."""
        width, total = live.shape[1], len(self._seen)
        added = live.new_zeros(total, width)
        added[rows] = live
        self._mask = torch.cat([self._mask, added], dim=1)
        if len(rows) == total:
            self._cache = cache
            return
        from transformers import DynamicCache

        whole = DynamicCache()
        for index, layer in enumerate(cache.layers):
            old = self._cache.layers[index] if self._cache is not None else None
            keys = _widened(None if old is None else old.keys, layer.keys, rows, total, width)
            values = _widened(None if old is None else old.values, layer.values, rows, total, width)
            whole.update(keys, values, index)
        self._cache = whole


def _widened(old: Tensor | None, part: Tensor, rows: list[int], total: int, width: int) -> Tensor:
    """(total, heads, L + width, D): the old columns, then those that `part` has got for its rows."""
    fresh = part.new_zeros(total, part.shape[1], width, part.shape[3])
    fresh[rows] = part[:, :, -width:]
    return fresh if old is None else torch.cat([old, fresh], dim=2)
