"""Limits that hostile or damaged files run into before they harm."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from candidly.errors import InputError

MAX_PIXELS = 100_000_000  # of one image; 300 MB when decoded
SHARE = 0.8  # of the free memory that one thing may take


def available_memory() -> int:
    """Bytes that this process can still take."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))
    except (OSError, StopIteration):
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def refuse_larger_than_memory(needed: int, what: str) -> None:
    """Say so before the memory is asked for."""
    free = available_memory()
    if needed > SHARE * free:
        raise InputError(
            f"{what} needs {needed / 1e9:,.1f} GB of memory, but only {free / 1e9:,.1f} GB are free. "
            "Use fewer rows, smaller inputs, or a machine with more memory."
        )


def inside(folder: Path, name: str, what: str) -> Path:
    """The file `name` of `folder`; names that lead out of it, directly or by a link, are refused."""
    root = folder.resolve()
    try:
        path = (root / name).resolve()
    except (OSError, ValueError, RuntimeError) as error:  # a NUL byte, a name too long, a ring of links
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
