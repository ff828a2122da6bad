"""Limits that hostile or damaged files run into before they harm."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from candidly.errors import InputError

MAX_PIXELS = 100_000_000  # of one image; 300 MB when decoded
SHARE = 0.8  # of the free memory that one thing may take
EXPANSION = 200  # times the size of its file that one thing may take, or
UNSUSPECTED = 1 << 30  # bytes, if that is more
ROW_BYTES = 40  # that the ids, sets and verdict of a row take at least
SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*(?:([kKMGT])(i)?)?[bB]?\s*")

_chosen_limit: ContextVar[int | None] = ContextVar("max_memory", default=None)


def available_memory() -> int:
    """Bytes that this process can still take."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        return next(
            int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")
        )
    except (OSError, StopIteration):
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


@contextmanager
def memory_limit(limit: int | str | None) -> Iterator[None]:
    """Within the block, refuse whatever needs more than `limit`: bytes, or text such as "8GB". None: the defaults."""
    token = _chosen_limit.set(None if limit is None else as_bytes(limit))
    try:
        yield
    finally:
        _chosen_limit.reset(token)


def as_bytes(size: int | str) -> int:
    """Bytes of a size such as "8GB", "500 MB", "2GiB" or 1000."""
    match = SIZE.fullmatch(str(size))
    if match is None:
        raise InputError(f"max_memory={size!r}: expected a size such as 8GB or 500MB.")
    number, prefix, binary = match.groups()
    return int(float(number) * (1024 if binary else 1000) ** " KMGT".index((prefix or " ").upper()))


def allowed_memory(source: Path) -> int:
    """Bytes that the content of a file may take."""
    chosen = _chosen_limit.get()
    return min(int(SHARE * available_memory()), _unsuspected(source)) if chosen is None else chosen


def _unsuspected(source: Path) -> int:
    return max(UNSUSPECTED, EXPANSION * source.stat().st_size)


def refuse_larger_than_memory(needed: int, what: str, source: Path | None = None) -> None:
    """Refuse before the memory is asked for.

    `source`: the file that is expanded. A small file may not take much memory unless the user allows it.
    """
    if (chosen := _chosen_limit.get()) is not None:
        if needed > chosen:
            raise InputError(
                f"{what} needs {_size(needed)} of memory; the limit is {_size(chosen)} (--max-memory)."
            )
        return
    free = available_memory()
    if needed > SHARE * free:
        raise InputError(
            f"{what} needs {_size(needed)} of memory, but only {_size(free)} are free. "
            "Use fewer rows, smaller inputs, or a machine with more memory."
        )
    if source is not None and needed > _unsuspected(source):
        size = source.stat().st_size
        raise InputError(
            f"{what} needs {_size(needed)} of memory, {needed // max(size, 1):,} times the size of the file "
            f"({_size(size)}). If that is right, allow it by --max-memory {-(-needed // 10**9)}GB."
        )


def _size(count: int) -> str:
    for unit in ("bytes", "kB", "MB"):
        if count < 1000:
            return f"{count:,.4g} {unit}"
        count = count / 1000  # type: ignore[assignment]
    return f"{count:,.1f} GB"


def inside(folder: Path, name: str, what: str) -> Path:
    """The file `name` of `folder`; names that lead out of it, directly or by a link, are refused."""
    root = folder.resolve()
    try:
        path = (root / name).resolve()
    except (
        OSError,
        ValueError,
        RuntimeError,
    ) as error:  # a NUL byte, a name too long, a ring of links
        raise InputError(f"{what}: {name!r} is no file name ({error}).") from error
    if not path.is_relative_to(root):
        raise InputError(
            f"{what}: {name!r} leads out of {root}. Only files inside the folder of the table are "
            "read: move them there."
        )
    try:
        found = path.is_file()
    except (OSError, ValueError) as error:
        raise InputError(f"{what}: {name!r} is no file name ({error}).") from error
    if not found:
        raise InputError(f"{what}: {name!r} is missing: there is no file {path}.")
    return path


def to_float32(values: NDArray[Any]) -> NDArray[np.float32]:
    """In 32 bits; what is too large for them becomes infinite, without a warning."""
    with np.errstate(over="ignore"):
        return values.astype(np.float32, copy=False)


def is_number(cell: Any) -> bool:
    """Can the value of a column be one, or is it missing?"""
    try:
        float(cell)
    except (TypeError, ValueError):
        return cell is None
    return True
