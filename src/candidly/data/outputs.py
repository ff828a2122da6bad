"""A user's own model: its probabilities or logits for the rows of a file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from candidly.data.arrays import load_npz
from candidly.data.dataset import Dataset
from candidly.data.delimited import read_delimited
from candidly.data.files import find_format
from candidly.data.guard import is_number, refuse_larger_than_memory, to_float32
from candidly.data.roles import IDS
from candidly.data.scan import Scan, scan_arrow, scan_parquet
from candidly.errors import InputError

BLOCK = 1 << 20  # entries that are checked together
TOLERANCE = 0.01  # by which the probabilities of a row may miss 1
NEARLY = 0.9  # share of the rows that, if they are probabilities, make the others mistakes
SHOWN = 6  # values of a row in a message


def read_outputs_file(path: str | Path, dataset: Dataset) -> tuple[NDArray[Any], bool]:
    """((n, c) values in the order of the dataset's rows and classes, are they logits?).

    .npy: an array, read as a memory map. .npz: `probs` or `logits`, or one array of any name; optionally `classes` and
    `id`. CSV, Parquet, Arrow: a column for each class, by name; with a column `id` the rows may stand in any order.
    """
    path = Path(path)
    if not path.is_file():
        raise InputError(f"{path} is missing: there is no such file.")
    values, classes, ids, logits = _read(path)
    if values.ndim != 2 or values.dtype.kind not in "fiu":
        raise InputError(
            f"{path} holds {values.dtype} of shape {values.shape}: expected numbers (rows, classes)."
        )
    ordered = _in_order(path, values, classes, ids, dataset)
    return ordered, _are_logits(path, values, classes, logits)


def _read(path: Path) -> tuple[NDArray[Any], list[Any] | None, list[Any] | None, bool | None]:
    """(values, classes of the columns, ids of the rows, are they logits?), None for what the file does not tell."""
    with path.open("rb") as file:
        magic = file.read(6)
    if magic == b"\x93NUMPY":
        return _load_npy(path), None, None, None
    form = find_format(path)
    if form == "npz":
        return _from_npz(path, load_npz(path))
    if form in ("parquet", "arrow", "csv"):
        scan = {"parquet": scan_parquet, "arrow": scan_arrow}.get(
            form, lambda p: read_delimited(p, {*IDS})
        )(path)
        return _from_columns(path, scan)
    raise InputError(
        f"{path} is of the format {form}: expected outputs as .npy, .npz, CSV, Parquet or Arrow."
    )


def _load_npy(path: Path) -> NDArray[Any]:
    try:
        return np.load(path, mmap_mode="r", allow_pickle=False)
    except Exception as error:  # on damaged files NumPy raises almost anything
        raise InputError(
            f"{path} cannot be read as a plain array ({error}). Write it again by np.save."
        ) from error


def _from_npz(
    path: Path, arrays: dict[str, NDArray[Any]]
) -> tuple[NDArray[Any], Any, Any, bool | None]:
    classes, ids = (
        arrays.pop(name).tolist() if name in arrays else None for name in ("classes", "id")
    )
    named = {"probs", "logits"} & arrays.keys()
    if len(named) == 1:
        name = named.pop()
        return arrays[name], classes, ids, name == "logits"
    if len(arrays) != 1:
        raise InputError(
            f"{path} holds {', '.join(arrays) or 'nothing'}: expected the array `probs` or `logits`."
        )
    return next(iter(arrays.values())), classes, ids, None


def _from_columns(path: Path, scan: Scan) -> tuple[NDArray[Any], Any, Any, None]:
    """All columns but the ids are classes."""
    key = next((name for name in IDS if name in scan.schema.names), None)
    names = [name for name in scan.schema.names if name != key]
    if not names:
        raise InputError(f"{path} has no columns of numbers: expected one for each class.")
    refuse_larger_than_memory(
        8 * (scan.rows or 0) * len(names), f"{path}: {len(names)} columns", path
    )
    parts: list[NDArray[Any]] = []
    ids: list[Any] = []
    for batch in scan.batches(scan.schema.names):
        start = sum(map(len, parts))
        parts.append(
            np.column_stack([_numbers(scan, batch.column(name), name, start) for name in names])
        )
        ids += batch.column(key).to_pylist() if key else []
    if not parts:
        raise InputError(f"{path} holds no rows.")
    return np.concatenate(parts), names, ids if key else None, None


def _numbers(scan: Scan, column: Any, name: str, start: int) -> NDArray[np.float32]:
    """start: the row of the file that the column's first value stands in."""
    import pyarrow as pa

    if not (pa.types.is_floating(column.type) or pa.types.is_integer(column.type)):
        cells = column.to_pylist()
        row = next((i for i, cell in enumerate(cells) if not is_number(cell)), 0)
        value = cells[row] if cells else None
        raise InputError(
            f"{scan.where(start + row)}, column {name!r}: {value!r} is no number. Every column but the id must be a "
            "class, and hold a number for each row."
        )
    return to_float32(column.to_numpy(zero_copy_only=False))


def _in_order(
    path: Path, values: NDArray[Any], classes: Any, ids: Any, dataset: Dataset
) -> NDArray[Any]:
    """Columns and rows as the dataset has them."""
    wanted = [str(label) for label in dataset.sets.classes.tolist()]
    if classes is not None:
        given = {str(label): j for j, label in enumerate(classes)}
        if given.keys() != {*wanted} or len(given) != values.shape[1]:
            raise InputError(_difference(path, given, wanted, dataset))
        if (columns := [given[label] for label in wanted]) != list(range(len(wanted))):
            values = values[:, columns]
    elif values.shape[1] != len(wanted):
        raise InputError(
            f"{path} has {values.shape[1]} columns, but {dataset.source.path} has {len(wanted)} classes: "
            f"{', '.join(wanted[:8])}{', ...' if len(wanted) > 8 else ''}. If the model knows more classes, list all "
            "in its order by --classes."
        )
    if ids is not None:
        values = values[_rows(path, ids, dataset)]
    if len(values) != len(dataset):
        raise InputError(
            f"{path} has {len(values):,} rows, but {dataset.source.path} has {len(dataset):,}."
        )
    return values


def _difference(path: Path, given: dict[str, int], wanted: list[str], dataset: Dataset) -> str:
    missing, extra = [x for x in wanted if x not in given], [x for x in given if x not in {*wanted}]
    told = [f"lacks the class(es) {', '.join(map(repr, missing[:5]))}"] if missing else []
    told += (
        [f"has the column(s) {', '.join(map(repr, extra[:5]))} that are no class"] if extra else []
    )
    advice = " If the model knows more classes, list all by --classes." if extra else ""
    return f"{path} {' and '.join(told) or 'names a class twice'} of {dataset.source.path}.{advice}"


def _rows(path: Path, ids: list[Any], dataset: Dataset) -> NDArray[np.int64]:
    where = {str(name): row for row, name in enumerate(ids)}
    if len(where) < len(ids):
        twice = next(name for row, name in enumerate(ids) if where[str(name)] != row)
        raise InputError(f"{path}: the id {twice!r} stands twice.")
    found = [where.get(str(name), -1) for name in dataset.ids.tolist()]
    if -1 in found:
        raise InputError(
            f"{path} has no row for the id {dataset.ids[found.index(-1)]!r} of {dataset.source.path}."
        )
    return np.array(found)


def _are_logits(path: Path, values: NDArray[Any], classes: Any, told: bool | None) -> bool:
    """As the file tells, else by the values: probabilities lie between 0 and 1 and sum to 1.

    What is neither is refused with its row, and so are percentages and what is no number.
    """
    step = max(1, BLOCK // values.shape[1])
    beyond, right, percent, wrong = False, 0, 0, -1
    for start in range(0, len(values), step):
        block = np.asarray(values[start : start + step], dtype=np.float64)
        _refuse_no_number(path, block, start, classes)
        beyond = beyond or bool(block.min() < 0 or block.max() > 1 + TOLERANCE)
        least, totals = block.min(axis=1), block.sum(axis=1)
        good = (least >= 0) & (np.abs(totals - 1) <= TOLERANCE)
        right += int(good.sum())
        percent += int(((least >= 0) & (np.abs(totals - 100) <= 100 * TOLERANCE)).sum())
        if wrong < 0 and not good.all():
            wrong = start + int((~good).argmax())
    if told or wrong < 0:
        return bool(told)
    if told is None and beyond and max(right, percent) < NEARLY * len(values):
        return True
    raise InputError(_no_probabilities(path, values, wrong, right, percent >= NEARLY * len(values)))


def _refuse_no_number(path: Path, block: NDArray[np.float64], start: int, classes: Any) -> None:
    if not (finite := np.isfinite(to_float32(block))).all():
        row, column = divmod(int((~finite).argmax()), block.shape[1])
        named = column + 1 if classes is None else repr(classes[column])
        place = f"{path}, row {start + row + 1} (counting from 1), column {named}"
        raise InputError(f"{place}: {block[row, column]} is no finite number of 32 bits.")


def _no_probabilities(path: Path, values: NDArray[Any], row: int, right: int, percent: bool) -> str:
    """Which row is wrong, and what to do about it."""
    entries = np.asarray(values[row], dtype=np.float64)
    shown = ", ".join(f"{value:.4g}" for value in entries[:SHOWN]) + (
        ", ..." if len(entries) > SHOWN else ""
    )
    told = f"{path}, row {row + 1} (counting from 1): the values sum to {entries.sum():.4g}"
    told += f", the least is {entries.min():.4g} ({shown})."
    if percent:
        return f"{told} These are percentages: divide them by 100."
    told += " Expected probabilities that are at least 0 and sum to 1, or logits."
    if right:
        told += f" {right:,} of {len(values):,} rows are such probabilities: correct the others."
    return f"{told} If all are logits, save them by np.savez(..., logits=...)."
