"""Atomic writes, locks and hashes. Links are never followed, foreign files never removed.

On Windows, which has no `fcntl`, files are still written atomically but nothing is locked: two
programs that write the same run are not kept apart, and temporary files of killed ones stay.
"""

from __future__ import annotations

import hashlib
import os
import re
import secrets
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from candidly.errors import InputError

try:
    import fcntl
except ImportError:
    fcntl = None  # type: ignore[assignment]

TEMPORARY = re.compile(r"\.candidly-[0-9a-f]{16}\.tmp")
NO_LINKS = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)


def write_atomically(path: Path, write: Callable[[Path], Any]) -> None:
    """Write a file so that it is complete or absent, whatever happens meanwhile.

    Temporary files of writers that were killed are removed first.

    Parameters
    ----------
    path : Path
        The file; an older one is replaced, a link is not followed.
    write : callable
        Fills the temporary file that it is given, which is then renamed to `path`.

    Examples
    --------
    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "a.txt"
    >>> write_atomically(path, lambda temporary: temporary.write_text("whole"))
    >>> path.read_text()
    'whole'
    """
    remove_orphans(path.parent)
    with _temporary_file(path.parent) as temporary:
        write(temporary)
        temporary.replace(path)


@contextmanager
def _temporary_file(folder: Path) -> Iterator[Path]:
    """Make a file with a random name. Its lock distinguishes it from an orphan."""
    path, descriptor = _create_locked(folder)
    try:
        yield path
    finally:
        path.unlink(missing_ok=True)
        release_lock(descriptor)


def _create_locked(folder: Path) -> tuple[Path, int | None]:
    while True:
        path = folder / f".candidly-{secrets.token_hex(8)}.tmp"
        descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | NO_LINKS, 0o666)
        if fcntl is None:
            return path, _closed(descriptor)
        # Some network file systems cannot lock.
        with suppress(OSError):
            _lock(descriptor)
        if _is_at(descriptor, path):
            return path, descriptor
        # Another process removed it before it was locked.
        os.close(descriptor)


def remove_orphans(folder: Path) -> None:
    """Remove the temporary files in `folder` that no living process has locked."""
    if fcntl is None:
        return
    for entry in os.scandir(folder):
        if TEMPORARY.fullmatch(entry.name) and entry.is_file(follow_symlinks=False):
            # It may be locked, gone, or not ours to remove.
            with suppress(OSError):
                _remove_unless_locked(Path(entry.path))


def _remove_unless_locked(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | NO_LINKS)
    try:
        _lock(descriptor)
        path.unlink()
    finally:
        os.close(descriptor)


def is_temporary(path: Path) -> bool:
    """Return whether the name is one that `write_atomically` gives to its temporary files."""
    return TEMPORARY.fullmatch(path.name) is not None


def open_lock(path: Path) -> int | None:
    """Lock a file until `release_lock`, or until the process ends.

    Parameters
    ----------
    path : Path
        The lock file. It is created if needed and stays: remove it while the lock is held.

    Returns
    -------
    int or None
        What `release_lock` takes; None on Windows, where nothing is locked.

    Raises
    ------
    BlockingIOError
        If another process holds the lock.
    InputError
        If the file exists and is not an empty regular file.
    """
    while True:
        if path.is_symlink() or (path.exists() and not is_lock(path)):
            raise InputError(
                f"{path} is not a lock file (expected an empty regular file): move it away."
            )
        descriptor = os.open(path, os.O_CREAT | os.O_RDWR | NO_LINKS, 0o666)
        if fcntl is None:
            return _closed(descriptor)
        try:
            _lock(descriptor)
        except BaseException:
            os.close(descriptor)
            raise
        if _is_at(descriptor, path):
            return descriptor
        # Its last holder removed it.
        os.close(descriptor)


def release_lock(descriptor: int | None) -> None:
    """Release what `open_lock` returned."""
    if descriptor is not None:
        os.close(descriptor)


def _closed(descriptor: int) -> None:
    """Close a file that cannot be locked: Windows cannot rename open files and their folders."""
    os.close(descriptor)


def is_lock(path: Path) -> bool:
    """Return whether this is an empty regular file."""
    with suppress(OSError):
        found = path.lstat()
        return stat.S_ISREG(found.st_mode) and found.st_size == 0
    return False


def is_held(path: Path) -> bool:
    """Return whether a process holds the lock file `path`; on Windows always False."""
    if fcntl is None:
        return False
    try:
        descriptor = os.open(path, os.O_RDWR | NO_LINKS)
    except OSError:
        # There is no such file, or none that can be locked.
        return False
    try:
        _lock(descriptor)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def _lock(descriptor: int) -> None:
    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)


def _is_at(descriptor: int, path: Path) -> bool:
    """Return whether the open file is still the one at `path`."""
    try:
        return os.path.samestat(os.fstat(descriptor), path.lstat())
    except FileNotFoundError:
        return False


def file_hash(path: Path) -> str:
    """Return the SHA-256 of a file's bytes, as `sha256sum` prints it."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
