"""Outputs of a user's own model: probabilities or logits for the rows of a file."""

from __future__ import annotations

import zipfile
from collections.abc import Callable, Iterable, Sequence
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
from candidly.probabilities import TOLERANCE, are_probabilities, describe_row, sums_to_one
from candidly.storage.atomic import write_atomically

# If this share of the rows are probabilities, the others are mistakes.
NEARLY_ALL = 0.9
SHOWN_NAMES = 8
# Bytes that probabilities of a run may take; beyond, only the most likely classes are kept.
MAX_BYTES = 10**9
# Shape, type, and the blocks of rows of an array.
Member = tuple[tuple[int, ...], np.dtype[Any], Iterable[NDArray[Any]]]


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
        - .npz: `probs` or `logits`, or one array of any name; optionally `classes`, and `id` or
          `ids`. RUN/probs.npz is such a file.
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
    if {"labels", "probs"} <= arrays.keys():
        raise InputError(
            f"{path} holds the {arrays['probs'].shape[-1]} most likely classes of each row only: "
            "expected probabilities of all classes. Save those of your model by "
            "np.savez(..., probs=...)."
        )
    classes = arrays.pop("classes").tolist() if "classes" in arrays else None
    id_name = next((name for name in ("id", "ids") if name in arrays), None)
    ids = None if id_name is None else arrays.pop(id_name).tolist()
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


# ---- writing


def write_probabilities(
    path: Path,
    probs: Callable[[slice], NDArray[Any]],
    classes: Sequence[Any],
    ids: Sequence[Any],
) -> str | None:
    """Write probabilities for the rows of a file, so that `read_outputs_file` reads them back.

    They are read and written in blocks.

    Parameters
    ----------
    path : Path
        The NPZ file to write: `probs` (n, c) in half precision, `classes` and `ids` as text.
    probs : callable
        Returns the probabilities of some rows, of shape (b, c).
    classes : sequence of length c
    ids : sequence of length n

    Returns
    -------
    str or None
        What was left out: if `probs` would take more than `MAX_BYTES`, only the most likely classes
        of each row are written, `labels` and `probs` of shape (n, k). Ids that would take more
        than that are left out.

    Examples
    --------
    >>> from tempfile import TemporaryDirectory
    >>> table = np.array([[0.25, 0.75], [1.0, 0.0]])
    >>> with TemporaryDirectory() as folder:
    ...     path = Path(folder) / "probs.npz"
    ...     write_probabilities(path, lambda rows: table[rows], ["cat", "dog"], ["a", "b"])
    ...     arrays = load_npz(path)
    >>> arrays["probs"].tolist(), arrays["classes"].tolist(), arrays["ids"].tolist()
    ([[0.25, 0.75], [1.0, 0.0]], ['cat', 'dog'], ['a', 'b'])
    """
    n, c = len(ids), len(classes)
    kept = c if 2 * n * c <= MAX_BYTES else _most_classes(n, c)
    names = np.array([str(label) for label in classes], dtype=np.str_)
    texts = {"classes": names} | _as_texts(ids)
    remarks = [] if "ids" in texts else ["has no ids, which are too long: rows are in order"]
    if kept == c:
        kind = _smallest_kind(probs, n, c)
        blocks = (probs(rows) for rows in row_blocks(n, c))
        members: dict[str, Member] = {"probs": ((n, c), kind, blocks)}
    else:
        members = _most_likely(probs, n, c, kept)
        remarks.append(f"holds the {kept:,} most likely of {c:,} classes per row, to save space")
    write_atomically(path, lambda temporary: _write_npz(temporary, members, texts))
    return f"{path.name} {' and '.join(remarks)}." if remarks else None


def _as_texts(ids: Sequence[Any]) -> dict[str, NDArray[np.str_]]:
    """Return the ids as an array of text, unless a long one makes it too large."""
    names = [str(name) for name in ids]
    longest = max(map(len, names), default=0)
    return {"ids": np.array(names, dtype=np.str_)} if 4 * longest * len(names) <= MAX_BYTES else {}


def _smallest_kind(probs: Callable[[slice], NDArray[Any]], n: int, c: int) -> np.dtype[Any]:
    """Choose half precision, or single if rounding would move the sum of a row too far from 1."""
    half = np.dtype(np.float16)
    for rows in row_blocks(n, c):
        if not sums_to_one(probs(rows).astype(half).sum(axis=1, dtype=np.float64)).all():
            return np.dtype(np.float32)
    return half


def _label_kind(c: int) -> np.dtype[Any]:
    return np.dtype(np.int16 if c <= np.iinfo(np.int16).max else np.int32)


def _most_classes(n: int, c: int) -> int:
    """Count the classes per row that fit into `MAX_BYTES`."""
    per_entry = 2 + _label_kind(c).itemsize
    return min(max(MAX_BYTES // (per_entry * n), 1), c - 1)


def _most_likely(
    probs: Callable[[slice], NDArray[Any]], n: int, c: int, kept: int
) -> dict[str, Member]:
    """Return `labels` and `probs` of the most likely classes, the best first."""

    def best(rows: slice) -> tuple[NDArray[Any], NDArray[Any]]:
        values = probs(rows)
        top = np.argpartition(-values, kept - 1, axis=1)[:, :kept]
        order = np.argsort(-np.take_along_axis(values, top, axis=1), axis=1, kind="stable")
        top = np.take_along_axis(top, order, axis=1)
        return top, np.take_along_axis(values, top, axis=1)

    blocks = list(row_blocks(n, c))
    labels = (best(rows)[0] for rows in blocks)
    values = (best(rows)[1] for rows in blocks)
    return {
        "labels": ((n, kept), _label_kind(c), labels),
        "probs": ((n, kept), np.dtype(np.float16), values),
    }


def _write_npz(path: Path, members: dict[str, Member], texts: dict[str, NDArray[np.str_]]) -> None:
    """Write arrays block by block, so that none is held as a whole."""
    whole: dict[str, Member] = {
        name: (array.shape, array.dtype, iter([array])) for name, array in texts.items()
    }
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        for name, (shape, kind, blocks) in (members | whole).items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as file:
                header = {"descr": kind.str, "fortran_order": False, "shape": shape}
                np.lib.format.write_array_header_1_0(file, header)
                for block in blocks:
                    file.write(np.ascontiguousarray(block, dtype=kind).tobytes())
