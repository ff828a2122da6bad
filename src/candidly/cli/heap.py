"""Keep freed memory between the steps of a training. Only commands do this, in their own process.

glibc returns large blocks to the system as soon as they are freed. The next step gets them again
page by page, each page cleared first: a seventh of a training step of a small net.
"""

from __future__ import annotations

import ctypes
import platform
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache

# Parameters of mallopt, from malloc.h.
TRIM_THRESHOLD = -1
MMAP_THRESHOLD = -3
# Bytes. Larger blocks are few, and still come and go.
LARGE = 1 << 28
# Bytes: where glibc's own threshold ends up in a process that frees large blocks.
USUAL = 1 << 25


@contextmanager
def keeping_freed_memory() -> Iterator[None]:
    """Keep freed memory in the process within the block, then return it to the system.

    Without glibc nothing happens.
    """
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
    """Return the C library of this process if it is glibc."""
    return ctypes.CDLL(None) if platform.libc_ver()[0] == "glibc" else None
