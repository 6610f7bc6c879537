"""Memory that the C library keeps although nobody uses it."""

import ctypes
import ctypes.util


def trim_memory() -> bool:
    """Whether freed memory was given back to the system.

    Loading a model unpacks its weights in several steps. glibc keeps the pages of the finished steps
    (about 500 MB for the packaged model) until it is asked; other C libraries have no such call.
    """
    library = ctypes.util.find_library("c")
    trim = getattr(ctypes.CDLL(library), "malloc_trim", None) if library else None
    return bool(trim(0)) if trim is not None else False
