"""Candidate sets: whatever form they come in, one checked object with its class list."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from candidly.blocks import row_blocks
from candidly.errors import InputError
from candidly.labels import (
    class_finder,
    class_list,
    cut,
    factorise,
    first_of,
    holds_integers,
    index_dtype,
    labels_of,
    listed,
    row_of,
    shown_classes,
    sorted_labels,
)

Parts = tuple[NDArray[Any], NDArray[Any], NDArray[Any]]  # indptr, indices, classes


@dataclass(frozen=True, slots=True, init=False, eq=False, repr=False)
class CandidateSets:
    """The candidate labels of n examples over c classes, checked once and never changed.

    Parameters
    ----------
    sets
        One of

        - rows of labels: ``[["cat", "dog"], {"bird"}]``, also a column (Series) of lists;
        - rows of strings, split at `sep`: ``["cat|dog", "bird"]``;
        - one label per row: ``["cat", "dog"]`` or ``np.array([0, 2])`` are sets of one;
        - a 0/1 or bool matrix (n, c): NumPy array, tensor, SciPy sparse, or a table whose columns
          are the classes. Nested Python lists are always rows of labels, so wrap a matrix in
          ``np.array``;
        - another CandidateSets.
    classes : sequence or int, optional
        The labels in order, or c for the classes 0 to c - 1. By default the columns of a matrix,
        else the labels that occur, sorted. Integers in `sets` are labels, unless a class list
        without integers is given: then they are positions in it.
    sep : str or None, default="|"
        Separator of rows of strings; None keeps each string whole.

    Attributes
    ----------
    indptr, indices : arrays
        The sets in CSR form: that of row i is ``indices[indptr[i]:indptr[i + 1]]``, sorted
        positions in `classes`.
    classes : array of shape (c,)
        The labels.

    Examples
    --------
    >>> sets = CandidateSets(["cat|dog", "bird"])
    >>> sets
    CandidateSets(2 examples, 3 classes ['bird', 'cat', 'dog'], 1.50 candidates each (1 to 2))
    >>> sets[0]
    ('cat', 'dog')
    >>> sets.dense().astype(int)
    array([[0, 1, 1],
           [1, 0, 0]])
    """

    indptr: NDArray[np.int64]  # (n + 1,)
    indices: NDArray[Any]  # (total,) uint8, uint16 or int32, whichever suffices
    classes: NDArray[Any]  # (c,) labels: str, int, or object when mixed

    __hash__ = None  # type: ignore[assignment]

    def __init__(self, sets: Any, classes: Any = None, *, sep: str | None = "|") -> None:
        if sep is not None and not (isinstance(sep, str) and sep):
            raise InputError(
                f"sep={sep!r}: expected a non-empty string such as '|', or None to keep strings "
                "whole."
            )
        self._fill(*_read(sets, None if classes is None else class_list(classes), sep))

    def _fill(
        self, indptr: NDArray[Any], indices: NDArray[Any], classes: NDArray[Any]
    ) -> CandidateSets:
        for name, array in (("indptr", indptr), ("indices", indices), ("classes", classes)):
            array.flags.writeable = False
            object.__setattr__(self, name, array)
        return self

    @property
    def n_classes(self) -> int:
        """The number of classes c."""
        return len(self.classes)

    @property
    def shape(self) -> tuple[int, int]:
        """(n, c), as of the 0/1 matrix."""
        return len(self), self.n_classes

    @property
    def sizes(self) -> NDArray[np.int64]:
        """(n,) the number of candidates of each example."""
        return np.diff(self.indptr)

    @property
    def nbytes(self) -> int:
        """Bytes held by the three arrays."""
        return self.indptr.nbytes + self.indices.nbytes + self.classes.nbytes

    def __len__(self) -> int:
        return len(self.indptr) - 1

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        return (self[i] for i in range(len(self)))

    def __getitem__(self, key: Any) -> Any:
        """Return the labels of one row, or the sets of several rows.

        `key` is an integer; or a slice, list, index array or bool mask.
        """
        if isinstance(key, tuple) and len(key) == 2 and key[1] is Ellipsis:
            key = key[0]  # how scikit-learn asks for rows
        if isinstance(key, tuple):
            raise IndexError(
                f"CandidateSets are indexed by rows only, not by {key!r}; dense() has columns too."
            )
        if isinstance(key, int | np.integer):
            row = range(len(self))[int(key)]
            members = self.indices[self.indptr[row] : self.indptr[row + 1]]
            return tuple(self.classes[members].tolist())
        rows = np.arange(len(self))[key if isinstance(key, slice | list) else np.asarray(key)]
        if rows.ndim != 1:
            raise IndexError(
                f"CandidateSets are indexed by one list or mask of rows, not by {cut(repr(key))}."
            )
        sizes = self.sizes[rows]
        indptr = np.concatenate([[0], np.cumsum(sizes)])
        taken = np.repeat(self.indptr[rows] - indptr[:-1], sizes) + np.arange(indptr[-1])
        return object.__new__(CandidateSets)._fill(indptr, self.indices[taken], self.classes)

    def dense(self, rows: Any = None) -> NDArray[np.bool_]:
        """Return all rows, or some, as a matrix.

        Parameters
        ----------
        rows : int, slice, list or mask, optional
            All rows by default.

        Returns
        -------
        bool array of shape (n, c)
            Entry (i, j) says whether class j is a candidate of example i.
        """
        part = self
        if rows is not None:
            part = self[[rows] if isinstance(rows, int | np.integer) else rows]
        matrix = np.zeros(part.shape, dtype=bool)
        matrix[np.repeat(np.arange(len(part)), part.sizes), part.indices] = True
        return matrix

    def to_csr(self) -> sparse.csr_array:
        """Return the matrix (n, c) as a SciPy sparse array of bool."""
        ones = np.ones(len(self.indices), dtype=bool)
        return sparse.csr_array((ones, self.indices, self.indptr), self.shape, copy=True)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        if copy is False:
            raise ValueError(
                "a CandidateSets stores no dense matrix: converting it to an array makes a copy."
            )
        return self.dense().astype(bool if dtype is None else dtype, copy=False)

    def contains(self, labels: Any) -> NDArray[np.bool_]:
        """Tell for each row i whether the class index ``labels[i]`` is in its set.

        Parameters
        ----------
        labels : int array of shape (n,)
            Class indices; -1 (no class) is in no set.

        Returns
        -------
        bool array of shape (n,)
        """
        index = np.asarray(labels)
        if index.shape != (len(self),) or index.dtype.kind not in "iu":
            raise InputError(
                f"contains() got {index.dtype} of shape {index.shape}: expected {len(self)} class "
                "indices, one per row; index_of() turns labels into indices."
            )
        if (wrong := (index < -1) | (index >= self.n_classes)).any():
            row = int(wrong.argmax())
            raise InputError(
                f"row {row}: class index {index[row]} is outside -1..{self.n_classes - 1}."
            )
        found = self.indices == np.repeat(index, self.sizes)
        return np.logical_or.reduceat(found, self.indptr[:-1])

    def index_of(self, labels: Any) -> NDArray[np.int64]:
        """Return the class index of each label.

        Parameters
        ----------
        labels : sequence
            Integers are read as in the constructor.

        Returns
        -------
        int64 array of shape (len(labels),)
        """
        values = listed(labels, "labels")
        each = np.arange(len(values) + 1)
        return _encode(each, *factorise(each, values), self.classes)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, CandidateSets):
            return NotImplemented
        return (
            np.array_equal(self.indptr, other.indptr)
            and np.array_equal(self.indices, other.indices)
            and self.classes.tolist() == other.classes.tolist()
        )

    def __repr__(self) -> str:
        shown = f"{len(self)} examples, {shown_classes(self.classes)}"
        if len(self):
            low, mean, high = self.sizes.min(), self.sizes.mean(), self.sizes.max()
            shown += f", {mean:.2f} candidates each ({low} to {high})"
        return f"CandidateSets({shown})"


# ---- reading: every form becomes (indptr, indices, classes)


def _read(sets: Any, classes: NDArray[Any] | None, sep: str | None) -> Parts:
    """Find out which form `sets` has, and read it."""
    if isinstance(sets, CandidateSets):
        return _read_sets(sets, classes)
    if sparse.issparse(sets):
        return _read_sparse(sets, classes)
    if hasattr(sets, "columns"):
        table = _read_matrix(np.asarray(sets), class_list(list(sets.columns)))
        if classes is None:
            return table
        return _read_sets(object.__new__(CandidateSets)._fill(*table), classes)
    array = np.asarray(sets) if hasattr(sets, "__array__") else None
    if array is None or array.ndim == 1:
        return _read_rows(listed(sets if array is None else array, "sets"), classes, sep)
    if array.ndim != 2:
        raise InputError(
            f"sets of shape {array.shape}: expected a 0/1 matrix (n, c), or one set of labels per "
            "row."
        )
    return _read_matrix(array, classes)


def _filled(indptr: NDArray[Any]) -> NDArray[Any]:
    """Refuse a table without rows and a row without candidates."""
    sizes = np.diff(indptr)
    if not len(sizes):
        raise InputError("sets holds no examples: expected at least one row.")
    if not sizes.all():
        raise InputError(
            f"row {sizes.argmin()}: the candidate set is empty ({np.count_nonzero(sizes == 0)} "
            "such row(s), counting from 0). Every example needs a candidate: drop the row, or give "
            "it all classes if nothing is known."
        )
    return indptr


def _read_sets(sets: CandidateSets, classes: NDArray[Any] | None) -> Parts:
    """The same sets, over another class list if one is given."""
    if classes is None:
        return sets.indptr, sets.indices, sets.classes
    used, inverse = np.unique(sets.indices, return_inverse=True)
    codes = _encode(sets.indptr, sets.classes[used].tolist(), inverse, classes)
    return *_compress(sets.indptr, codes, len(classes)), classes


def _read_matrix(matrix: NDArray[Any], classes: NDArray[Any] | None) -> Parts:
    """Read a dense 0/1 matrix (n, c), in blocks of rows."""
    classes = _fit_width(matrix.shape, classes)
    c = matrix.shape[1]
    sizes = [np.zeros(1, dtype=np.int64)]
    indices = []
    for rows in row_blocks(*matrix.shape):
        block = _as_bool(matrix[rows], rows.start, classes)
        sizes.append(block.sum(axis=1, dtype=np.int64))
        indices.append((np.flatnonzero(block) % c).astype(index_dtype(c)))
    return _filled(np.cumsum(np.concatenate(sizes))), np.concatenate(indices), classes


def _as_bool(block: NDArray[Any], start: int, classes: NDArray[Any]) -> NDArray[np.bool_]:
    """Entries that are all 0 or 1, as bool."""
    if block.dtype == bool:
        return block
    if block.dtype.kind in "iuf":
        wrong = (block != 0) & (block != 1)
    else:
        wrong = ~np.frompyfunc(_is_zero_or_one, 1, 1)(block).astype(bool)
    if wrong.any():
        row, column = divmod(int(wrong.argmax()), block.shape[1])
        raise _bad_entry(start + row, column, block[row, column], classes)
    return block.astype(bool)


def _is_zero_or_one(value: Any) -> bool:
    return isinstance(value, int | float | np.number | np.bool_) and value in (0, 1)


def _read_sparse(matrix: Any, classes: NDArray[Any] | None) -> Parts:
    """Read a SciPy sparse 0/1 matrix (n, c); the caller's matrix stays as it is."""
    classes = _fit_width(matrix.shape, classes)
    csr = matrix.tocsr()
    if not csr.has_canonical_format:
        csr = csr.copy()
        csr.sum_duplicates()
    wrong = (csr.data != 0) & (csr.data != 1)
    if wrong.any():
        at = int(wrong.argmax())
        raise _bad_entry(row_of(csr.indptr, at), int(csr.indices[at]), csr.data[at], classes)
    if not csr.data.all():
        csr = csr.copy()
        csr.eliminate_zeros()
    indices = csr.indices.astype(index_dtype(len(classes)))
    return _filled(csr.indptr.astype(np.int64)), indices, classes


def _fit_width(shape: tuple[int, ...], classes: NDArray[Any] | None) -> NDArray[Any]:
    """The classes of the columns of a matrix."""
    if len(shape) != 2 or shape[1] == 0:
        raise InputError(
            f"sets of shape {shape}: expected a 0/1 matrix (n, c) with a column for each class."
        )
    if classes is None:
        return np.arange(shape[1])
    if len(classes) != shape[1]:
        raise InputError(
            f"sets is a matrix of shape {tuple(shape)}, but there are {shown_classes(classes)}: "
            "expected a column per class. For a table of labels rather than of 0/1, pass a list of "
            "lists."
        )
    return classes


def _bad_entry(row: int, column: int, value: Any, classes: NDArray[Any]) -> InputError:
    value = value.item() if isinstance(value, np.generic) else value
    return InputError(
        f"row {row}, column {column} (class {classes[column : column + 1].tolist()[0]!r}): the "
        f"entry is {value!r}, expected 0 or 1. For rows of labels pass a list of lists, or the one "
        "column that holds them."
    )


def _read_rows(
    rows: list[Any] | NDArray[Any], classes: NDArray[Any] | None, sep: str | None
) -> Parts:
    """One item per example: a label, a string to split, or several labels."""
    if isinstance(rows, np.ndarray):
        indptr = _filled(np.arange(len(rows) + 1))
        uniques, inverse = factorise(indptr, rows)
    else:
        split = [labels_of(row, sep) for row in rows]
        sizes = np.fromiter(chain([0], map(len, split)), dtype=np.int64, count=len(split) + 1)
        indptr = _filled(np.cumsum(sizes))
        uniques, inverse = factorise(indptr, list(chain.from_iterable(split)))
    _refuse_nested_matrix(np.diff(indptr), uniques)
    if classes is None:
        classes = _occurring(indptr, uniques, inverse)
    codes = _encode(indptr, uniques, inverse, classes)
    return *_compress(indptr, codes, len(classes)), classes


def _refuse_nested_matrix(sizes: NDArray[Any], uniques: list[Any]) -> None:
    """Refuse rows of one length above 2 that hold only 0 and 1: they are a matrix in disguise."""
    width = int(sizes[0])
    if width > 2 and {*uniques} <= {0, 1} and (sizes == width).all():
        raise InputError(
            f"all {len(sizes)} row(s) are lists of {width} entries that are 0 or 1: nested lists "
            "are read as labels. For a 0/1 matrix pass np.array(sets)."
        )


def _occurring(indptr: NDArray[Any], uniques: list[Any], inverse: NDArray[Any]) -> NDArray[Any]:
    """The labels that occur, sorted; by type first if they cannot be compared."""
    if bools := [i for i, label in enumerate(uniques) if isinstance(label, bool)]:
        raise _unknown(row_of(indptr, first_of(inverse, bools)), uniques[bools[0]], None)
    return sorted_labels(uniques)


def _encode(
    indptr: NDArray[Any], uniques: list[Any], inverse: NDArray[Any], classes: NDArray[Any]
) -> NDArray[np.int64]:
    """The class index of every value, whose label is ``uniques[inverse]``."""
    index = np.fromiter(map(class_finder(classes), uniques), dtype=np.int64, count=len(uniques))
    if (index < 0).any():
        at = first_of(inverse, np.flatnonzero(index < 0))
        raise _unknown(row_of(indptr, at), uniques[inverse[at]], classes)
    return index[inverse]


def _unknown(row: int, label: Any, classes: NDArray[Any] | None) -> InputError:
    """Make the error for a label that is not in the class list."""
    if isinstance(label, bool):
        return InputError(
            f"row {row}: {label} is not read as a label. For a 0/1 matrix pass np.array(sets); if "
            "these are labels, pass classes=[False, True]."
        )
    assert classes is not None
    if isinstance(label, int) and not holds_integers(classes):
        return InputError(
            f"row {row}: position {label} is outside 0..{len(classes) - 1}. Integers are positions "
            f"here, because the class list holds none: {shown_classes(classes)}."
        )
    return InputError(
        f"row {row}: label {label!r} is not among the {shown_classes(classes)}. Correct it, "
        "convert its type, or add it to `classes`. (Strings given as whole rows are split at "
        "`sep`; sep=None keeps them whole.)"
    )


def _compress(
    indptr: NDArray[Any], codes: NDArray[Any], c: int
) -> tuple[NDArray[np.int64], NDArray[Any]]:
    """Sort each row's class indices and drop repetitions, as positions in the flat n x c matrix."""
    n = len(indptr) - 1
    keys = np.repeat(np.arange(n) * c, np.diff(indptr)) + codes
    if (keys[1:] <= keys[:-1]).any():
        keys.sort()
        is_new = np.concatenate([[True], keys[1:] != keys[:-1]])  # ten times as fast as np.unique
        keys = keys[is_new]
    starts = np.searchsorted(keys, np.arange(n + 1) * c).astype(np.int64)
    return starts, (keys % c).astype(index_dtype(c))
