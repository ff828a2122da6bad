"""Cells of a table of answers: which labels each stands for, and whose answer to what it is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from candidly.errors import InputError
from candidly.labels import (
    class_finder,
    class_list,
    cut,
    distinct_labels,
    holds_integers,
    index_dtype,
    is_hashable,
    is_missing,
    labels_of,
    listed,
    shown_classes,
    sorted_labels,
)

# How cells and files of text say that an example belongs to none of the classes.
NO_CLASS_TEXT = "none of the classes"
# Names a cell, counting from 0, in a message.
Place = Callable[[int], str]


class Not:
    """An answer that excludes classes: every other class remains possible.

    Parameters
    ----------
    *labels
        The excluded labels, at least one.

    Examples
    --------
    >>> from candidly import Answers
    >>> Answers([["cat", Not("dog")]], classes=["bird", "cat", "dog"])[0]
    {0: ('cat',), 1: ('bird', 'cat')}
    """

    __slots__ = ("labels",)

    def __init__(self, *labels: Any) -> None:
        if not labels:
            raise InputError("Not() excludes nothing: name at least one label, as in Not('cat').")
        self.labels = labels

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Not) and set(self.labels) == set(other.labels)

    def __hash__(self) -> int:
        return hash((Not, frozenset(self.labels)))

    def __repr__(self) -> str:
        return f"Not({', '.join(map(repr, self.labels))})"


class Coded(NamedTuple):
    """The cells that hold an answer, as class indices in CSR form; c stands for no class."""

    classes: NDArray[Any]
    kept: NDArray[np.int64]
    indptr: NDArray[np.int64]
    indices: NDArray[Any]


class Parsed(NamedTuple):
    """What one distinct cell says: labels, which are the excluded ones if `excludes`."""

    cell: Any
    labels: list[Any]
    excludes: bool
    place: Callable[[], str]


class Reading:
    """How cells are read: the class list, if given, and the options of `Answers`."""

    def __init__(self, classes: Any, none: Any, complement: bool, sep: str | None) -> None:
        if sep is not None and not (isinstance(sep, str) and sep):
            raise InputError(
                f"sep={sep!r}: expected a non-empty string such as '|', or None to keep strings "
                "whole."
            )
        self.none = none
        self.classes = None if classes is None else checked_classes(classes, none)
        self.complement = complement
        self.sep = sep
        known = [] if self.classes is None else self.classes.tolist()
        self.has_negative = any(_is_negative(label) for label in known)
        self.left_out = False  # a negative number

    def given(self, cells: NDArray[Any]) -> NDArray[np.bool_]:
        """Mark the cells that are not missing, and no negative numbers."""
        if cells.dtype.kind == "O":
            import pandas as pd

            return ~pd.isna(cells)
        known = cells == cells  # noqa: PLR0124
        if self.has_negative or cells.dtype.kind == "u":
            return known
        is_none = cells == self.none if _is_negative(self.none) else np.False_
        found = (cells >= 0) | is_none
        self.left_out |= bool((known & ~found).any())
        return found

    def read(self, cells: NDArray[Any], place: Place) -> Coded:
        """Read cells that are not missing; each distinct one is parsed once."""
        distinct, inverse = distinct_cells(cells, place)
        parsed = [
            self._parse(cell, lambda i=i: place(int((inverse == i).argmax())))  # type: ignore[misc]
            for i, cell in enumerate(distinct)
        ]
        classes = self._occurring(parsed) if self.classes is None else self.classes
        find = class_finder(classes)
        coded = [self._code(entry, find, classes) for entry in parsed]
        sizes = np.array([len(index) for index in coded], dtype=np.int64)
        flat = np.array([j for index in coded for j in index], dtype=index_dtype(len(classes) + 1))
        kept = np.flatnonzero(sizes[inverse])
        of = inverse[kept]
        starts = np.cumsum(sizes) - sizes
        return Coded(classes, kept, offsets(sizes[of]), flat[ranges(starts[of], sizes[of])])

    def _parse(self, cell: Any, place: Callable[[], str]) -> Parsed:
        """Find the labels in a cell."""
        if _is_negative(cell) and not self.has_negative and cell != self.none:
            self.left_out = True
            return Parsed(cell, [], False, place)
        excludes = isinstance(cell, Not)
        found = cell.labels if isinstance(cell, Not) else labels_of(cell, self.sep)
        labels = [_plain(label) for label in found]
        for label in labels:
            if is_missing(label) or (isinstance(label, float) and np.isinf(label)):
                raise InputError(
                    f"{place()}: {label!r} is not a label. Fill it in, or leave it out of the set."
                )
        return Parsed(cell, labels, excludes or self.complement, place)

    def _occurring(self, parsed: list[Parsed]) -> NDArray[Any]:
        """Return the labels that occur, sorted."""
        found: dict[Any, Parsed] = {}
        for entry in parsed:
            new = (label for label in entry.labels if not _says_none(label, self.none))
            found |= {label: entry for label in new if label not in found}
        for label, entry in found.items():
            if isinstance(label, bool):
                raise InputError(
                    f"{entry.place()}: {label} is not read as a label; pass classes=[False, True] "
                    "if it is one. For a 0/1 matrix of candidates use CandidateSets."
                )
        if not found:
            raise InputError("no answer names a class: pass `classes`.")
        if len(found) == 1 and self.left_out:
            raise InputError(
                f"the only class would be {next(iter(found))!r}, since a negative number means no "
                "answer. Pass `classes`, with the negative numbers in it if they are labels."
            )
        return sorted_labels(found)

    def _code(self, entry: Parsed, find: Callable[[Any], int], classes: NDArray[Any]) -> list[int]:
        """Return the class indices of a cell, sorted; a cell without labels has none."""
        c = len(classes)
        index = set()
        for label in entry.labels:
            index.add(c if _says_none(label, self.none) else find(label))
            if -1 in index:
                raise unknown_label(entry.place(), label, classes)
        if not entry.excludes or not index:
            return sorted(index)
        rest = [j for j in range(c) if j not in index]
        if not rest:
            raise InputError(
                f"{entry.place()}: {cut(repr(entry.cell))} excludes all {shown_classes(classes)}. "
                f"If the example belongs to no class, answer {NO_CLASS_TEXT!r}."
            )
        return rest


def _says_none(label: Any, none: Any) -> bool:
    return not isinstance(label, bool) and label in (none, NO_CLASS_TEXT)


def _is_negative(label: Any) -> bool:
    return isinstance(label, int | float | np.number) and bool(label < 0)


def _plain(label: Any) -> Any:
    """Return a label as a plain value; whole numbers as int."""
    label = label.item() if isinstance(label, np.generic) else label
    return int(label) if isinstance(label, float) and label.is_integer() else label


def checked_classes(classes: Any, none: Any = NO_CLASS_TEXT) -> NDArray[Any]:
    """Make the array of classes; refuse a class whose name means that there is none."""
    known = class_list(classes)
    for at, label in enumerate(known.tolist()):
        if _says_none(label, none):
            raise InputError(
                f"classes, entry {at}: {label!r} is the answer that no class fits, not a class. "
                "Leave it out of the class list."
            )
    return known


def unknown_label(place: str, label: Any, classes: NDArray[Any]) -> InputError:
    """Make the error for a label that is not in the class list."""
    if isinstance(label, int) and not holds_integers(classes):
        return InputError(
            f"{place}: position {label} is outside 0..{len(classes) - 1}. Integers are positions "
            f"here, because the class list holds none: {shown_classes(classes)}."
        )
    return InputError(
        f"{place}: label {label!r} is not among the {shown_classes(classes)}. Correct it, convert "
        "its type, or add it to `classes`. (Strings are split at `sep`; sep=None keeps them whole.)"
    )


def distinct_cells(cells: NDArray[Any], place: Place) -> tuple[list[Any], NDArray[np.int64]]:
    """Return the distinct cells, and which of them each cell is."""
    if cells.dtype.kind != "O":
        values, inverse = np.unique(cells, return_inverse=True)
        return values.tolist(), inverse
    values = cells.tolist()
    seen: dict[Any, int] = {}
    try:
        numbers = (seen.setdefault(_key(cell), len(seen)) for cell in values)
        inverse = np.fromiter(numbers, dtype=np.int64, count=len(values))
    except TypeError:
        at = next(i for i, cell in enumerate(values) if not is_hashable(_key(cell)))
        raise InputError(
            f"{place(at)}: {cut(repr(values[at]))} is not an answer; expected a label (a string or "
            "a number), a collection of labels, Not(...), or None."
        ) from None
    return list(seen), inverse


def _key(cell: Any) -> Any:
    """Return a hashable value that stands for a cell."""
    if isinstance(cell, str | Not):
        return cell
    if isinstance(cell, list):
        return tuple(cell)
    if isinstance(cell, set):
        return frozenset(cell)
    if hasattr(cell, "__array__"):
        array = np.asarray(cell)
        return tuple(array.tolist()) if array.ndim else array.item()
    return cell


def ranges(starts: NDArray[Any], sizes: NDArray[Any]) -> NDArray[np.int64]:
    """Concatenate the ranges from each start, of each size."""
    ends = np.cumsum(sizes)
    total = int(ends[-1]) if len(ends) else 0
    return np.repeat(starts - (ends - sizes), sizes) + np.arange(total)


def offsets(sizes: NDArray[Any]) -> NDArray[np.int64]:
    """Return where each part of a concatenation begins, and where the last one ends."""
    return np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)


# ---- tables, names and numbers


def as_table(table: Any) -> tuple[NDArray[Any], Any, Any]:
    """Return the cells (n, k) as numbers or objects, which are masked, and names of columns."""
    columns = list(table.columns) if hasattr(table, "columns") else None
    is_masked = isinstance(table, np.ma.MaskedArray)
    mask = np.ma.getmaskarray(table) if is_masked else np.False_
    cells = np.asarray(table) if hasattr(table, "__array__") else _nested(table)
    if cells.ndim != 2 or not cells.size:
        raise InputError(
            f"table of shape {cells.shape}: expected one row per example and one column per "
            "annotator. For one candidate set per row use CandidateSets."
        )
    return as_cells(cells), mask, columns


def as_cells(values: Any) -> NDArray[Any]:
    """Return cells as an array of numbers, or of objects."""
    if not isinstance(values, np.ndarray):
        return np.fromiter(values, dtype=object, count=len(values))
    return values if values.dtype.kind in "iuf" else values.astype(object)


def _nested(table: Any) -> NDArray[Any]:
    """Turn a list of lists into an array of objects."""
    rows = listed(table, "table")
    for i, row in enumerate(rows):
        if not isinstance(row, list | tuple | np.ndarray):
            raise InputError(
                f"row {i} is {cut(repr(row))}: expected a list with one cell per annotator. For "
                "one candidate set per row use CandidateSets."
            )
        if len(row) != len(rows[0]):
            raise InputError(
                f"row {i} has {len(row)} cells, but row 0 has {len(rows[0])}: expected one per "
                "annotator, None where there is no answer."
            )
    k = len(rows[0]) if len(rows) else 0
    cells = (cell for row in rows for cell in row)
    return np.fromiter(cells, dtype=object, count=len(rows) * k).reshape(len(rows), k)


def column_names(k: int, annotators: Any) -> NDArray[Any]:
    """Return the names of k annotators; numbers by default."""
    if annotators is None:
        return np.arange(k)
    names = distinct_labels(annotators, "annotators")
    if len(names) != k:
        raise InputError(
            f"annotators has {len(names)} names, but the table has {k} columns: expected one name "
            "per column."
        )
    return names


def row_numbers(
    rows: Any, n: int | None, m: int, what: str = "row"
) -> tuple[NDArray[np.int64], int]:
    """Check the row (or the annotator) of each of m answers; return it, and the number of rows."""
    numbers = np.asarray(rows)
    if numbers.shape != (m,) or (m and numbers.dtype.kind not in "iu"):
        raise InputError(
            f"{what}s of type {numbers.dtype} and shape {numbers.shape}: expected {m} whole "
            f"numbers from 0, one {what} per answer."
        )
    n = int(numbers.max(initial=-1)) + 1 if n is None else n
    if n < 1:
        raise InputError(f"there are {n} {what}s: expected at least one.")
    if (wrong := (numbers < 0) | (numbers >= n)).any():
        at = int(wrong.argmax())
        raise InputError(
            f"answer {at}: {what} {numbers[at]} is outside 0..{n - 1}. {what.capitalize()}s count "
            "from 0."
        )
    return numbers.astype(np.int64), n


def annotator_numbers(
    annotators: Any, names: Any, m: int
) -> tuple[NDArray[np.int64], NDArray[Any]]:
    """Return the number of the annotator of each of m answers, and the names."""
    values = as_cells(listed(annotators, "annotators"))
    if len(values) != m:
        raise InputError(
            f"annotators has {len(values)} entries, but labels has {m}: expected one annotator "
            "per answer."
        )
    distinct, inverse = distinct_cells(values, lambda at: f"annotators, entry {at}")
    if missing := [i for i, name in enumerate(distinct) if is_missing(name)]:
        at = int((inverse == missing[0]).argmax())
        raise InputError(
            f"annotators, entry {at}: {distinct[missing[0]]!r} is not a name. Fill it in, or drop "
            "the answer."
        )
    distinct = [_plain(name) for name in distinct]
    if names is None and not distinct:
        raise InputError("there are no answers: pass `names`, a list of the annotators.")
    known = sorted_labels(distinct) if names is None else distinct_labels(names, "names")
    number = {name: i for i, name in enumerate(known.tolist())}
    if unknown := [name for name in distinct if name not in number]:
        raise InputError(
            f"annotator {unknown[0]!r} is not among the {len(known)} names. Add it to `names`."
        )
    return np.array([number[name] for name in distinct], dtype=np.int64)[inverse], known
