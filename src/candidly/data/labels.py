"""Labels as they stand in a column: cells of text, lists, or numbers; read once for each distinct value."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from candidly.data.dataset import NO_CLASS_TEXT, UNKNOWN
from candidly.data.scan import is_string
from candidly.errors import InputError
from candidly.sets import CandidateSets, label_array

if TYPE_CHECKING:
    import pyarrow as pa

NUMBER = re.compile(r"-?(0|[1-9]\d{0,18})")
WIDEST = 100_000  # characters of a cell that are looked at
Where = Callable[[int], str]  # from a row, counting from 0, to words


class LabelColumn:
    """Collects the labels of a column, batch by batch, as numbers of a `pool` that columns may share."""

    def __init__(
        self, name: str, sep: str | None, where: Where, pool: dict[Any, int] | None = None
    ) -> None:
        self.name, self.sep, self.where = name, sep, where
        self.pool: dict[Any, int] = {} if pool is None else pool
        self.is_text = False
        self.rows = 0
        self._sizes: list[NDArray[Any]] = []
        self._codes: list[NDArray[Any]] = []

    def add(self, column: pa.Array) -> None:
        """The next rows."""
        import pyarrow.compute as pc

        if listed := is_list(column.type):
            counts = (
                pc.list_value_length(column)
                .fill_null(0)
                .to_numpy(zero_copy_only=False)
                .astype(np.int64)
            )
            values = column.flatten()
        else:
            counts = column.is_valid().to_numpy(zero_copy_only=False).astype(np.int64)
            values = column.drop_null()
            self.is_text |= is_text(column.type)
        if values.null_count:
            raise self._error(
                counts,
                int(values.is_null().to_numpy(zero_copy_only=False).argmax()),
                "a missing label",
            )
        encoded = self._encode(values)
        sizes, codes = self._expand(
            encoded, counts, as_list if listed or not is_text(column.type) else self._split
        )
        total = np.concatenate([[0], np.cumsum(sizes)])
        ends = np.cumsum(counts)
        self._sizes.append(total[ends] - total[ends - counts])
        self._codes.append(codes)
        self.rows += len(column)

    def _encode(self, values: pa.Array) -> pa.DictionaryArray:
        import pyarrow as pa

        try:
            return values if pa.types.is_dictionary(values.type) else values.dictionary_encode()
        except pa.ArrowException:
            place = f"{self.where(self.rows)}, column {self.name!r}"
            raise InputError(
                f"{place}: holds {values.type}; expected labels: names or whole numbers."
            ) from None

    def _expand(
        self, encoded: pa.DictionaryArray, counts: NDArray[Any], parse: Callable[[Any], list[Any]]
    ) -> tuple[NDArray[Any], NDArray[Any]]:
        """How many labels each value stands for, and all their codes, one after the other."""
        index = encoded.indices.to_numpy(zero_copy_only=False)
        used = np.unique(index)
        parsed: list[list[int]] = [[] for _ in range(len(encoded.dictionary))]
        for i in used.tolist():
            try:
                labels = parse(encoded.dictionary[i].as_py())
            except ValueError as error:
                raise self._error(counts, int((index == i).argmax()), str(error)) from None
            parsed[i] = [self.pool.setdefault(label, len(self.pool)) for label in labels]
        sizes = np.array([len(labels) for labels in parsed], dtype=np.int64)
        flat = np.array([code for labels in parsed for code in labels], dtype=np.int32)
        if len(flat) == len(parsed) and (sizes == 1).all():
            return np.ones(len(index), dtype=np.int64), flat[index]
        start = np.concatenate([[0], np.cumsum(sizes)])[:-1]
        taken = sizes[index]
        ends = np.cumsum(taken)
        return taken, flat[np.repeat(start[index] - (ends - taken), taken) + np.arange(taken.sum())]

    def _split(self, cell: str) -> list[Any]:
        return split_cell(cell, self.sep)

    def _error(self, counts: NDArray[Any], at: int, what: str) -> InputError:
        row = self.rows + int(np.searchsorted(np.cumsum(counts), at, side="right"))
        return InputError(f"{self.where(row)}, column {self.name!r}: {what}.")

    def finish(self) -> tuple[NDArray[np.int64], NDArray[Any]]:
        """(indptr, codes): the labels of row i are the codes from indptr[i] to indptr[i + 1]."""
        sizes = np.concatenate([np.zeros(1, dtype=np.int64), *self._sizes])
        codes = np.concatenate([np.zeros(0, dtype=np.int32), *self._codes])
        self._codes.clear()
        return np.cumsum(sizes), codes


def is_list(kind: pa.DataType) -> bool:
    from pyarrow import types

    return bool(types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind))


def is_text(kind: pa.DataType) -> bool:
    from pyarrow import types

    return is_string(kind.value_type if types.is_dictionary(kind) else kind)


def as_list(value: Any) -> list[Any]:
    """One label of a list, or of a column of numbers."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise ValueError(f"{value!r} is not a label; expected a name or a whole number")
    if isinstance(value, int) and not _fits(value):
        raise ValueError(f"the label {value} does not fit into 64 bits; write it as text")
    if isinstance(value, str) and not value.strip():
        raise ValueError(f"a blank label ({value!r}); expected a name")
    return [value]


def split_cell(cell: str, sep: str | None) -> list[str]:
    """The labels of a cell of text: "cat|dog", a JSON array, or Label Studio's {"choices": [...]}."""
    text = cell.strip()
    if (text[:1], text[-1:]) in (("[", "]"), ("{", "}")):
        return [str(label) for item in _array(text) for label in as_list(item)]
    pieces = [text] if sep is None else text.split(sep)
    return [label for piece in pieces if (label := piece.strip())]


def _array(text: str) -> list[Any]:
    """A JSON array or {"choices": [...]}; Python's way to write a list of strings is understood too."""
    if len(text) > WIDEST:
        raise ValueError(
            f"a cell of {len(text)} characters, {text[:40]!r}...; expected a short list of labels"
        )
    for read in (json.loads, ast.literal_eval):
        try:
            found = read(text)
        except (ValueError, SyntaxError, RecursionError, MemoryError):
            continue
        found = found.get("choices") if isinstance(found, dict) else found
        if isinstance(found, list):
            return found
    raise ValueError(
        f'{_cut(text)} begins like a list but is none; expected a JSON array such as ["cat", "dog"]'
    )


def _cut(text: str) -> str:
    return repr(text) if len(text) <= 60 else f"{text[:57]!r}..."


# ---- class lists


def read_classes(given: str | Path | Sequence[Any]) -> list[Any]:
    """The class list: a sequence as it is; or the file of this name, one class per line, or a JSON array."""
    if not isinstance(given, str | Path):
        return list(given)
    try:
        text = Path(given).read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(
            f"the class list {given} cannot be read ({error}): expected UTF-8 text, one class per line."
        ) from None
    if not text.lstrip().startswith("["):
        found: Any = [line.strip() for line in text.splitlines() if line.strip()]
    else:
        try:
            found = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise InputError(
                f"the class list {given} is not JSON ({error}): expected an array of names."
            ) from None
    if not found:
        raise InputError(f"the class list {given} is empty: expected at least one name.")
    repeated = (
        {str(name) for name in found if found.count(name) > 1} if len(found) < 1000 else set()
    )
    if repeated:
        raise InputError(
            f"the class list {given} names {sorted(repeated)[0]!r} twice; name each class once."
        )
    return found


def settle(
    pool: dict[Any, int], truth: dict[Any, int], classes: Sequence[Any] | None, is_text: bool
) -> tuple[list[Any], list[Any], NDArray[Any]]:
    """(labels of the pool, labels of the truth, classes): text that is nothing but whole numbers becomes numbers.

    Without a class list, it is the candidates that occur, sorted: the truth decides nothing that is learnt.
    """
    labels, true = list(pool), list(truth)
    if is_text and all(_is_number(label) or says_no_class(label) for label in [*labels, *true]):
        labels, true = (
            [int(label) if _is_number(label) else label for label in part]
            for part in (labels, true)
        )
    if classes is not None:
        if all(isinstance(label, int) for label in labels) and all(map(_is_number, classes)):
            classes = [int(label) for label in classes]
        return labels, true, label_array(list(classes))
    return labels, true, label_array(sorted(set(labels), key=lambda x: (isinstance(x, str), x)))


def says_no_class(label: Any) -> bool:
    """Does this value of a truth column, if it is no class, say that the example belongs to none of them?"""
    return " ".join(str(label).casefold().split()) in (NO_CLASS_TEXT, "-1")


def _is_number(label: Any) -> bool:
    """Is this a whole number, or text that says one, of 64 bits?"""
    return (isinstance(label, int) or NUMBER.fullmatch(str(label)) is not None) and _fits(
        int(label)
    )


def _fits(number: int) -> bool:
    return -(2**63) <= number < 2**63


def find(labels: Sequence[Any], classes: NDArray[Any]) -> NDArray[np.int64]:
    """The class index of each label, -1 for none; whole numbers are positions if no class is a number."""
    known = {label: i for i, label in enumerate(classes.tolist())}
    if not any(isinstance(label, int) for label in known):
        known |= {i: i for i in range(len(classes))}
    return np.array([known.get(label, -1) for label in labels], dtype=np.int64)


def indices(
    labels: list[Any], codes: NDArray[Any], classes: NDArray[Any], row_of: Callable[[int], str]
) -> NDArray[Any]:
    """Codes of `labels` into class indices; `row_of` says where an entry stands."""
    index = find(labels, classes)
    if len(index) and (unknown := (index < 0)[codes]).any():
        at = int(unknown.argmax())
        shown = [str(name) for name in classes[:6].tolist()]
        raise InputError(
            f"{row_of(at)}: label {labels[codes[at]]!r} is not among the {len(classes)} classes "
            f"({', '.join(shown)}{', ...' if len(classes) > 6 else ''}). Correct it, or add it to the class list."
        )
    return index.astype(np.int32)[codes]


def unproposed(labels: list[Any], classes: NDArray[Any]) -> list[Any]:
    """True labels that are neither classes nor the word for none of them."""
    index = find(labels, classes)
    return [
        label for label, i in zip(labels, index, strict=True) if i < 0 and not says_no_class(label)
    ]


def true_indices(
    labels: list[Any],
    indptr: NDArray[Any],
    codes: NDArray[Any],
    classes: NDArray[Any],
    where: Where,
    strict: bool,
) -> NDArray[np.int64]:
    """The truth, one class index a row, or NO_CLASS, or UNKNOWN for a row that says nothing.

    strict: a label that is no class is an error; otherwise it is NO_CLASS, like all that nobody proposed.
    """
    sizes = np.diff(indptr)
    if (sizes > 1).any():
        row = int((sizes > 1).argmax())
        raise InputError(f"{where(row)}: {sizes[row]} true labels; expected one, or an empty cell.")
    rows, index = (
        np.flatnonzero(sizes),
        find(labels, classes),
    )  # NO_CLASS is what `find` gives for no class
    if strict and (wrong := unproposed(labels, classes)):
        at = np.array([label in wrong for label in labels])[codes]
        first = int(at.argmax())
        raise InputError(
            f"{where(int(rows[first]))}: the true label {labels[codes[first]]!r} is not among the {len(classes)} "
            f"classes. Add it to the class list, or write {NO_CLASS_TEXT!r} if the example belongs to none."
        )
    truth = np.full(len(sizes), UNKNOWN, dtype=np.int64)
    truth[rows] = index[codes]
    return truth


def to_sets(
    indptr: NDArray[Any], index: NDArray[Any], classes: NDArray[Any], where: Where
) -> CandidateSets:
    """Candidate sets from class indices; a row without any is refused."""
    sizes = np.diff(indptr)
    if not sizes.all():
        row, count = int(sizes.argmin()), int(np.count_nonzero(sizes == 0))
        others = f" ({count} such rows)" if count > 1 else ""
        raise InputError(
            f"{where(row)}: the candidate set is empty{others}. Every example needs a candidate: fill it in, drop the "
            "row, or give it all classes if nothing is known."
        )
    matrix = sparse.csr_array(
        (np.ones(len(index), dtype=bool), index, indptr), shape=(len(sizes), len(classes))
    )
    matrix.sum_duplicates()
    return CandidateSets(matrix, classes)
