"""Seconds of one core, which do not depend on what else the machine is doing."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def one_core() -> Iterator[None]:
    """Inside the block torch computes in the calling thread only; the setting before comes back after it."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def core_seconds() -> float:
    """CPU time of the calling thread so far; inside `one_core` that is all of the computation."""
    return time.thread_time()
