"""Labels in a column: cells of text, lists, or numbers; each distinct value is read once."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from candidly.cells import NO_CLASS_TEXT
from candidly.data.columns.scan import is_list, is_text
from candidly.data.dataset import UNKNOWN
from candidly.errors import InputError
from candidly.labels import label_array
from candidly.sets import CandidateSets

if TYPE_CHECKING:
    import pyarrow as pa

WHOLE_NUMBER = re.compile(r"-?(0|[1-9]\d{0,18})")
# Longer cells that look like lists are refused unparsed.
MAX_LIST_CHARACTERS = 100_000
SHOWN_CHARACTERS = 60
SHOWN_CLASSES = 6
# Names a row, counting from 0, in a message.
Where = Callable[[int], str]


class LabelColumn:
    """Collects the labels of a column, batch by batch, as codes.

    Parameters
    ----------
    name : str
        The column.
    sep : str or None
        Separator between candidates in a cell of text; None if a cell is one label.
    where : callable
        Names a row in messages.
    pool : dict, optional
        The code of each label so far; several columns may share it.
    """

    def __init__(
        self, name: str, sep: str | None, where: Where, pool: dict[Any, int] | None = None
    ) -> None:
        self.name = name
        self.sep = sep
        self.where = where
        self.pool: dict[Any, int] = {} if pool is None else pool
        self.is_text = False
        self.rows = 0
        self._sizes: list[NDArray[Any]] = []
        self._codes: list[NDArray[Any]] = []

    def add(self, column: pa.Array) -> None:
        """Add the next rows."""
        import pyarrow.compute as pc

        parse = self._split if is_text(column.type) else as_label
        if is_list(column.type):
            lengths = pc.list_value_length(column).fill_null(0)
            counts = lengths.to_numpy(zero_copy_only=False).astype(np.int64)
            values = column.flatten()
        else:
            counts = column.is_valid().to_numpy(zero_copy_only=False).astype(np.int64)
            values = column.drop_null()
            self.is_text |= is_text(column.type)
        if values.null_count:
            at = int(values.is_null().to_numpy(zero_copy_only=False).argmax())
            raise self._error(counts, at, "a missing label")
        sizes, codes = self._expand(self._encode(values), counts, parse)
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
        """Return how many labels each value holds, and the codes of all of them in one array."""
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
        """Return (indptr, codes): those of row i are ``codes[indptr[i]:indptr[i + 1]]``."""
        sizes = np.concatenate([np.zeros(1, dtype=np.int64), *self._sizes])
        codes = np.concatenate([np.zeros(0, dtype=np.int32), *self._codes])
        self._codes.clear()
        return np.cumsum(sizes), codes


def as_label(value: Any) -> list[Any]:
    """Check one label of a list, or of a column of numbers; return it in a list."""
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
    """Split a cell of text into labels.

    Parameters
    ----------
    cell : str
        "cat|dog", a JSON array, or Label Studio's {"choices": [...]}.
    sep : str or None
        Separator between candidates; None if the cell is one label.

    Returns
    -------
    list of str

    Raises
    ------
    ValueError
        If the cell looks like a list but is not one.

    Examples
    --------
    >>> split_cell("cat | dog", "|")
    ['cat', 'dog']
    >>> split_cell('["big dog", "cat"]', "|")
    ['big dog', 'cat']
    """
    text = cell.strip()
    if (text[:1], text[-1:]) in (("[", "]"), ("{", "}")):
        return [str(label) for item in _parse_list(text) for label in as_label(item)]
    pieces = [text] if sep is None else text.split(sep)
    return [label for piece in pieces if (label := piece.strip())]


def _parse_list(text: str) -> list[Any]:
    """Parse a JSON array or {"choices": [...]}, or a list of strings as Python writes it."""
    if len(text) > MAX_LIST_CHARACTERS:
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
        f"{_shown(text)} looks like a list but is not one; expected a JSON array such as "
        '["cat", "dog"]'
    )


def _shown(text: str) -> str:
    return repr(text) if len(text) <= SHOWN_CHARACTERS else f"{text[: SHOWN_CHARACTERS - 3]!r}..."


# ---- class lists


def read_classes(given: str | Path | Sequence[Any]) -> list[Any]:
    """Read a class list.

    Parameters
    ----------
    given : str, Path or sequence
        A file with one class per line, or a JSON array; or the classes themselves.

    Returns
    -------
    list
        The classes, in order.

    Raises
    ------
    InputError
        If the file cannot be read, is empty, or names a class twice.
    """
    if not isinstance(given, str | Path):
        return list(given)
    try:
        text = Path(given).read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(
            f"the class list {given} cannot be read ({error}): expected UTF-8 text, one class per "
            "line."
        ) from None
    found = _parse_classes(text, given)
    if not found:
        raise InputError(f"the class list {given} is empty: expected at least one name.")
    if len(found) < 1000:
        repeated = sorted({str(name) for name in found if found.count(name) > 1})
        if repeated:
            raise InputError(
                f"the class list {given} names {repeated[0]!r} twice; name each class once."
            )
    return found


def _parse_classes(text: str, given: str | Path) -> list[Any]:
    if not text.lstrip().startswith("["):
        return [line.strip() for line in text.splitlines() if line.strip()]
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(
            f"the class list {given} is not JSON ({error}): expected an array of names."
        ) from None


def resolve_classes(
    pool: dict[Any, int],
    truth: dict[Any, int],
    classes: Sequence[Any] | None,
    is_text: bool,
    has_answers: bool = False,
) -> tuple[list[Any], list[Any], NDArray[Any]]:
    """Decide whether labels are numbers, and which classes there are.

    Text that holds nothing but whole numbers becomes numbers. Without a class list, the classes are
    the candidates that occur, sorted: the truth must not influence what is learnt.

    Parameters
    ----------
    pool, truth : dict
        Candidates and true labels, by code.
    classes : sequence, optional
        The class list.
    is_text : bool
        Whether the labels were read from text.
    has_answers : bool
        Whether the labels are answers of annotators, who may say "none of the classes".

    Returns
    -------
    labels, true : list
        Candidates and true labels, in the order of their codes.
    classes : ndarray
        The class list.
    """
    labels = list(pool)
    true = list(truth)
    if is_text and all(_is_number(label) or says_no_class(label) for label in [*labels, *true]):
        labels = as_numbers(labels)
        true = as_numbers(true)
    if classes is None:
        found = {label for label in labels if not (has_answers and is_none_answer(label))}
        ordered = sorted(found, key=lambda label: (isinstance(label, str), label))
        return labels, true, label_array(ordered)
    if all(isinstance(label, int) for label in labels) and all(map(_is_number, classes)):
        classes = [int(label) for label in classes]
    return labels, true, label_array(list(classes))


def as_numbers(labels: Iterable[Any]) -> list[Any]:
    """Turn labels that hold whole numbers into numbers; others stay as they are."""
    return [int(label) if _is_number(label) else label for label in labels]


def says_no_class(label: Any) -> bool:
    """Say whether a true label that is not a class means that the example belongs to none."""
    return " ".join(str(label).casefold().split()) in (NO_CLASS_TEXT, "-1")


def is_none_answer(label: Any) -> bool:
    """Say whether an annotator's label is "none of the classes", in any case and spacing."""
    return isinstance(label, str) and " ".join(label.casefold().split()) == NO_CLASS_TEXT


def _is_number(label: Any) -> bool:
    """Say whether a label is a whole number of 64 bits, or text that holds one."""
    if not isinstance(label, int) and WHOLE_NUMBER.fullmatch(str(label)) is None:
        return False
    return _fits(int(label))


def _fits(number: int) -> bool:
    return -(2**63) <= number < 2**63


def class_positions(labels: Sequence[Any], classes: NDArray[Any]) -> NDArray[np.int64]:
    """Find the class index of each label, -1 for none.

    Whole numbers are positions in the class list if no class is a number.

    Examples
    --------
    >>> class_positions(["dog", "cow", 0], np.array(["cat", "dog"])).tolist()
    [1, -1, 0]
    """
    known = {label: i for i, label in enumerate(classes.tolist())}
    if not any(isinstance(label, int) for label in known):
        known |= {i: i for i in range(len(classes))}
    return np.array([known.get(label, -1) for label in labels], dtype=np.int64)


def class_indices(
    labels: list[Any],
    codes: NDArray[Any],
    classes: NDArray[Any],
    place: Where,
    has_answers: bool = False,
) -> NDArray[Any]:
    """Turn codes of `labels` into class indices; `place` names an entry of `codes`.

    If `has_answers`, the answer "none of the classes" has the index c.
    """
    index = class_positions(labels, classes)
    if has_answers:
        index[[is_none_answer(label) for label in labels]] = len(classes)
    if len(index) and (unknown := (index < 0)[codes]).any():
        at = int(unknown.argmax())
        raise InputError(
            f"{place(at)}: label {labels[codes[at]]!r} is not among the {len(classes)} "
            f"classes{_some(classes)}. Correct it, or add it to the class list."
        )
    return index.astype(np.int32)[codes]


def _some(classes: NDArray[Any]) -> str:
    """Name the first classes, in parentheses."""
    shown = [str(name) for name in classes[:SHOWN_CLASSES].tolist()]
    rest = ", ..." if len(classes) > SHOWN_CLASSES else ""
    return f" ({', '.join(shown)}{rest})"


def unproposed(labels: list[Any], classes: NDArray[Any]) -> list[Any]:
    """List the true labels that are neither a class nor the text for none of them."""
    index = class_positions(labels, classes)
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
    what: str = "true",
) -> NDArray[np.int64]:
    """Read the truth: one class index per row, NO_CLASS, or UNKNOWN for an empty cell.

    If `strict`, a label that is not a class is an error; otherwise it is NO_CLASS. Messages call
    the labels `what`: true or gold.
    """
    sizes = np.diff(indptr)
    if (sizes > 1).any():
        row = int((sizes > 1).argmax())
        raise InputError(
            f"{where(row)}: {sizes[row]} {what} labels; expected one, or an empty cell."
        )
    rows = np.flatnonzero(sizes)
    if strict and (wrong := unproposed(labels, classes)):
        at = np.array([label in wrong for label in labels])[codes]
        first = int(at.argmax())
        raise InputError(
            f"{where(int(rows[first]))}: the {what} label {labels[codes[first]]!r} is not among "
            f"the {len(classes)} classes{_some(classes)}. Add it to the class list (--classes), or "
            f"write {NO_CLASS_TEXT!r} if the example belongs to none."
        )
    truth = np.full(len(sizes), UNKNOWN, dtype=np.int64)
    # -1, which means a label without a position, is NO_CLASS.
    truth[rows] = class_positions(labels, classes)[codes]
    return truth


def to_sets(
    indptr: NDArray[Any], index: NDArray[Any], classes: NDArray[Any], where: Where
) -> CandidateSets:
    """Make candidate sets of class indices; a row without any is refused."""
    sizes = np.diff(indptr)
    refuse_empty(sizes, where)
    matrix = sparse.csr_array(
        (np.ones(len(index), dtype=bool), index, indptr), shape=(len(sizes), len(classes))
    )
    matrix.sum_duplicates()
    return CandidateSets(matrix, classes)


def refuse_empty(sizes: NDArray[Any], where: Where) -> None:
    """Refuse a row without candidates, or without answers."""
    if sizes.all():
        return
    row = int(sizes.argmin())
    count = int(np.count_nonzero(sizes == 0))
    others = f" ({count} such rows)" if count > 1 else ""
    raise InputError(
        f"{where(row)}: the candidate set is empty{others}. Every example needs a candidate: "
        "fill it in, drop the row, or give it all classes if nothing is known."
    )
