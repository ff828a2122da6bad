"""Outputs of a user's own model: probabilities or logits for the rows of a file."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from candidly.blocks import row_blocks
from candidly.data.columns.roles import IDS
from candidly.data.columns.scan import Scan
from candidly.data.dataset import Dataset
from candidly.data.formats.arrays import load_npz
from candidly.data.formats.base import TableFormat
from candidly.data.formats.registry import find_format
from candidly.data.guard import is_number, refuse_larger_than_memory, to_float32
from candidly.errors import InputError
from candidly.probabilities import TOLERANCE, are_probabilities, describe_row

# If this share of the rows are probabilities, the others are mistakes.
NEARLY_ALL = 0.9
SHOWN_NAMES = 8


@dataclass(frozen=True)
class OutputsFile:
    """What a file of outputs holds; None for what it does not say."""

    path: Path
    values: NDArray[Any]
    classes: list[Any] | None = None
    ids: list[Any] | None = None
    are_logits: bool | None = None


def read_outputs_file(path: str | Path, dataset: Dataset) -> tuple[NDArray[Any], bool]:
    """Read the outputs of a model for the rows of a dataset.

    Parameters
    ----------
    path : str or Path
        - .npy: an array, which is memory-mapped and never copied as a whole.
        - .npz: `probs` or `logits`, or one array of any name; optionally `classes` and `id`.
        - CSV, Parquet, Arrow and other tables: one column per class, by name. With a column `id`
          the rows may be in any order.
    dataset : Dataset
        The examples.

    Returns
    -------
    values : ndarray of shape (n, c)
        The outputs, in the order of the dataset's rows and classes.
    logits : bool
        Whether they are logits. If the file does not say so, the values decide: probabilities lie
        between 0 and 1 and sum to 1.

    Raises
    ------
    InputError
        If rows or classes do not match those of the dataset, or a value is not a finite float32,
        or the rows are neither probabilities nor logits.
    """
    path = Path(path)
    if not path.is_file():
        raise InputError(f"{path} is missing: there is no such file.")
    found = _read(path)
    values = found.values
    if values.ndim != 2 or values.dtype.kind not in "fiu":
        raise InputError(
            f"{path} holds {values.dtype} of shape {values.shape}: expected numbers (rows, "
            "classes)."
        )
    return _in_order(found, dataset), _are_logits(found)


# ---- reading


def _read(path: Path) -> OutputsFile:
    form = find_format(path)
    if form.name == "npy":
        return OutputsFile(path, _map_npy(path))
    if form.name == "npz":
        return _from_npz(path)
    if isinstance(form, TableFormat):
        return _from_columns(form.scan(path, as_text=IDS))
    raise InputError(
        f"{path} is of the format {form.name}: expected outputs as .npy, .npz, CSV, Parquet or "
        "Arrow."
    )


def _map_npy(path: Path) -> NDArray[Any]:
    try:
        return np.load(path, mmap_mode="r", allow_pickle=False)
    except Exception as error:  # on damaged files NumPy raises almost anything
        raise InputError(
            f"{path} cannot be read as a plain array ({error}). Write it again by np.save."
        ) from error


def _from_npz(path: Path) -> OutputsFile:
    arrays = load_npz(path)
    classes = arrays.pop("classes").tolist() if "classes" in arrays else None
    ids = arrays.pop("id").tolist() if "id" in arrays else None
    named = [name for name in ("probs", "logits") if name in arrays]
    if len(named) == 1:
        return OutputsFile(path, arrays[named[0]], classes, ids, named[0] == "logits")
    if len(arrays) != 1:
        raise InputError(
            f"{path} holds {', '.join(arrays) or 'nothing'}: expected the array `probs` or "
            "`logits`."
        )
    return OutputsFile(path, next(iter(arrays.values())), classes, ids)


def _from_columns(scan: Scan) -> OutputsFile:
    """Read a table whose columns are all classes, except for the ids."""
    path = scan.path
    id_column = next((name for name in IDS if name in scan.schema.names), None)
    names = [name for name in scan.schema.names if name != id_column]
    if not names:
        raise InputError(f"{path} has no columns of numbers: expected one for each class.")
    needed = 8 * (scan.rows or 0) * len(names)
    refuse_larger_than_memory(needed, f"{path}: {len(names)} columns", path)
    parts: list[NDArray[Any]] = []
    ids: list[Any] = []
    start = 0
    for batch in scan.batches(scan.schema.names):
        columns = [_numbers(scan, batch.column(name), name, start) for name in names]
        parts.append(np.column_stack(columns))
        start += batch.num_rows
        if id_column is not None:
            ids += batch.column(id_column).to_pylist()
    if not parts:
        raise InputError(f"{path} holds no rows.")
    return OutputsFile(path, np.concatenate(parts), names, None if id_column is None else ids)


def _numbers(scan: Scan, column: Any, name: str, start: int) -> NDArray[np.float32]:
    """Return a column of a batch that begins in row `start`."""
    import pyarrow as pa

    if not (pa.types.is_floating(column.type) or pa.types.is_integer(column.type)):
        cells = column.to_pylist()
        row = next((i for i, cell in enumerate(cells) if not is_number(cell)), 0)
        value = cells[row] if cells else None
        raise InputError(
            f"{scan.where(start + row)}, column {name!r}: {value!r} is not a number. Every column "
            "but the id must be a class, with one number per row."
        )
    return to_float32(column.to_numpy(zero_copy_only=False))


# ---- order


def _in_order(found: OutputsFile, dataset: Dataset) -> NDArray[Any]:
    """Put columns and rows into the order of the dataset; do not copy what is in order."""
    path = found.path
    values = found.values
    classes = [str(label) for label in dataset.sets.classes.tolist()]
    if found.classes is not None:
        columns = _columns_in_order(found, classes, dataset)
        if not _is_identity(columns):
            values = values[:, columns]
    elif values.shape[1] != len(classes):
        rest = ", ..." if len(classes) > SHOWN_NAMES else ""
        raise InputError(
            f"{path} has {values.shape[1]} columns, but {dataset.source.path} has {len(classes)} "
            f"classes: {', '.join(classes[:SHOWN_NAMES])}{rest}. If the model knows more classes, "
            "list all in its order by --classes."
        )
    if found.ids is not None:
        rows = _rows_in_order(path, found.ids, dataset)
        if not (_is_identity(rows) and len(rows) == len(values)):
            values = values[rows]
    if len(values) != len(dataset):
        raise InputError(
            f"{path} has {len(values):,} rows, but {dataset.source.path} has {len(dataset):,}."
        )
    return values


def _is_identity(order: NDArray[np.int64]) -> bool:
    return bool((order == np.arange(len(order))).all())


def _columns_in_order(
    found: OutputsFile, classes: list[str], dataset: Dataset
) -> NDArray[np.int64]:
    assert found.classes is not None
    given = {str(label): j for j, label in enumerate(found.classes)}
    if given.keys() == {*classes} and len(given) == found.values.shape[1]:
        return np.array([given[label] for label in classes])
    missing = [name for name in classes if name not in given]
    extra = [name for name in given if name not in {*classes}]
    faults = []
    advice = ""
    if missing:
        faults.append(f"lacks the class(es) {', '.join(map(repr, missing[:SHOWN_NAMES]))}")
    if extra:
        shown = ", ".join(map(repr, extra[:SHOWN_NAMES]))
        faults.append(f"has the column(s) {shown}, not among the classes")
        advice = " If the model knows more classes, list all by --classes."
    fault = " and ".join(faults) or "names a class twice"
    raise InputError(f"{found.path} {fault} of {dataset.source.path}.{advice}")


def _rows_in_order(path: Path, ids: list[Any], dataset: Dataset) -> NDArray[np.int64]:
    row_of = {str(name): row for row, name in enumerate(ids)}
    if len(row_of) < len(ids):
        repeated = next(name for row, name in enumerate(ids) if row_of[str(name)] != row)
        raise InputError(f"{path}: duplicate id {repeated!r}. Each id needs exactly one row.")
    rows = [row_of.get(str(name), -1) for name in dataset.ids.tolist()]
    if -1 in rows:
        name = dataset.ids[rows.index(-1)]
        raise InputError(f"{path} has no row for the id {name!r} of {dataset.source.path}.")
    return np.array(rows)


# ---- probabilities or logits


def _are_logits(found: OutputsFile) -> bool:
    """Decide by what the file says, else by the values; refuse percentages and mixtures."""
    n = len(found.values)
    has_others = False
    right = 0
    percent = 0
    wrong_row = None
    for block in row_blocks(*found.values.shape):
        values = np.asarray(found.values[block], dtype=np.float64)
        if not len(values):
            continue
        _refuse_not_finite(found, values, block.start)
        has_others |= bool(values.min() < 0 or values.max() > 1 + TOLERANCE)
        good = are_probabilities(values)
        right += int(good.sum())
        percent += int(are_probabilities(values / 100).sum())
        if wrong_row is None and not good.all():
            wrong_row = block.start + int((~good).argmax())
    if found.are_logits or wrong_row is None:
        return bool(found.are_logits)
    if found.are_logits is None and has_others and max(right, percent) < NEARLY_ALL * n:
        return True
    message = f"{found.path}, row {wrong_row + 1} (counting from 1): "
    message += describe_row(np.asarray(found.values[wrong_row], dtype=np.float64))
    if percent >= NEARLY_ALL * n:
        raise InputError(f"{message}. These are percentages: divide them by 100.")
    message += ". Expected probabilities that are at least 0 and sum to 1, or logits."
    if right:
        message += f" {right:,} of {n:,} rows are such probabilities: correct the others."
    raise InputError(f"{message} If all are logits, save them by np.savez(..., logits=...).")


def _refuse_not_finite(found: OutputsFile, values: NDArray[np.float64], start: int) -> None:
    if not (finite := np.isfinite(to_float32(values))).all():
        row, column = divmod(int((~finite).argmax()), values.shape[1])
        name = column + 1 if found.classes is None else repr(found.classes[column])
        raise InputError(
            f"{found.path}, row {start + row + 1} (counting from 1), column {name}: "
            f"{values[row, column]} is not a finite float32."
        )
