"""Files written whole or not at all, locks and hashes. Links are never followed, foreign files never removed."""

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
except ImportError:  # Windows: files are still written whole, but not locked
    fcntl = None  # type: ignore[assignment]

TEMPORARY = re.compile(r"\.candidly-[0-9a-f]{16}\.tmp")
NO_LINKS = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)


def write_atomically(path: Path, write: Callable[[Path], Any]) -> None:
    """Let `write` fill a temporary file beside `path`, then rename it to `path`.

    Temporary files of writers that were killed are removed first.
    """
    remove_orphans(path.parent)
    with _temporary_file(path.parent) as temporary:
        write(temporary)
        temporary.replace(path)


@contextmanager
def _temporary_file(folder: Path) -> Iterator[Path]:
    """A new file with a random name. It stays locked, which tells it from an orphan."""
    path, descriptor = _create_locked(folder)
    try:
        yield path
    finally:
        path.unlink(missing_ok=True)
        os.close(descriptor)


def _create_locked(folder: Path) -> tuple[Path, int]:
    while True:
        path = folder / f".candidly-{secrets.token_hex(8)}.tmp"
        descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | NO_LINKS, 0o666)
        with suppress(OSError):  # some network file systems cannot lock
            _lock(descriptor)
        if _is_at(descriptor, path):
            return path, descriptor
        os.close(descriptor)  # swept away before it was locked


def remove_orphans(folder: Path) -> None:
    """Remove the temporary files in `folder` that no living process has locked."""
    if fcntl is None:
        return
    for entry in os.scandir(folder):
        if TEMPORARY.fullmatch(entry.name) and entry.is_file(follow_symlinks=False):
            with suppress(OSError):  # locked, gone, or not ours to remove
                _remove_unless_locked(Path(entry.path))


def _remove_unless_locked(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | NO_LINKS)
    try:
        _lock(descriptor)
        path.unlink()
    finally:
        os.close(descriptor)


def is_temporary(path: Path) -> bool:
    """Does the name say that `write_atomically` made this file?"""
    return TEMPORARY.fullmatch(path.name) is not None


def open_lock(path: Path) -> int:
    """Lock the file `path`, which is created if needed, until the returned descriptor is closed.

    Raises BlockingIOError if another process holds the lock, InputError if the file is not a lock. The file stays:
    remove it while the lock is held.
    """
    while True:
        if path.is_symlink() or (path.exists() and not is_lock(path)):
            raise InputError(
                f"{path} is not a lock file (expected an empty regular file): move it away."
            )
        descriptor = os.open(path, os.O_CREAT | os.O_RDWR | NO_LINKS, 0o666)
        try:
            _lock(descriptor)
        except BaseException:
            os.close(descriptor)
            raise
        if _is_at(descriptor, path):
            return descriptor
        os.close(descriptor)  # its last holder removed it


def is_lock(path: Path) -> bool:
    """Is this an empty regular file?"""
    with suppress(OSError):
        found = path.lstat()
        return stat.S_ISREG(found.st_mode) and found.st_size == 0
    return False


def is_held(path: Path) -> bool:
    """Does a process hold the lock file `path`?"""
    try:
        descriptor = os.open(path, os.O_RDWR | NO_LINKS)
    except OSError:  # no such file, or none that can be locked
        return False
    try:
        _lock(descriptor)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def _lock(descriptor: int) -> None:
    if fcntl is not None:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)


def _is_at(descriptor: int, path: Path) -> bool:
    """Is the open file still the one at `path`?"""
    try:
        return os.path.samestat(os.fstat(descriptor), path.lstat())
    except FileNotFoundError:
        return False


def file_hash(path: Path) -> str:
    """SHA-256 of a file's bytes."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
