"""Blocks of rows: work on large arrays part by part, so that temporary arrays stay small."""

from __future__ import annotations

from collections.abc import Iterator

ENTRIES = 1 << 20  # per block: fits into the cache, and leaves every thread enough to do


def row_blocks(n: int, width: int, entries: int | None = None) -> Iterator[slice]:
    """Split the rows of an (n, width) array into slices of about `entries` entries each.

    Parameters
    ----------
    n, width : int
        The shape of the array.
    entries : int, optional
        Entries per block; `ENTRIES` by default. A block has at least one row.

    Yields
    ------
    slice
        Consecutive rows. An array without rows gives one empty slice.

    Examples
    --------
    >>> list(row_blocks(5, 10, entries=20))
    [slice(0, 2, None), slice(2, 4, None), slice(4, 5, None)]
    """
    step = max(1, (ENTRIES if entries is None else entries) // max(1, width))
    return (slice(start, min(start + step, n)) for start in range(0, max(1, n), step))
