"""NPZ files, and the .mat files of partial-label learning."""

from __future__ import annotations

import math
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from candidly.data.columns.labels import to_sets
from candidly.data.dataset import Correction, Dataset, Examples, Options, Source
from candidly.data.formats.base import Format
from candidly.data.formats.matlab import load_mat, rewrite_mat
from candidly.data.formats.matrices import (
    check_kind,
    class_list,
    matrix_sets,
    row_place,
    truth_of_labels,
    truth_of_matrix,
)
from candidly.data.guard import refuse_larger_than_memory, to_float32
from candidly.errors import InputError
from candidly.sets import CandidateSets
from candidly.storage.atomic import file_hash

if TYPE_CHECKING:
    import pandas as pd

NPZ_NAMES = ("X", "S", "indptr", "indices", "classes", "y", "id")
MAT_NAMES = ("data", "partial_target", "target")


class Npz(Format):
    """NumPy archives: `X`; `S` or `indptr` and `indices`; optionally `classes`, `y` and `id`."""

    name = "npz"
    suffixes = (".npz",)

    def recognise(self, path: Path, head: bytes) -> bool:
        return head.startswith(b"PK")

    def read(self, path: Path, options: Options, labelled: bool) -> Dataset | Examples:
        gold_name = () if options.gold is None else (options.gold,)
        arrays = load_npz(path, (*NPZ_NAMES, *gold_name) if labelled else ("X", "id"))
        kind, inputs = _as_inputs(path, "X", _require(path, arrays, "X"))
        ids = _as_ids(path, arrays.get("id"), len(inputs))
        source = Source(path, self.name, file_hash(path), options.as_dict())
        if not labelled:
            return Examples(ids, kind, inputs, source, ())
        sets = _npz_sets(path, arrays, len(inputs), options)
        truth = None
        if "y" in arrays:
            truth = truth_of_labels(path, "y", arrays["y"], sets)
        gold = _npz_gold(path, arrays, sets, options)
        truth = None if options.gold == "y" else truth
        return Dataset(ids, kind, inputs, source, (), sets=sets, truth=truth, gold=gold)

    def write(self, correction: Correction, path: Path) -> None:
        keep = correction.keep
        arrays = load_npz(correction.dataset.source.path)
        of_rows = ("X", "y", "id", correction.dataset.source.options["gold"])
        arrays |= {name: arrays[name][keep] for name in of_rows if name in arrays}
        written = correction.sets[keep]
        if "S" in arrays:
            arrays["S"] = written.dense().astype(arrays["S"].dtype)
        else:
            arrays |= {"indptr": written.indptr, "indices": written.indices}
        with path.open("wb") as file:
            np.savez_compressed(file, **arrays)  # type: ignore[arg-type]


class Mat(Format):
    """MATLAB files: `data` (n, d), `partial_target` and optionally `target`, (c, n) or (n, c)."""

    name = "mat"
    suffixes = (".mat",)

    def recognise(self, path: Path, head: bytes) -> bool:
        # HDF5 is a MATLAB file of version 7.3, which reading refuses with advice.
        is_hdf5 = b"\x89HDF" in (head[:4], head[512:516])
        return head.startswith(b"MATLAB") or path.suffix == ".mat" or is_hdf5

    def read(self, path: Path, options: Options, labelled: bool) -> Dataset | Examples:
        found = load_mat(path, MAT_NAMES if labelled else MAT_NAMES[:1])
        data = _require(path, found, "data")
        kind, inputs = _as_inputs(path, "data", data.toarray() if sparse.issparse(data) else data)
        n = len(inputs)
        ids = _as_ids(path, None, n)
        source = Source(path, self.name, file_hash(path), options.as_dict())
        if not labelled:
            return Examples(ids, kind, inputs, source, ())
        if options.gold is not None:
            raise InputError(
                f"{path}: --gold {options.gold} names a column, and .mat files have none. Save the "
                "data as an NPZ file with X (n, d), S (n, c) and an array of gold labels (n,)."
            )
        target = _rows_first(path, "partial_target", _require(path, found, "partial_target"), n)
        sets = matrix_sets(path, "partial_target", target, n, options.classes)
        truth = None
        if "target" in found:
            truth = truth_of_matrix(path, _rows_first(path, "target", found["target"], n), sets)
        return Dataset(ids, kind, inputs, source, (), sets=sets, truth=truth)

    def write(self, correction: Correction, path: Path) -> None:
        """Write matrices as they were stored: (c, n) or (n, c), sparse or dense."""
        keep = correction.keep
        source = correction.dataset.source.path
        found = load_mat(source, MAT_NAMES)
        old_target = found["partial_target"]
        classes_first = old_target.shape[0] != len(correction.dataset)
        for name in {"data", "target"} & found.keys():
            matrix = sparse.csc_array(found[name]) if sparse.issparse(found[name]) else found[name]
            in_columns = name == "target" and classes_first
            found[name] = matrix[:, keep] if in_columns else matrix[keep]
        target = correction.sets[keep].dense().astype(np.float64)
        target = target.T if classes_first else target
        is_sparse = sparse.issparse(old_target)
        found["partial_target"] = sparse.csc_array(target) if is_sparse else target
        rewrite_mat(source, path, found)


# ---- archives


def load_npz(path: Path, names: tuple[str, ...] | None = None) -> dict[str, NDArray[Any]]:
    """Load plain arrays of an NPZ file, after a check of their declared sizes.

    Parameters
    ----------
    path : Path
        The file.
    names : tuple of str, optional
        The arrays to load, where present; all by default.

    Returns
    -------
    dict
        Arrays by name.

    Raises
    ------
    InputError
        If the file is damaged, takes too much memory, or holds Python objects.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            members = {info.filename.removesuffix(".npy"): info for info in archive.infolist()}
            if "[Content_Types].xml" in members:
                raise InputError(f"{path} is a workbook, not an NPZ file: save it as CSV UTF-8.")
            chosen = {
                name: info for name, info in members.items() if names is None or name in names
            }
            total = sum(_declared_bytes(path, archive, *member) for member in chosen.items())
        refuse_larger_than_memory(total, f"{path}: reading {', '.join(chosen)}", path)
        with np.load(path, allow_pickle=False) as file:
            return {name: file[name] for name in chosen}
    except InputError:
        raise
    except Exception as error:  # on damaged files NumPy and zipfile raise almost anything
        raise InputError(
            f"{path} cannot be read as an NPZ file of plain arrays ({error}). Write it again."
        ) from error


def _declared_bytes(path: Path, archive: zipfile.ZipFile, name: str, info: zipfile.ZipInfo) -> int:
    """Return the size of an array by its header, which must agree with the archive."""
    with archive.open(info) as file:
        if np.lib.format.read_magic(file) == (1, 0):
            shape, _, dtype = np.lib.format.read_array_header_1_0(file)
        else:
            shape, _, dtype = np.lib.format.read_array_header_2_0(file)
        stored = info.file_size - file.tell()
    if dtype.hasobject:
        raise InputError(
            f"{path}: {name!r} holds Python objects, which are never loaded, since they can run "
            "code. Save it as numbers or strings, as in np.array(names, dtype=str)."
        )
    declared = math.prod(shape) * dtype.itemsize
    if declared != stored:
        raise InputError(
            f"{path}: {name!r} declares {dtype} {shape}, {declared:,} bytes, but the archive has "
            f"{stored:,}. Write it again."
        )
    return info.file_size


# ---- parts of a dataset


def _require(path: Path, arrays: dict[str, Any], name: str) -> Any:
    if name not in arrays:
        found = ", ".join(arrays) or "no array of a known name"
        raise InputError(f"{path} has no {name!r}; it holds {found}.")
    return arrays[name]


def _as_inputs(path: Path, name: str, X: NDArray[Any]) -> tuple[str, NDArray[Any]]:
    """Return ("images", uint8 pixels) or ("vectors", float32)."""
    if X.dtype == np.uint8 and X.size and (X.ndim == 3 or (X.ndim == 4 and X.shape[3] in (1, 3))):
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
            f"{path}: {name} in row {row + 1} (counting from 1), column {column + 1}: "
            f"{X[row, column]} is not a finite float32."
        )
    return "vectors", vectors


def _as_ids(path: Path, ids: NDArray[Any] | None, n: int) -> pd.Index:
    import pandas as pd

    if ids is None:
        return pd.RangeIndex(1, n + 1)
    if ids.shape != (n,):
        raise InputError(f"{path}: id is of shape {ids.shape}, but there are {n} rows.")
    check_kind(path, "id", ids, "biufU", "names or numbers")
    index = pd.Index(ids if ids.dtype.kind in "iu" else ids.astype(str))
    if not index.is_unique:
        row = int(index.duplicated().argmax())
        name = index.tolist()[row]
        first = index.tolist().index(name)
        raise InputError(
            f"{row_place(path, row)}: duplicate id {name!r} (first in row {first + 1})."
        )
    return index


def _npz_sets(path: Path, arrays: dict[str, Any], n: int, options: Options) -> CandidateSets:
    classes = options.classes
    if classes is None and "classes" in arrays:
        check_kind(path, "classes", arrays["classes"], "iuU", "names or whole numbers")
        classes = arrays["classes"].tolist()
    if "S" in arrays:
        return matrix_sets(path, "S", arrays["S"], n, classes)
    if not {"indptr", "indices"} <= arrays.keys():
        raise InputError(
            f"{path} has neither 'S' (n, c) of 0/1 nor 'indptr' and 'indices'; it holds "
            f"{', '.join(arrays)}."
        )
    indptr = arrays["indptr"]
    indices = arrays["indices"]
    if not _is_csr(indptr, indices, n):
        raise InputError(
            f"{path}: indptr {indptr.shape} and indices {indices.shape} are not a CSR layout of "
            f"{n} rows."
        )
    labels = class_list(path, classes, int(indices.max(initial=0)) + 1)
    if (wrong := (indices < 0) | (indices >= len(labels))).any():
        at = int(wrong.argmax())
        row = int(np.searchsorted(indptr, at, side="right")) - 1
        raise InputError(
            f"{row_place(path, row)}: index {indices[at]} is outside 0..{len(labels) - 1}."
        )
    return to_sets(
        indptr.astype(np.int64),
        indices.astype(np.int32),
        labels,
        lambda row: row_place(path, row),
    )


def _npz_gold(
    path: Path, arrays: dict[str, Any], sets: CandidateSets, options: Options
) -> NDArray[np.int64] | None:
    """Read the array of gold labels that the user names; it may be `y`."""
    if (name := options.gold) is None:
        return None
    if name in NPZ_NAMES and name != "y":
        raise InputError(f"{path}: --gold {name}: this array has another part. Name one of labels.")
    return truth_of_labels(path, name, _require(path, arrays, name), sets)


def _is_csr(indptr: NDArray[Any], indices: NDArray[Any], n: int) -> bool:
    if not all(a.ndim == 1 and a.dtype.kind in "iu" for a in (indptr, indices)):
        return False
    if len(indptr) != n + 1 or indptr[0] != 0 or indptr[-1] != len(indices):
        return False
    return not (np.diff(indptr) < 0).any()


def _rows_first(path: Path, name: str, matrix: Any, n: int) -> Any:
    """Turn a matrix (c, n) or (n, c) to (n, c); refuse it if both would fit."""
    if matrix.ndim == 2 and matrix.shape == (n, n):
        raise InputError(
            f"{path}: {name} is {matrix.shape}, as many classes as rows, so it could be (c, n) or "
            "(n, c). Save the data as an NPZ file with X (n, d) and S (n, c)."
        )
    if matrix.ndim != 2 or n not in matrix.shape:
        raise InputError(
            f"{path}: {name} is {matrix.shape}, but data has {n} rows: expected (c, {n}) or "
            f"({n}, c)."
        )
    return matrix if matrix.shape[0] == n else matrix.T
