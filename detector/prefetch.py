"""Work done a little ahead of who needs it."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice
from typing import TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


def map_ahead(function: Callable[[Item], Result], items: Iterable[Item], ahead: int) -> Iterator[Result]:
    """`function` of each item, in order, computed on one thread at most `ahead` items early."""
    waiting = iter(items)
    with ThreadPoolExecutor(1) as pool:
        queue: deque[Future[Result]] = deque(pool.submit(function, item) for item in islice(waiting, ahead))
        while queue:
            yield queue.popleft().result()
            queue.extend(pool.submit(function, item) for item in islice(waiting, 1))
