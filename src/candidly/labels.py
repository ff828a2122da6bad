"""Labels and class lists: what `CandidateSets` and `Answers` share when they read their input."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from collections.abc import Set as AbstractSet
from typing import Any

import numpy as np
from numpy.typing import NDArray

from candidly.errors import InputError


def labels_of(row: Any, sep: str | None) -> Collection[Any]:
    """Return the labels that one item stands for."""
    if isinstance(row, list | tuple | set | frozenset):
        return row
    if isinstance(row, str):
        if sep is None:
            return [row] if row.strip() else []
        return [label for piece in row.split(sep) if (label := piece.strip())]
    if hasattr(row, "__array__"):
        return np.atleast_1d(np.asarray(row)).tolist()
    if isinstance(row, Iterable) and not isinstance(row, bytes | Mapping):
        return list(row)
    return [row]


def factorise(
    indptr: NDArray[Any], values: list[Any] | NDArray[Any], where: str = "row"
) -> tuple[list[Any], NDArray[np.int64]]:
    """Return the distinct labels, and which of them each value is. Refuse NaN, None and NA."""
    if isinstance(values, np.ndarray):
        distinct, inverse = np.unique(values, return_inverse=True)
        uniques = distinct.tolist()
    else:
        seen: dict[Any, int] = {}
        try:
            inverse = np.fromiter(
                (seen.setdefault(v, len(seen)) for v in values), dtype=np.int64, count=len(values)
            )
        except TypeError:
            at = next(i for i, value in enumerate(values) if not is_hashable(value))
            raise InputError(
                f"{where} {row_of(indptr, at)}: {values[at]!r} is not a label; expected a string "
                "or a number."
            ) from None
        uniques = [value.item() if isinstance(value, np.generic) else value for value in seen]
    if missing := [i for i, label in enumerate(uniques) if is_missing(label)]:
        row = row_of(indptr, first_of(inverse, missing))
        raise InputError(
            f"{where} {row}: missing label ({uniques[missing[0]]!r}). Fill it in, or drop it."
        )
    return uniques, inverse


def sorted_labels(labels: Iterable[Any]) -> NDArray[Any]:
    """Return the labels as an array, sorted; by type first if they cannot be compared."""
    try:
        return label_array(sorted(labels))
    except TypeError:
        return label_array(sorted(labels, key=_by_type))


def _by_type(label: Any) -> tuple[str, Any]:
    return type(label).__name__, label if isinstance(label, int | float | str) else repr(label)


def class_finder(classes: NDArray[Any]) -> Callable[[Any], int]:
    """Make a function from a label to its class index, or -1. True and False are not numbers."""
    known = {label: i for i, label in enumerate(classes.tolist())}
    holds_bools = any(isinstance(label, bool) for label in known)
    by_position = not holds_integers(classes)

    def find(label: Any) -> int:
        if isinstance(label, bool) and not holds_bools:
            return -1
        if isinstance(label, int) and by_position:
            return label if 0 <= label < len(known) else -1
        return known.get(label, -1)

    return find


def holds_integers(classes: NDArray[Any]) -> bool:
    """Say whether a class is a number, so that integers are labels and not positions."""
    return any(isinstance(label, int) for label in classes.tolist())


def class_list(classes: Any) -> NDArray[Any]:
    """Make the array of class labels, from a list of them or from their number."""
    if isinstance(classes, int | np.integer) and not isinstance(classes, bool):
        if classes < 1:
            raise InputError(f"classes={classes}: expected at least one class.")
        return np.arange(classes)
    return distinct_labels(classes, "classes")


def distinct_labels(values: Any, what: str) -> NDArray[Any]:
    """Make an array of labels; refuse an empty list, a missing label, and one that occurs twice."""
    values = listed(values, what)
    labels, inverse = factorise(np.arange(len(values) + 1), values, f"{what}, entry")
    if not labels:
        raise InputError(
            f"{what} is empty: expected at least one label; leave it out to take those that occur."
        )
    if len(labels) < len(values):
        at = int(np.flatnonzero(np.bincount(inverse) > 1)[0])
        first, second = np.flatnonzero(inverse == at)[:2].tolist()
        raise InputError(
            f"{what}: duplicate {labels[at]!r} (entries {first} and {second}): name each one once."
        )
    return label_array([labels[i] for i in inverse])


def listed(values: Any, name: str) -> list[Any] | NDArray[Any]:
    """Return an ordered collection as a list; one-dimensional arrays of numbers stay arrays."""
    if hasattr(values, "__array__"):
        array = np.asarray(values)
        if array.ndim != 1:
            raise InputError(f"{name} of shape {array.shape}: expected one dimension.")
        return array if array.dtype.kind in "biuf" else array.tolist()
    if isinstance(values, str | bytes | Mapping | AbstractSet) or not isinstance(values, Iterable):
        kind = type(values).__name__
        raise InputError(
            f"{name} is of type {kind}, {cut(repr(values))}: expected a list or an array, in a "
            "fixed order."
        )
    return list(values)


def label_array(labels: list[Any]) -> NDArray[Any]:
    """Make an array of labels: of str, int, bool or float if all are alike, else of objects.

    Parameters
    ----------
    labels : list
        A float that is a whole number, such as 3.0, counts as an int.

    Returns
    -------
    array of shape (len(labels),)

    Examples
    --------
    >>> label_array([1, 2.0])
    array([1, 2])
    """
    labels = [int(x) if isinstance(x, float) and x.is_integer() else x for x in labels]
    alike = len({type(x) for x in labels}) == 1 and isinstance(labels[0], str | int | float)
    array = np.array(labels) if alike else np.zeros(0)
    if array.tolist() == labels:
        return array
    return np.fromiter(labels, dtype=object, count=len(labels))


def index_dtype(c: int) -> type[np.generic]:
    """Return the smallest type that holds 0..c-1."""
    return np.uint8 if c <= 2**8 else np.uint16 if c <= 2**16 else np.int32


def row_of(indptr: NDArray[Any], at: int) -> int:
    """Find the row that holds the entry number `at`."""
    return int(np.searchsorted(indptr, at, side="right")) - 1


def first_of(inverse: NDArray[Any], wanted: Any) -> int:
    """Find the first place of one of the wanted labels."""
    return int(np.isin(inverse, wanted).argmax())


def is_hashable(value: Any) -> bool:
    """Say whether a value can be a label."""
    try:
        hash(value)
    except TypeError:
        return False
    return True


def is_missing(label: Any) -> bool:
    """Say whether a label is None, NaN, NaT, or pandas' NA (which answers no comparison)."""
    return label is None or type(label).__name__ == "NAType" or bool(label != label)  # noqa: PLR0124


def cut(text: str, width: int = 80) -> str:
    """Shorten a text for a message."""
    return text if len(text) <= width else text[: width - 1] + "…"


def shown_classes(classes: NDArray[Any]) -> str:
    """Show a class list in a few words."""
    some = [repr(label) for label in classes[:5].tolist()] + (["…"] if len(classes) > 5 else [])
    return f"{len(classes)} class{'es' if len(classes) > 1 else ''} [{cut(', '.join(some), 120)}]"
