"""Keep freed memory between the steps of a training.

glibc gives large blocks back to the system as soon as they are freed. The next step gets them again page by page, each
page cleared first: a seventh of a training step of a small net.
"""

from __future__ import annotations

import ctypes
import platform
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache

TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3  # numbers of malloc.h
LARGE = 1 << 28  # bytes: blocks beyond are few, and still come and go
USUAL = 1 << 25  # where glibc's own threshold ends up in a process that frees large blocks


@contextmanager
def kept() -> Iterator[None]:
    """While it lasts, freed memory stays with the process; then it is given back. Nothing happens without glibc."""
    library = glibc()
    if library is None:
        yield
        return
    library.mallopt(MMAP_THRESHOLD, LARGE)
    library.mallopt(TRIM_THRESHOLD, (1 << 31) - 1)
    try:
        yield
    finally:
        library.mallopt(MMAP_THRESHOLD, USUAL)
        library.mallopt(TRIM_THRESHOLD, 2 * USUAL)
        library.malloc_trim(0)


@lru_cache(maxsize=1)
def glibc() -> ctypes.CDLL | None:
    return ctypes.CDLL(None) if platform.libc_ver()[0] == "glibc" else None
