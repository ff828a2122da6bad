"""Results of jobs: read from RUN folders or from an exported file, and exported into one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from candidly.errors import InputError
from candidly.storage.store import read_json, refuse_newer_format, write_atomically

Results = dict[str, dict[str, Any]]

REQUIRED = {"key", "scale", "cell", "row", "seed", "score", "seconds", "curves"}
SOURCE = "a file written by `candidly bench export`"


def load_results(out: Path, exported: Path | None = None) -> Results:
    """Read all results, by the key of their job.

    Parameters
    ----------
    out : Path
        A folder of RUN folders; it need not exist.
    exported : Path, optional
        A file that `export` wrote. Where both have a result, that of the folder counts.

    Raises
    ------
    InputError
        If `out` is a file, or `exported` is not a file of results.
    """
    found = read_exported(exported) if exported is not None else {}
    return found | folder_results(out)


def folder_results(out: Path) -> Results:
    """Read the results of all finished runs in a folder; ignore other files of that name."""
    require_folder(out)
    found = {}
    for path in sorted(out.glob("*/result.json")):
        if path.parent.name.endswith(".partial"):
            continue
        refuse_newer_format(path.parent)
        content = read_json(path)
        if is_result(content):
            found[content["key"]] = content
    return found


def require_folder(out: Path) -> None:
    """Refuse a file where a folder of runs is expected."""
    if out.exists() and not out.is_dir():
        raise InputError(f"{out} is not a folder: choose another place for the runs.")


def is_result(content: Any) -> bool:
    return isinstance(content, dict) and content.keys() >= REQUIRED


def read_exported(path: Path) -> Results:
    """Read a file that `export` wrote."""
    try:
        lines = [json.loads(line) for line in path.read_text().splitlines()]
    except FileNotFoundError as error:
        raise InputError(f"{path} is missing: expected {SOURCE}.") from error
    except OSError as error:
        raise InputError(f"{path} cannot be read ({error.strerror}): expected {SOURCE}.") from error
    except ValueError as error:
        raise InputError(f"{path} is not a file of JSON lines ({error}).") from error
    for number, line in enumerate(lines, start=1):
        if not is_result(line):
            raise InputError(f"{path}, line {number} is not a result: expected {SOURCE}.")
    return {line["key"]: line for line in lines}


def export(path: Path, out: Path) -> str:
    """Write the results of all finished runs as JSON lines, and keep those already in the file.

    Returns
    -------
    str
        A sentence on what the file holds now.
    """
    found = read_exported(path) if path.exists() else {}
    found |= folder_results(out)
    lines = "".join(json.dumps(result, sort_keys=True) + "\n" for result in found.values())
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, lambda temporary: temporary.write_text(lines))
    return f"{len(found)} results in {path}."
