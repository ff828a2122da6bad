"""Who answered what: the labels, label sets and votes of annotators, one checked object."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from candidly.cells import (
    NO_CLASS_TEXT,
    Reading,
    annotator_numbers,
    as_cells,
    as_table,
    checked_classes,
    column_names,
    offsets,
    ranges,
    row_numbers,
    unknown_label,
)
from candidly.errors import InputError
from candidly.labels import class_finder, cut, distinct_labels, index_dtype, listed, shown_classes
from candidly.sets import CandidateSets

# The one annotator of anonymous answers.
ANYONE = "anyone"
# Votes that differ by less are tied: 1/3 + 1/3 + 1/3 need not be 1 in floating point.
TIE = 1e-9


class _Parts(NamedTuple):
    """The fields of an `Answers`, as they are read."""

    classes: NDArray[Any]
    annotators: NDArray[Any]
    row: NDArray[np.int64]
    annotator: NDArray[np.int64]
    counts: NDArray[np.int64]
    indptr: NDArray[np.int64]
    indices: NDArray[Any]
    n_rows: int
    anonymous: bool = False


@dataclass(frozen=True, slots=True, init=False, eq=False, repr=False)
class Answers:
    """The answers of k annotators to n rows, checked once and never changed.

    An annotator is whoever gives labels: a person, a rule, a model or a prompt. An answer is one
    label, a set of labels, or "none of the classes". Only answers that were given take memory.

    Parameters
    ----------
    table
        One row per example and one column per annotator; one of

        - a DataFrame, whose columns name the annotators;
        - an array (n, k), masked or not, or a list of lists;
        - another Answers.

        A cell is a label, a collection of labels, a string that is split at `sep`, ``Not(...)``,
        or nothing: None, NaN, NA, an empty string or collection, or a negative number (unless
        `classes` holds negative numbers).
    classes : sequence or int, optional
        The labels in order, or c for the classes 0 to c - 1. By default the labels that occur,
        sorted. Integers are labels, unless a class list without integers is given: then they are
        positions in it.
    annotators : sequence, optional
        Their names, one per column. By default the columns of a DataFrame, else 0 to k - 1.
    none : label, default="none of the classes"
        The label that says that the example belongs to none of the classes. The default is
        understood in any case.
    complement : bool, default=False
        Read each cell as the labels that are excluded, like ``Not(...)``.
    sep : str or None, default="|"
        Separator in cells of text; None keeps each string whole.

    Attributes
    ----------
    classes : array of shape (c,)
        The labels.
    annotators : array of shape (k,)
        Names of the annotators.
    row, annotator : int arrays of shape (m,)
        The row of each of the m answers, and its annotator as an index of `annotators`; sorted by
        row, then by annotator.
    counts : int array of shape (m,)
        How many people gave this answer: 1, unless they are anonymous.
    indptr, indices : arrays
        The answers in CSR form: answer i is ``indices[indptr[i]:indptr[i + 1]]``, sorted positions
        in `classes`; the position c stands for none of the classes.
    n_rows : int
        The number of rows n, including those that nobody answered.
    anonymous : bool
        Whether only counts are known (`from_counts`).

    Examples
    --------
    >>> answers = Answers([["cat", "cat|dog"], ["bird", None]], annotators=["ann", "bob"])
    >>> answers
    Answers(2 rows, 2 annotators, 3 answers, 3 classes ['bird', 'cat', 'dog'])
    >>> answers[0]
    {'ann': ('cat',), 'bob': ('cat', 'dog')}
    >>> answers.votes().toarray()
    array([[0, 2, 1, 0],
           [1, 0, 0, 0]])
    >>> list(answers.to_sets())
    [('cat', 'dog'), ('bird',)]
    """

    classes: NDArray[Any]
    annotators: NDArray[Any]
    row: NDArray[np.int64]
    annotator: NDArray[np.int64]
    counts: NDArray[np.int64]
    indptr: NDArray[np.int64]
    indices: NDArray[Any]
    n_rows: int
    anonymous: bool

    __hash__ = None  # type: ignore[assignment]

    def __init__(
        self,
        table: Any,
        classes: Any = None,
        annotators: Any = None,
        *,
        none: Any = NO_CLASS_TEXT,
        complement: bool = False,
        sep: str | None = "|",
    ) -> None:
        if isinstance(table, Answers):
            if complement:
                raise InputError("complement=True: expected a table, but these are Answers.")
            self._fill(_read_answers(table, classes, annotators))
            return
        reading = Reading(classes, none, complement, sep)
        cells, mask, columns = as_table(table)
        names = column_names(cells.shape[1], columns if annotators is None else annotators)
        given = reading.given(cells) & ~mask
        row, annotator = np.nonzero(given)
        self._fill(_read(reading, cells[given], row, annotator, names, len(cells)))

    @classmethod
    def from_long(
        cls,
        rows: Any,
        annotators: Any,
        labels: Any,
        *,
        n_rows: int | None = None,
        classes: Any = None,
        names: Any = None,
        none: Any = NO_CLASS_TEXT,
        complement: bool = False,
        sep: str | None = "|",
    ) -> Answers:
        """Read a long table: one answer per line, in any order.

        Parameters
        ----------
        rows : int sequence of shape (m,)
            The row of each answer, from 0.
        annotators : sequence of shape (m,)
            Who gave it.
        labels : sequence of shape (m,)
            The answer: whatever may be a cell of a table.
        n_rows : int, optional
            The number of rows; by default as many as `rows` needs.
        classes, none, complement, sep
            As in the constructor.
        names : sequence, optional
            All annotators in order, also those without an answer. By default those that occur,
            sorted.

        Returns
        -------
        Answers

        Examples
        --------
        >>> Answers.from_long([0, 1, 0], ["bob", "ann", "ann"], ["cat", "dog", "dog"])[0]
        {'ann': ('dog',), 'bob': ('cat',)}
        """
        reading = Reading(classes, none, complement, sep)
        cells = as_cells(listed(labels, "labels"))
        row, n = row_numbers(rows, n_rows, len(cells))
        annotator, found = annotator_numbers(annotators, names, len(cells))
        given = reading.given(cells)
        parts = _read(reading, cells[given], row[given], annotator[given], found, n)
        return object.__new__(cls)._fill(_sorted(parts))

    @classmethod
    def from_membership(
        cls,
        membership: Any,
        row: Any,
        annotator: Any,
        *,
        n_rows: int,
        classes: Any,
        annotators: Any,
    ) -> Answers:
        """Read answers that are indices already; `membership` gives the same matrix again.

        Parameters
        ----------
        membership : array or sparse array of shape (m, c + 1)
            Entry (i, j) is 1 if answer i includes class j, else 0; the last column stands for
            none of the classes.
        row, annotator : int arrays of shape (m,)
            The row of each answer, and its annotator as an index of `annotators`.
        n_rows : int
            The number of rows.
        classes, annotators : sequence
            The labels, and the names of the annotators.

        Returns
        -------
        Answers

        Examples
        --------
        >>> Answers.from_membership(
        ...     np.array([[1, 0, 0], [0, 0, 1]]), [0, 0], [0, 1],
        ...     n_rows=1, classes=["cat", "dog"], annotators=["ann", "bob"],
        ... )[0]
        {'ann': ('cat',), 'bob': ('none of the classes',)}
        """
        known = checked_classes(classes)
        names = distinct_labels(annotators, "annotators")
        # As candidate sets, the matrix is checked: 0/1, and no answer without a class.
        sets = CandidateSets(membership, len(known) + 1)
        rows, n = row_numbers(row, n_rows, len(sets))
        who, _ = row_numbers(annotator, len(names), len(sets), "annotator")
        ones = np.ones(len(sets), dtype=np.int64)
        parts = _Parts(known, names, rows, who, ones, sets.indptr, sets.indices, n)
        return object.__new__(cls)._fill(_sorted(parts))

    @classmethod
    def from_counts(cls, counts: Any, classes: Any = None, *, none_counts: Any = None) -> Answers:
        """Read how many people gave each label, if it is not known who they are.

        Parameters
        ----------
        counts : array, sparse array or DataFrame of shape (n, c)
            Whole numbers: how many people gave label j to row i.
        classes : sequence or int, optional
            The labels of the columns. By default the columns of a DataFrame, else 0 to c - 1.
        none_counts : array of shape (n,), optional
            How many people said that the row belongs to none of the classes.

        Returns
        -------
        Answers
            Its attribute `anonymous` is True.

        Examples
        --------
        >>> answers = Answers.from_counts([[3, 1], [0, 2]], ["cat", "dog"])
        >>> answers
        Answers(2 rows, 6 anonymous answers, 2 classes ['cat', 'dog'])
        >>> answers[0]
        [(('cat',), 3), (('dog',), 1)]
        """
        if classes is None and hasattr(counts, "columns"):
            classes = list(counts.columns)
        given = counts if sparse.issparse(counts) else np.asarray(counts)
        known = _fit_width(given.shape, classes)
        matrix = _whole_numbers(given, "counts")
        if none_counts is None:
            extra = sparse.csr_array((given.shape[0], 1), dtype=np.int64)
        else:
            extra = _whole_numbers(_as_column(none_counts, given.shape[0]), "none_counts")
        both = sparse.csr_array(sparse.hstack([matrix, extra]))
        both.sort_indices()
        m = both.nnz
        parts = _Parts(
            classes=known,
            annotators=np.array([ANYONE]),
            row=np.repeat(np.arange(given.shape[0]), np.diff(both.indptr)),
            annotator=np.zeros(m, dtype=np.int64),
            counts=both.data,
            indptr=np.arange(m + 1),
            indices=both.indices,
            n_rows=given.shape[0],
            anonymous=True,
        )
        return object.__new__(cls)._fill(parts)

    def _fill(self, parts: _Parts) -> Answers:
        """Set all fields; the arrays can no longer be changed."""
        small = index_dtype(len(parts.classes) + 1)
        for name, value in parts._replace(indices=parts.indices.astype(small))._asdict().items():
            if isinstance(value, np.ndarray):
                value.flags.writeable = False
            object.__setattr__(self, name, value)
        return self

    def _parts(self) -> _Parts:
        return _Parts(*(getattr(self, name) for name in _Parts._fields))

    @property
    def n_classes(self) -> int:
        """The number of classes c."""
        return len(self.classes)

    @property
    def n_answers(self) -> int:
        """The number of answers, counting each person."""
        return int(self.counts.sum())

    @property
    def shape(self) -> tuple[int, int]:
        """(n, k): rows and annotators."""
        return self.n_rows, len(self.annotators)

    @property
    def sizes(self) -> NDArray[np.int64]:
        """(m,) the number of labels of each answer."""
        return np.diff(self.indptr)

    @property
    def nbytes(self) -> int:
        """Bytes held by the arrays."""
        return sum(part.nbytes for part in self._parts() if isinstance(part, np.ndarray))

    def __len__(self) -> int:
        return self.n_rows

    def __getitem__(self, key: Any) -> Any:
        """Return the answers to one row, or the Answers to several rows.

        `key` is an integer; or a slice, list, index array or bool mask. One row is a dict from
        annotators to labels; or, if anonymous, a list of (labels, count).
        """
        if isinstance(key, tuple) and len(key) == 2 and key[1] is Ellipsis:
            key = key[0]  # how scikit-learn asks for rows
        if isinstance(key, tuple):
            raise IndexError(
                f"Answers are indexed by rows only, not by {key!r}; `annotator` says whose answer "
                "each is."
            )
        if isinstance(key, int | np.integer):
            return self._one_row(range(self.n_rows)[int(key)])
        rows = np.arange(self.n_rows)[key if isinstance(key, slice | list) else np.asarray(key)]
        if rows.ndim != 1:
            raise IndexError(
                f"Answers are indexed by one list or mask of rows, not by {cut(repr(key))}."
            )
        starts = np.searchsorted(self.row, rows)
        numbers = np.searchsorted(self.row, rows, side="right") - starts
        parts = _taken(self._parts(), ranges(starts, numbers))
        row = np.repeat(np.arange(len(rows)), numbers)
        return object.__new__(Answers)._fill(parts._replace(row=row, n_rows=len(rows)))

    def _one_row(self, row: int) -> Any:
        mine = self.span(slice(row, row + 1))
        labels = [self._labels(i) for i in range(mine.start, mine.stop)]
        if self.anonymous:
            return list(zip(labels, self.counts[mine].tolist(), strict=True))
        return dict(zip(self.annotators[self.annotator[mine]].tolist(), labels, strict=True))

    def _labels(self, answer: int) -> tuple[Any, ...]:
        words = [*self.classes.tolist(), NO_CLASS_TEXT]
        members = self.indices[self.indptr[answer] : self.indptr[answer + 1]]
        return tuple(words[j] for j in members.tolist())

    def span(self, rows: slice) -> slice:
        """Find the answers to consecutive rows.

        Parameters
        ----------
        rows : slice
            Consecutive rows.

        Returns
        -------
        slice
            Their answers are ``row[span]``, ``annotator[span]``, ``counts[span]``.

        Examples
        --------
        >>> Answers([["a", "b"], ["a", None], ["b", "b"]]).span(slice(1, 3))
        slice(2, 5, None)
        """
        start, stop, step = rows.indices(self.n_rows)
        if step != 1:
            raise IndexError(f"span() takes consecutive rows, not {rows}.")
        first, last = np.searchsorted(self.row, (start, max(start, stop))).tolist()
        return slice(first, last)

    def membership(self, rows: slice | None = None) -> sparse.csr_array:
        """Return which classes each answer includes.

        Parameters
        ----------
        rows : slice, optional
            Consecutive rows, whose answers are returned; all by default.

        Returns
        -------
        sparse float array of shape (m, c + 1)
            Entry (i, j) is 1 if answer i includes class j, else 0; the last column stands for
            none of the classes.
        """
        mine = self.span(slice(None) if rows is None else rows)
        indptr = self.indptr[mine.start : mine.stop + 1]
        indices = self.indices[indptr[0] : indptr[-1]].astype(np.int32)
        shape = (len(indptr) - 1, self.n_classes + 1)
        return sparse.csr_array((np.ones(len(indices)), indices, indptr - indptr[0]), shape)

    def votes(self) -> sparse.csr_array:
        """Count how many people included each class in their answer.

        Returns
        -------
        sparse int array of shape (n, c + 1)
            The last column stands for none of the classes.
        """
        return self._summed(np.repeat(self.counts, self.sizes))

    def _summed(self, weights: NDArray[Any]) -> sparse.csr_array:
        """Add one weight per entry of `indices`, by row and class."""
        place = (np.repeat(self.row, self.sizes), self.indices.astype(np.int64))
        found = sparse.csr_array((weights, place), (self.n_rows, self.n_classes + 1))
        found.sort_indices()
        return found

    def to_sets(self) -> CandidateSets:
        """Return the candidate sets: the union of all answers to a row.

        Returns
        -------
        CandidateSets
            A row to which nobody gave a class has all classes.
        """
        row = np.repeat(self.row, self.sizes)
        is_class = self.indices < self.n_classes
        unknown = np.setdiff1d(np.arange(self.n_rows), row[is_class])
        rows = np.concatenate([row[is_class], np.repeat(unknown, self.n_classes)])
        every = np.tile(np.arange(self.n_classes), len(unknown))
        members = np.concatenate([self.indices[is_class].astype(np.int64), every])
        ones = np.ones(len(rows), dtype=np.int8)
        union = sparse.csr_array((ones, (rows, members)), (self.n_rows, self.n_classes), dtype=bool)
        return CandidateSets(union, self.classes)

    def majority(self) -> NDArray[np.int64]:
        """Find the class with most votes; an answer of s labels gives each of them 1/s vote.

        Returns
        -------
        int array of shape (n,)
            Class indices; c for none of the classes, -1 where nobody answered. The first class
            wins a tie.
        """
        votes = self._summed(np.repeat(self.counts / self.sizes, self.sizes))
        result = np.full(self.n_rows, -1, dtype=np.int64)
        rows = np.flatnonzero(np.diff(votes.indptr))
        if not len(rows):
            return result
        most = np.maximum.reduceat(votes.data, votes.indptr[rows])
        wins = votes.data >= np.repeat(most, np.diff(votes.indptr)[rows]) - TIE
        ranked = np.where(wins, votes.indices, self.n_classes + 1)
        result[rows] = np.minimum.reduceat(ranked, votes.indptr[rows])
        return result

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        if copy is False:
            raise ValueError(
                "Answers store no dense matrix: converting them to an array makes a copy."
            )
        return self.votes().toarray().astype(np.int64 if dtype is None else dtype, copy=False)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Answers):
            return NotImplemented
        return all(
            np.array_equal(getattr(self, name), getattr(other, name)) for name in _Parts._fields
        )

    def __repr__(self) -> str:
        n, k = self.shape
        who = "" if self.anonymous else f"{_counted(k, 'annotator')}, "
        kind = "anonymous answer" if self.anonymous else "answer"
        given = _counted(self.n_answers, kind)
        return f"Answers({_counted(n, 'row')}, {who}{given}, {shown_classes(self.classes)})"


def _counted(n: int, what: str) -> str:
    return f"{n} {what}" if n == 1 else f"{n} {what}s"


def _read(
    reading: Reading,
    cells: NDArray[Any],
    row: NDArray[np.int64],
    annotator: NDArray[np.int64],
    names: NDArray[Any],
    n_rows: int,
) -> _Parts:
    """Read cells that are not missing, each the answer of an annotator to a row."""
    coded = reading.read(cells, lambda at: _place(row[at], names[annotator[at]]))
    return _Parts(
        classes=coded.classes,
        annotators=names,
        row=row[coded.kept],
        annotator=annotator[coded.kept],
        counts=np.ones(len(coded.kept), dtype=np.int64),
        indptr=coded.indptr,
        indices=coded.indices,
        n_rows=n_rows,
    )


def _place(row: Any, annotator: Any) -> str:
    """Name an answer in a message."""
    name = annotator.item() if isinstance(annotator, np.generic) else annotator
    return f"row {row}, annotator {name!r}"


# ---- counts


def _fit_width(shape: tuple[int, ...], classes: Any) -> NDArray[Any]:
    """Return the classes of the columns of a matrix of counts."""
    if len(shape) != 2 or not (shape[0] and shape[1]):
        raise InputError(
            f"counts of shape {tuple(shape)}: expected a matrix (n, c) with a column per class."
        )
    known = checked_classes(shape[1] if classes is None else classes)
    if len(known) != shape[1]:
        raise InputError(
            f"counts is a matrix of shape {tuple(shape)}, but there are {shown_classes(known)}: "
            "expected a column per class."
        )
    return known


def _as_column(values: Any, n: int) -> NDArray[Any]:
    array = np.asarray(values)
    if array.shape != (n,):
        raise InputError(f"none_counts of shape {array.shape}: expected one number per row, {n}.")
    return array[:, None]


def _whole_numbers(matrix: Any, what: str) -> sparse.csr_array:
    """Return counts as a sparse matrix without zeros; refuse what is not a count."""
    if matrix.dtype.kind not in "iuf":
        raise InputError(f"{what} of type {matrix.dtype}: expected whole numbers.")
    found = sparse.csr_array(matrix, copy=True)
    found.sum_duplicates()
    wrong = ~((found.data >= 0) & (found.data == np.floor(found.data)) & np.isfinite(found.data))
    if wrong.any():
        at = int(wrong.argmax())
        row = int(np.searchsorted(found.indptr, at, side="right")) - 1
        value = found.data[at].item()
        raise InputError(
            f"{what}, row {row}, column {found.indices[at]}: {value!r} is not a count; expected a "
            "whole number from 0."
        )
    found.eliminate_zeros()
    return found.astype(np.int64)


# ---- other rows, annotators or classes


def _taken(parts: _Parts, answers: NDArray[np.int64]) -> _Parts:
    """Take some answers, in this order."""
    sizes = np.diff(parts.indptr)[answers]
    return parts._replace(
        row=parts.row[answers],
        annotator=parts.annotator[answers],
        counts=parts.counts[answers],
        indptr=offsets(sizes),
        indices=parts.indices[ranges(parts.indptr[answers], sizes)],
    )


def _sorted(parts: _Parts) -> _Parts:
    """Sort answers by row and annotator; refuse two of one annotator to one row."""
    keys = parts.row * len(parts.annotators) + parts.annotator
    if (keys[1:] > keys[:-1]).all():
        return parts
    order = np.argsort(keys, kind="stable")
    twice = keys[order][1:] == keys[order][:-1]
    if twice.any():
        raise _second_answer(parts, *order[twice.argmax() + np.arange(2)].tolist())
    return _taken(parts, order)


def _second_answer(parts: _Parts, first: int, second: int) -> InputError:
    words = [*parts.classes.tolist(), NO_CLASS_TEXT]
    given = [
        tuple(words[j] for j in parts.indices[parts.indptr[at] : parts.indptr[at + 1]].tolist())
        for at in (first, second)
    ]
    place = _place(parts.row[first], parts.annotators[parts.annotator[first]])
    both = " and ".join(cut(repr(labels)) for labels in given)
    return InputError(
        f"{place}: two answers, {both}. An annotator has at most one answer to a row: drop one, "
        "or join them to one set."
    )


def _read_answers(answers: Answers, classes: Any, annotators: Any) -> _Parts:
    """The same answers, over another class list or with other names of annotators if given."""
    parts = answers._parts()
    if annotators is not None:
        parts = parts._replace(annotators=column_names(len(answers.annotators), annotators))
    if classes is None:
        return parts
    known = checked_classes(classes)
    find = class_finder(known)
    index = np.array([*map(find, answers.classes.tolist()), len(known)])
    used = np.unique(parts.indices)
    if (lost := used[index[used] < 0]).size:
        at = int(np.isin(parts.indices, lost).argmax())
        answer = int(np.searchsorted(parts.indptr, at, side="right")) - 1
        place = _place(parts.row[answer], parts.annotators[parts.annotator[answer]])
        label = answers.classes[parts.indices[at]]
        label = label.item() if isinstance(label, np.generic) else label
        raise unknown_label(place, label, known)
    ones = np.ones(len(parts.indices), dtype=bool)
    shape = (len(parts.row), len(known) + 1)
    renamed = sparse.csr_array((ones, index[parts.indices], parts.indptr), shape)
    renamed.sort_indices()
    return parts._replace(classes=known, indices=renamed.indices)
