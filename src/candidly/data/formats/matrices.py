"""Candidate sets and true labels in arrays."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from candidly.data.columns.labels import class_positions, says_no_class, to_sets
from candidly.data.dataset import NO_CLASS, UNKNOWN
from candidly.data.guard import ROW_BYTES, refuse_larger_than_memory, to_float32
from candidly.errors import InputError
from candidly.labels import label_array
from candidly.sets import CandidateSets


def row_place(path: Path, row: int) -> str:
    """Name a row, counting from 0, as the user counts it."""
    return f"{path}, row {row + 1} (counting from 1)"


def check_kind(path: Path, name: str, array: NDArray[Any], kinds: str, expected: str) -> None:
    """Refuse an array whose values are not of `kinds`, which are NumPy's letters."""
    if array.dtype.kind not in kinds:
        raise InputError(f"{path}: {name} holds {array.dtype}; expected {expected}.")


def class_list(path: Path, classes: Sequence[Any] | None, count: int) -> NDArray[Any]:
    """Return the class list, or the numbers from 0 to `count` - 1 if there is none."""
    if classes is not None:
        return label_array(list(classes))
    refuse_larger_than_memory(ROW_BYTES * count, f"{path}: a class list of {count:,} classes", path)
    return np.arange(count)


def matrix_sets(
    path: Path, name: str, matrix: Any, n: int, classes: Sequence[Any] | None
) -> CandidateSets:
    """Read sets from a 0/1 matrix (n, c), dense or sparse."""
    if matrix.ndim != 2 or matrix.shape[0] != n:
        raise InputError(
            f"{path}: {name} is of shape {matrix.shape}, but there are {n} rows: expected ({n}, c)."
        )
    if classes is not None and len(classes) != matrix.shape[1]:
        raise InputError(
            f"{path}: {name} has {matrix.shape[1]} columns, but the class list has {len(classes)} "
            "names."
        )
    if not sparse.issparse(matrix):
        check_kind(path, name, matrix, "biuf", "0 and 1")
        matrix = to_float32(matrix) if matrix.dtype.kind == "f" else matrix
    labels = class_list(path, classes, matrix.shape[1])
    rows = sparse.csr_array(matrix)
    if (wrong := (rows.data != 0) & (rows.data != 1)).any():
        at = int(wrong.argmax())
        row = int(np.searchsorted(rows.indptr, at, side="right"))
        raise InputError(
            f"{path}: {name} in row {row} (counting from 1), column {rows.indices[at] + 1} is "
            f"{rows.data[at]}; expected 0 or 1."
        )
    rows.eliminate_zeros()
    return to_sets(rows.indptr, rows.indices, labels, lambda row: row_place(path, row))


def truth_of_labels(
    path: Path, name: str, y: NDArray[Any], sets: CandidateSets
) -> NDArray[np.int64]:
    """Read the truth from labels or positions; -1 means no class, NaN or "" unknown."""
    if y.shape != (len(sets),):
        raise InputError(f"{path}: {name} is of shape {y.shape}, but there are {len(sets)} rows.")
    check_kind(path, name, y, "biufU", "labels: names or whole numbers")
    values, inverse = np.unique(y, return_inverse=True)
    labels = [int(v) if isinstance(v, float) and v.is_integer() else v for v in values.tolist()]
    index = class_positions(labels, sets.classes)
    for i, label in enumerate(labels):
        if label == "" or (isinstance(label, float) and math.isnan(label)):
            index[i] = UNKNOWN
        elif index[i] < 0 and not says_no_class(label):
            row = int((inverse == i).argmax())
            raise InputError(
                f"{path}: {name} in row {row + 1} (counting from 1) is {label!r}, which is not "
                f"among the {sets.n_classes} classes; -1 means none of them."
            )
    return index[inverse]


def truth_of_matrix(path: Path, target: Any, sets: CandidateSets) -> NDArray[np.int64]:
    """Read the truth from a matrix (n, c) with at most one class per row."""
    if target.shape != sets.shape:
        raise InputError(
            f"{path}: target has {target.shape[1]} classes, partial_target {sets.n_classes}."
        )
    matrix = sparse.csr_array(target)
    matrix.eliminate_zeros()
    sizes = np.diff(matrix.indptr)
    if (sizes > 1).any():
        row = int((sizes > 1).argmax())
        raise InputError(
            f"{row_place(path, row)}: target names {sizes[row]} classes; expected one."
        )
    truth = np.full(len(sets), NO_CLASS, dtype=np.int64)
    truth[sizes == 1] = matrix.indices
    return truth
