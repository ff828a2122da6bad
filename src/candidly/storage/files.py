"""JSON, metrics, arrays and tensors as files, written atomically and without pickle."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from candidly.errors import InputError
from candidly.storage.atomic import write_atomically

if TYPE_CHECKING:
    from torch import Tensor

METRICS = "metrics.jsonl"
ARRAYS = "arrays.npz"


def write_json(path: Path, value: Any) -> None:
    """Write a value as indented JSON with sorted keys."""
    text = json.dumps(value, indent=2, sort_keys=True) + "\n"
    write_atomically(path, lambda temporary: temporary.write_text(text))


def read_json(path: Path) -> Any:
    """Return the value of a JSON file; raise `InputError` if it is missing or damaged."""
    try:
        return json.loads(path.read_text())
    except FileNotFoundError as error:
        raise InputError(f"{path} is missing: is {path.parent} a finished run?") from error
    except ValueError as error:
        raise InputError(f"{path} is not JSON ({error}).") from error


def read_metrics(folder: str | Path) -> list[dict[str, Any]]:
    """Return the metrics of a run.

    Parameters
    ----------
    folder : str or Path
        A RUN folder.

    Returns
    -------
    list of dict
        One entry per epoch. A last line that was cut short by a crash is left out.
    """
    rows = []
    for line in (Path(folder) / METRICS).read_text().splitlines():
        try:
            rows.append(json.loads(line))
        except json.JSONDecodeError:
            break
    return rows


def write_metrics(folder: Path, rows: list[dict[str, Any]]) -> None:
    """Write all lines of `metrics.jsonl`."""
    lines = "".join(json.dumps(row) + "\n" for row in rows)
    write_atomically(folder / METRICS, lambda path: path.write_text(lines))


def add_metrics(folder: Path, row: dict[str, Any]) -> None:
    """Append one line to `metrics.jsonl`."""
    with (folder / METRICS).open("a") as file:
        file.write(json.dumps(row) + "\n")


def read_arrays(folder: str | Path) -> dict[str, np.ndarray]:
    """Return the arrays that a run keeps, by name.

    Parameters
    ----------
    folder : str or Path
        A RUN folder.
    """
    with np.load(Path(folder) / ARRAYS, allow_pickle=False) as file:
        return dict(file)


def refuse_objects(arrays: dict[str, np.ndarray]) -> None:
    """Raise `InputError` for arrays of objects, which only pickle could store."""
    if wrong := [name for name, array in arrays.items() if array.dtype == object]:
        raise InputError(
            f"arrays {wrong} hold objects: only numbers, booleans and strings are stored."
        )


def write_arrays(folder: Path, arrays: dict[str, np.ndarray]) -> None:
    """Write `arrays.npz`."""

    def write(path: Path) -> None:
        with path.open("wb") as file:
            np.savez_compressed(file, **arrays)  # type: ignore[arg-type]

    write_atomically(folder / ARRAYS, write)


def save_tensors(
    path: Path, tensors: dict[str, Tensor], notes: dict[str, Any] | None = None
) -> None:
    """Write tensors, and notes that JSON can hold, as one safetensors file."""
    from safetensors.torch import save_file

    plain = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}
    metadata = {"notes": json.dumps(notes or {})}
    write_atomically(path, lambda temporary: save_file(plain, temporary, metadata))


def load_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return the tensors and notes of a safetensors file; raise `InputError` if it is damaged."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt") as file:
            notes = json.loads((file.metadata() or {}).get("notes", "{}"))
            # The file is not a dict, though it has keys.
            return {name: file.get_tensor(name) for name in file.keys()}, notes  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        raise InputError(
            f"{path} is not a complete safetensors file ({error}). Remove it to start anew."
        ) from error
