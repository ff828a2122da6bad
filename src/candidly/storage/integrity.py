"""Is a RUN folder what was written, and can this version read it? Hashes and the format version."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from candidly.errors import InputError
from candidly.storage.atomic import file_hash, write_atomically

# The format of RUN folders that this version writes, and the newest that it reads.
RUN_FORMAT = 1
NOTE = "run.json"
SUMS = "SHA256SUMS"


def write_sums(folder: Path, *, without: tuple[str, ...] = ()) -> None:
    """Write the hashes of all files of a run, except those of runs inside it.

    Parameters
    ----------
    folder : Path
        The RUN folder.
    without : tuple of str
        Names of files that may change later, or that are temporary.
    """
    inner = {note.parent for note in folder.rglob(NOTE)} - {folder}
    files = [
        path.relative_to(folder).as_posix()
        for path in folder.rglob("*")
        if path.is_file() and inner.isdisjoint(path.parents) and path.name not in (*without, SUMS)
    ]
    lines = "".join(f"{file_hash(folder / name)}  {name}\n" for name in sorted(files))
    write_atomically(folder / SUMS, lambda path: path.write_text(lines))


def verify(folder: Path, *names: str) -> None:
    """Check files of a finished run before they are read.

    Parameters
    ----------
    folder : Path
        The RUN folder.
    *names : str
        Its files, relative to the folder.

    Raises
    ------
    InputError
        If the run has a newer format, or no hashes, or if one of the files is missing or was
        changed since the run was written.
    """
    refuse_newer_format(folder)
    sums = _read_sums(folder)
    for name in names:
        if name not in sums or not (folder / name).is_file():
            raise InputError(
                f"{folder / name} is missing: {folder} is not a complete run. Make it again."
            )
        if file_hash(folder / name) != sums[name]:
            raise InputError(
                f"{folder / name} was changed or damaged after {folder} was written (its SHA-256 "
                f"is not the one in {SUMS}). Restore it, or make the run again."
            )


def refuse_newer_format(folder: Path) -> None:
    """Raise `InputError` if a newer version of candidly wrote the run.

    Nothing happens without a readable `run.json`: whoever needs that file reports it.
    """
    found = _note(folder).get("format", 1)
    if found not in range(1, RUN_FORMAT + 1):
        raise InputError(
            f"{folder} was written by a newer version of candidly (format {found}; this one reads "
            f"{RUN_FORMAT}): upgrade candidly."
        )


def _note(folder: Path) -> dict[str, Any]:
    try:
        note = json.loads((folder / NOTE).read_text())
    except (OSError, ValueError):
        return {}
    return note if isinstance(note, dict) else {}


def is_run(folder: Path) -> bool:
    """Return whether candidly wrote this folder, finished or not."""
    return {"config", "started", "versions"} <= _note(folder).keys()


def is_finished(folder: Path) -> bool:
    """Return whether this is a run that was written to its end."""
    return is_run(folder) and "finished" in _note(folder)


def _read_sums(folder: Path) -> dict[str, str]:
    if not folder.is_dir():
        raise InputError(f"{folder} is missing: expected the folder of a finished run.")
    try:
        lines = (folder / SUMS).read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(
            f"{folder / SUMS} cannot be read: {folder} is not a finished run, is damaged, or was "
            "written by an older version of candidly. Make it again."
        ) from error
    return {name: digest for digest, _, name in (line.partition("  ") for line in lines)}
