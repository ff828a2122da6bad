"""NPZ files and the .mat files of partial-label learning."""

from __future__ import annotations

import math
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from candidly.data.dataset import NO_CLASS, UNKNOWN, Dataset, Examples, Options, Source
from candidly.data.guard import ROW_BYTES, refuse_larger_than_memory, to_float32
from candidly.data.labels import find, says_no_class, to_sets
from candidly.data.matlab import load_mat
from candidly.errors import InputError
from candidly.sets import CandidateSets, label_array
from candidly.storage.atomic import file_hash

if TYPE_CHECKING:
    import pandas as pd

NPZ_NAMES = ("X", "S", "indptr", "indices", "classes", "y", "id")
MAT_NAMES = ("data", "partial_target", "target")


def read_npz(path: Path, options: Options, labelled: bool) -> Dataset | Examples:
    """`X`; `S` or `indptr` and `indices`; `classes`; optionally `y` and `id`."""
    arrays = load_npz(path, NPZ_NAMES if labelled else ("X", "id"))
    X = _need(path, arrays, "X")
    kind, inputs = _as_inputs(path, "X", X)
    examples = (
        _ids(path, arrays.get("id"), len(X)),
        kind,
        inputs,
        Source(path, "npz", file_hash(path), options.as_dict()),
        (),
    )
    if not labelled:
        return Examples(*examples)
    sets = _npz_sets(path, arrays, len(X), options)
    truth = None if "y" not in arrays else _truth(path, "y", arrays["y"], sets)
    return Dataset(*examples, sets=sets, truth=truth)


def load_npz(path: Path, names: tuple[str, ...] | None = None) -> dict[str, NDArray[Any]]:
    """The arrays of these names, or all, after their declared sizes were checked; never objects, which are pickles."""
    try:
        with zipfile.ZipFile(path) as archive:
            members = {info.filename.removesuffix(".npy"): info for info in archive.infolist()}
            if "[Content_Types].xml" in members:
                raise InputError(f"{path} is a workbook, not an NPZ file: save it as CSV UTF-8.")
            chosen = {
                name: info for name, info in members.items() if names is None or name in names
            }
            total = sum(_declared(path, archive, name, info) for name, info in chosen.items())
        refuse_larger_than_memory(total, f"{path}: reading {', '.join(chosen)}", path)
        with np.load(path, allow_pickle=False) as file:
            return {name: file[name] for name in chosen}
    except InputError:
        raise
    except Exception as error:  # on damaged files NumPy and zipfile raise almost anything
        raise InputError(
            f"{path} cannot be read as an NPZ file of plain arrays ({error}). Write it again."
        ) from error


def _declared(path: Path, archive: zipfile.ZipFile, name: str, info: zipfile.ZipInfo) -> int:
    """The bytes that an array will take, by its header; it must tell the same as the archive."""
    with archive.open(info) as file:
        version = np.lib.format.read_magic(file)
        read = (
            np.lib.format.read_array_header_1_0
            if version == (1, 0)
            else np.lib.format.read_array_header_2_0
        )
        shape, _, dtype = read(file)
        header = file.tell()
    if dtype.hasobject:
        raise InputError(
            f"{path}: {name!r} holds Python objects, which are never loaded, for they can run code. Save it as numbers "
            "or strings, as in np.array(names, dtype=str)."
        )
    if math.prod(shape) * dtype.itemsize != info.file_size - header:
        raise InputError(
            f"{path}: {name!r} declares {dtype} {shape}, {math.prod(shape) * dtype.itemsize:,} bytes, but the archive "
            f"has {info.file_size - header:,}. Write it again."
        )
    return info.file_size


def _need(path: Path, arrays: dict[str, Any], name: str) -> Any:
    if name not in arrays:
        raise InputError(
            f"{path} has no {name!r}; it holds {', '.join(arrays) or 'nothing that is known'}."
        )
    return arrays[name]


def _as_inputs(path: Path, name: str, X: NDArray[Any]) -> tuple[str, NDArray[Any]]:
    """("images", uint8 pixels) or ("vectors", float32)."""
    if (
        X.dtype == np.uint8
        and X.ndim in (3, 4)
        and (X.ndim == 3 or X.shape[3] in (1, 3))
        and X.size
    ):
        return "images", X
    if X.ndim != 2 or X.dtype.kind not in "biuf" or not X.size:
        raise InputError(
            f"{path}: {name} is {X.dtype} {X.shape}; expected numbers (n, d), or "
            "uint8 images (n, h, w) or (n, h, w, 3)."
        )
    vectors = to_float32(X)
    if not (finite := np.isfinite(vectors)).all():
        row, column = divmod(int((~finite).argmax()), X.shape[1])
        raise InputError(
            f"{path}: {name} in row {row + 1} (counting from 1), column {column + 1} is {X[row, column]}; expected a "
            "number of 32 bits."
        )
    return "vectors", vectors


def _ids(path: Path, ids: NDArray[Any] | None, n: int) -> pd.Index:
    import pandas as pd

    if ids is None:
        return pd.RangeIndex(1, n + 1)
    if ids.shape != (n,):
        raise InputError(f"{path}: id is of shape {ids.shape}, but there are {n} rows.")
    _need_kind(path, "id", ids, "biufU", "names or numbers")
    index = pd.Index(ids if ids.dtype.kind in "iu" else ids.astype(str))
    if not index.is_unique:
        row = int(index.duplicated().argmax())
        raise InputError(
            f"{path}, row {row + 1} (counting from 1): the id {index.tolist()[row]!r} stands in an earlier row too."
        )
    return index


def _npz_sets(path: Path, arrays: dict[str, Any], n: int, options: Options) -> CandidateSets:
    classes = options.classes
    if classes is None and "classes" in arrays:
        _need_kind(path, "classes", arrays["classes"], "iuU", "names or whole numbers")
        classes = arrays["classes"].tolist()
    if "S" in arrays:
        return _matrix_sets(path, "S", arrays["S"], n, classes)
    if not {"indptr", "indices"} <= arrays.keys():
        raise InputError(
            f"{path} has neither 'S' (n, c) of 0/1 nor 'indptr' and 'indices'; it holds {', '.join(arrays)}."
        )
    indptr, indices = arrays["indptr"], arrays["indices"]
    integers = all(a.ndim == 1 and a.dtype.kind in "iu" for a in (indptr, indices))
    if (
        not integers
        or len(indptr) != n + 1
        or indptr[0] != 0
        or indptr[-1] != len(indices)
        or (np.diff(indptr) < 0).any()
    ):
        raise InputError(
            f"{path}: indptr {indptr.shape} and indices {indices.shape} are no CSR layout of {n} rows."
        )
    labels = _labels(path, classes, int(indices.max(initial=0)) + 1)
    if (wrong := (indices < 0) | (indices >= len(labels))).any():
        at = int(wrong.argmax())
        row = int(np.searchsorted(indptr, at, side="right"))
        raise InputError(
            f"{path}, row {row} (counting from 1): index {indices[at]} is outside 0..{len(labels) - 1}."
        )
    return to_sets(
        indptr.astype(np.int64),
        indices.astype(np.int32),
        labels,
        lambda row: f"{path}, row {row + 1} (counting from 1)",
    )


def _labels(path: Path, classes: Sequence[Any] | None, count: int) -> NDArray[Any]:
    """The class list, or the numbers of so many classes."""
    if classes is not None:
        return label_array(list(classes))
    refuse_larger_than_memory(ROW_BYTES * count, f"{path}: a class list of {count:,} classes", path)
    return np.arange(count)


def _need_kind(path: Path, name: str, array: NDArray[Any], kinds: str, expected: str) -> None:
    """Refuse an array of another kind of values; `kinds`: NumPy's letters."""
    if array.dtype.kind not in kinds:
        raise InputError(f"{path}: {name} holds {array.dtype}; expected {expected}.")


def _matrix_sets(
    path: Path, name: str, S: Any, n: int, classes: Sequence[Any] | None
) -> CandidateSets:
    """Sets from a 0/1 matrix (n, c), with rows counted from 1 in what is said of faults."""
    if S.ndim != 2 or S.shape[0] != n:
        raise InputError(
            f"{path}: {name} is of shape {S.shape}, but there are {n} rows: expected ({n}, c)."
        )
    if classes is not None and len(classes) != S.shape[1]:
        raise InputError(
            f"{path}: {name} has {S.shape[1]} columns, but the class list has {len(classes)} names."
        )
    if not sparse.issparse(S):
        _need_kind(path, name, S, "biuf", "0 and 1")
        S = to_float32(S) if S.dtype.kind == "f" else S
    labels = _labels(path, classes, S.shape[1])
    matrix = sparse.csr_array(S)
    if (wrong := (matrix.data != 0) & (matrix.data != 1)).any():
        at = int(wrong.argmax())
        row = int(np.searchsorted(matrix.indptr, at, side="right"))
        raise InputError(
            f"{path}: {name} in row {row} (counting from 1), column {matrix.indices[at] + 1} is {matrix.data[at]}; "
            "expected 0 or 1."
        )
    matrix.eliminate_zeros()
    return to_sets(
        matrix.indptr,
        matrix.indices,
        labels,
        lambda row: f"{path}, row {row + 1} (counting from 1)",
    )


def _truth(path: Path, name: str, y: NDArray[Any], sets: CandidateSets) -> NDArray[np.int64]:
    """Labels or positions; -1 for none of the classes; NaN or "" for unknown."""
    if y.shape != (len(sets),):
        raise InputError(f"{path}: {name} is of shape {y.shape}, but there are {len(sets)} rows.")
    _need_kind(path, name, y, "biufU", "labels: names or whole numbers")
    values, inverse = np.unique(y, return_inverse=True)
    labels = [int(v) if isinstance(v, float) and v.is_integer() else v for v in values.tolist()]
    index = find(labels, sets.classes)
    for i, label in enumerate(labels):
        if label == "" or (isinstance(label, float) and math.isnan(label)):
            index[i] = UNKNOWN
        elif index[i] < 0 and not says_no_class(label):
            row = int((inverse == i).argmax())
            raise InputError(
                f"{path}: {name} in row {row + 1} (counting from 1) is {label!r}, which is not among the "
                f"{sets.n_classes} classes; -1 stands for none of them."
            )
    return index[inverse]


# ---- .mat


def read_mat(path: Path, options: Options, labelled: bool) -> Dataset | Examples:
    """`data` (n, d), `partial_target` and optionally `target`, (c, n) or (n, c)."""
    found = load_mat(path, MAT_NAMES if labelled else MAT_NAMES[:1])
    data = _need(path, found, "data")
    kind, inputs = _as_inputs(path, "data", data.toarray() if sparse.issparse(data) else data)
    n = len(inputs)
    examples = (
        _ids(path, None, n),
        kind,
        inputs,
        Source(path, "mat", file_hash(path), options.as_dict()),
        (),
    )
    if not labelled:
        return Examples(*examples)
    target = _need(path, found, "partial_target")
    sets = _matrix_sets(
        path, "partial_target", upright(path, "partial_target", target, n), n, options.classes
    )
    truth = (
        None
        if "target" not in found
        else _mat_truth(path, upright(path, "target", found["target"], n), sets)
    )
    return Dataset(*examples, sets=sets, truth=truth)


def upright(path: Path, name: str, matrix: Any, n: int) -> Any:
    """(n, c), whichever way it is stored; refused if both would fit."""
    if matrix.ndim == 2 and matrix.shape == (n, n):
        raise InputError(
            f"{path}: {name} is {matrix.shape}, as many classes as rows, so it could be (c, n) or (n, c). "
            "Save the data as an NPZ file with X (n, d) and S (n, c)."
        )
    if matrix.ndim != 2 or n not in matrix.shape:
        raise InputError(
            f"{path}: {name} is {matrix.shape}, but data has {n} rows: expected (c, {n}) or ({n}, c)."
        )
    return matrix if matrix.shape[0] == n else matrix.T


def _mat_truth(path: Path, target: Any, sets: CandidateSets) -> NDArray[np.int64]:
    """The one class of each row, none if all are 0."""
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
            f"{path}, row {row + 1} (counting from 1): target names {sizes[row]} classes; expected one."
        )
    truth = np.full(len(sets), NO_CLASS, dtype=np.int64)
    truth[sizes == 1] = matrix.indices
    return truth
