"""What decided the numbers of a run: versions of the code, and fingerprints of the data."""

from __future__ import annotations

import hashlib
import platform
import subprocess
from importlib import metadata
from pathlib import Path

import numpy as np

from candidly._version import __version__

PACKAGES = ("numpy", "scikit-learn", "torch")


def versions() -> dict[str, str]:
    """Return the versions of Python and of the packages that decide the numbers, by name."""
    return {
        "candidly": __version__,
        **{name: _version(name) for name in PACKAGES},
        "python": platform.python_version(),
        "revision": _revision(),
    }


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "not installed"


def _revision() -> str:
    """Return the commit of the source tree, or "released" outside of one."""
    tree = Path(__file__).parents[3]
    if not (tree / ".git").exists():
        return "released"
    command = ["git", "-C", str(tree), "describe", "--always", "--dirty"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def fingerprint(*arrays: np.ndarray) -> str:
    """Return the SHA-256 of the shapes, types and bytes of arrays.

    Examples
    --------
    >>> fingerprint(np.arange(6)) == fingerprint(np.arange(6).reshape(2, 3))
    False
    """
    digest = hashlib.sha256()
    for array in arrays:
        digest.update(f"{array.shape} {array.dtype}".encode())
        digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()
