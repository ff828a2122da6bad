"""Limits on what hostile or damaged files can do: memory, pixels, paths."""

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

# Of one image, which takes 300 MB when decoded.
MAX_PIXELS = 100_000_000
# Share of the free memory that one file may take.
MAX_SHARE = 0.8
# A file may expand to so many times its size, or to UNSUSPECTED_BYTES if that is more.
MAX_EXPANSION = 200
UNSUSPECTED_BYTES = 1 << 30
# What the ids, sets and verdict of a row take at least.
ROW_BYTES = 40
UNLIMITED_BYTES = 1 << 62
SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*(?:([kKMGT])(i)?)?[bB]?\s*")

_chosen_limit: ContextVar[int | None] = ContextVar("max_memory", default=None)


def available_memory() -> int:
    """Return the bytes that this process can still take.

    Without Linux's /proc/meminfo this is the whole memory of the machine. Windows tells neither in
    a way that the standard library knows: no limit by memory is set there, and only the size of the
    file, or `max_memory`, limits what it may take.
    """
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        return next(
            int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")
        )
    except (OSError, StopIteration):
        pass
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):
        return UNLIMITED_BYTES


@contextmanager
def memory_limit(limit: int | str | None) -> Iterator[None]:
    """Within the block, refuse what needs more than `limit`: bytes, or text such as "8GB".

    None means the defaults.
    """
    token = _chosen_limit.set(None if limit is None else as_bytes(limit))
    try:
        yield
    finally:
        _chosen_limit.reset(token)


def as_bytes(size: int | str) -> int:
    """Return the bytes of a size such as "8GB", "500 MB", "2GiB" or 1000.

    Examples
    --------
    >>> as_bytes("2kB"), as_bytes("2KiB"), as_bytes(5)
    (2000, 2048, 5)
    """
    match = SIZE.fullmatch(str(size))
    if match is None:
        raise InputError(f"max_memory={size!r}: expected a size such as 8GB or 500MB.")
    number, prefix, binary = match.groups()
    return int(float(number) * (1024 if binary else 1000) ** " KMGT".index((prefix or " ").upper()))


def allowed_memory(source: Path) -> int:
    """Return the bytes that the content of a file may take."""
    chosen = _chosen_limit.get()
    if chosen is not None:
        return chosen
    return min(int(MAX_SHARE * available_memory()), _unsuspected_bytes(source))


def _unsuspected_bytes(source: Path) -> int:
    return max(UNSUSPECTED_BYTES, MAX_EXPANSION * source.stat().st_size)


def refuse_larger_than_memory(needed: int, what: str, source: Path | None = None) -> None:
    """Refuse what takes too much memory, before it is allocated.

    Parameters
    ----------
    needed : int
        Bytes.
    what : str
        What needs them, for the message.
    source : Path, optional
        The file that is expanded: a small file may not take much memory unless the user allows it.

    Raises
    ------
    InputError
        If `needed` exceeds the limit.
    """
    if (chosen := _chosen_limit.get()) is not None:
        if needed > chosen:
            raise InputError(
                f"{what} needs {_size(needed)} of memory; the limit is {_size(chosen)} "
                "(--max-memory)."
            )
        return
    free = available_memory()
    if needed > MAX_SHARE * free:
        raise InputError(
            f"{what} needs {_size(needed)} of memory, but only {_size(free)} are free. "
            "Use fewer rows, smaller inputs, or a machine with more memory."
        )
    if source is not None and needed > _unsuspected_bytes(source):
        size = source.stat().st_size
        raise InputError(
            f"{what} needs {_size(needed)} of memory, {needed // max(size, 1):,} times the size of "
            f"the file ({_size(size)}). If that is right, allow it by --max-memory "
            f"{-(-needed // 10**9)}GB."
        )


def _size(count: int) -> str:
    for unit in ("bytes", "kB", "MB"):
        if count < 1000:
            return f"{count:,.4g} {unit}"
        count = count / 1000  # type: ignore[assignment]
    return f"{count:,.1f} GB"


def file_within(folder: Path, name: str, what: str) -> Path:
    """Return the file `name` of `folder`; refuse names that lead out of it, also by a link.

    Parameters
    ----------
    folder : Path
        The folder.
    name : str
        A relative path.
    what : str
        Where the name was read, for the message.

    Returns
    -------
    Path
        An existing file.
    """
    root = folder.resolve()
    try:
        path = (root / name).resolve()
    except (OSError, ValueError, RuntimeError) as error:
        # A NUL byte, a name too long, or a ring of links.
        raise InputError(f"{what}: {name!r} is not a file name ({error}).") from error
    if not path.is_relative_to(root):
        raise InputError(
            f"{what}: {name!r} leads out of {root}. Only files inside the folder of the table are "
            "read: move them there."
        )
    try:
        found = path.is_file()
    except (OSError, ValueError) as error:
        raise InputError(f"{what}: {name!r} is not a file name ({error}).") from error
    if not found:
        raise InputError(f"{what}: {name!r} is missing: there is no file {path}.")
    return path


def to_float32(values: NDArray[Any]) -> NDArray[np.float32]:
    """Convert to 32 bits; too large values become infinite, without a warning."""
    with np.errstate(over="ignore"):
        return values.astype(np.float32, copy=False)


def is_number(cell: Any) -> bool:
    """Say whether the value of a column is a number, or missing."""
    try:
        float(cell)
    except (TypeError, ValueError):
        return cell is None
    return True
