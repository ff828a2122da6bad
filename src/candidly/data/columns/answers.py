"""Candidate sets, answers, scores and truth, from the columns of a table."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from candidly.answers import Answers
from candidly.cells import NO_CLASS_TEXT
from candidly.data.columns.collect import Collected, is_missing
from candidly.data.columns.examples import Groups
from candidly.data.columns.labels import (
    LabelColumn,
    Where,
    as_numbers,
    class_indices,
    refuse_empty,
    resolve_classes,
    to_sets,
    true_indices,
    unproposed,
)
from candidly.data.columns.roles import GROUND_TRUTH, Roles
from candidly.data.columns.scan import Scan
from candidly.data.dataset import UNKNOWN, Options
from candidly.data.guard import to_float32
from candidly.errors import InputError

if TYPE_CHECKING:
    import pyarrow as pa

SHOWN_LABELS = 3
# (indptr, class indices) of one column of labels, a CSR layout.
Part = tuple[NDArray[Any], NDArray[Any]]


def find_sets(
    roles: Roles, options: Options, found: Collected, groups: Groups | None
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Return (the fields of a `Dataset` that hold labels, notes)."""
    scan = found.scan
    from_text = any(column.is_text for column in found.labels)
    true_pool = found.truth.pool if found.truth else {}
    has_answers = len(found.labels) > 1 or groups is not None
    labels, true, classes = resolve_classes(
        found.labels[0].pool, true_pool, options.classes, from_text, has_answers
    )
    parts: list[Part] = []
    for column in found.labels:
        indptr, codes = column.finish()
        place = partial(_entry_place, scan, indptr)
        parts.append((indptr, class_indices(labels, codes, classes, place, has_answers)))
    notes: tuple[str, ...] = ()
    if has_answers:
        answers = _from_answers(roles, found, groups, parts, classes)
        fields = {"sets": answers.to_sets(), "answers": answers}
        notes = _none_notes(answers)
    else:
        fields = {"sets": to_sets(*parts[0], classes, scan.where)}
        if roles.scores is not None:
            values = found.whole(roles.scores)
            fields["scores"] = _scores(scan, values, *parts[0], len(classes))
    if found.truth is not None:
        is_strict = options.classes is not None
        truth = true_indices(true, *found.truth.finish(), classes, scan.where, strict=is_strict)
        fields["truth"] = _agreed(scan, truth, groups, classes, "true")
        notes += _truth_notes(unproposed(true, classes))
    if found.gold is not None:
        gold, gold_notes = _find_gold(found.gold, labels, classes, scan)
        fields["gold"] = _agreed(scan, gold, groups, classes, "gold")
        notes += gold_notes
    return fields, notes


def _find_gold(
    column: LabelColumn, labels: list[Any], classes: NDArray[Any], scan: Scan
) -> tuple[NDArray[np.int64], tuple[str, ...]]:
    """Return (the gold label of each row of the file, notes).

    A label that is not a class is refused. Label Studio's ground truth becomes gold without being
    asked: there, such a label is left out, and a note says so.
    """
    certain = as_numbers(column.pool) if any(isinstance(e, int) for e in labels) else [*column.pool]
    indptr, codes = column.finish()
    unknown = unproposed(certain, classes)
    is_asked = scan.tag is None or column.name != GROUND_TRUTH
    gold = true_indices(
        certain,
        indptr,
        codes,
        classes,
        lambda row: f"{scan.where(row)}, column {column.name!r}",
        strict=is_asked,
        what="gold",
    )
    if is_asked or not unknown:
        return gold, ()
    left_out = np.array([label in unknown for label in certain])[codes]
    gold[np.flatnonzero(np.diff(indptr))[left_out]] = UNKNOWN
    return gold, (
        f"{len(unknown)} verified label(s) that nobody proposed ({_shown(unknown)}) are not used "
        "as gold: name all classes (--classes) if they are classes.",
    )


def _none_notes(answers: Answers) -> tuple[str, ...]:
    """Say how many rows have no class among their answers."""
    votes = answers.votes()
    count = int((votes[:, :-1].sum(axis=1) == 0).sum())
    if not count:
        return ()
    return (
        f"{count} row(s) have no other answer than {NO_CLASS_TEXT!r}: their candidate set is all "
        "classes.",
    )


def _truth_notes(names: list[Any]) -> tuple[str, ...]:
    """Say what becomes of true labels that nobody proposed."""
    if not names:
        return ()
    return (
        f"{len(names)} true label(s) that nobody proposed ({_shown(names)}) count as none of the "
        "classes, since the truth only evaluates: name all classes (--classes) if they are "
        "classes.",
    )


def _shown(names: list[Any]) -> str:
    rest = ", ..." if len(names) > SHOWN_LABELS else ""
    return ", ".join(repr(name) for name in names[:SHOWN_LABELS]) + rest


def _entry_place(scan: Scan, indptr: NDArray[Any], at: int) -> str:
    """Name the row of the entry number `at`."""
    return scan.where(int(np.searchsorted(indptr, at, side="right")) - 1)


def _from_answers(
    roles: Roles,
    found: Collected,
    groups: Groups | None,
    parts: list[Part],
    classes: NDArray[Any],
) -> Answers:
    """Collect the answers: of several columns, or of several rows."""
    n = len(parts[0][0]) - 1
    k = len(parts)
    sizes = np.concatenate([np.diff(indptr) for indptr, _ in parts])
    index = np.concatenate([codes for _, codes in parts])
    if groups is None:
        names = list(roles.labels)
        annotator = np.repeat(np.arange(k), n)
        example = first = np.arange(n)
    else:
        encoded = _annotators(roles, found).dictionary_encode()
        names = encoded.dictionary.to_pylist()
        codes = encoded.indices.to_numpy(zero_copy_only=False).astype(np.int64)
        annotator = np.tile(codes, k)
        example = groups.of
        first = groups.first
    return _combined(
        np.tile(example, k),
        annotator,
        names,
        sizes,
        index,
        classes,
        lambda i: found.scan.where(int(first[i])),
        len(first),
    )


def _annotators(roles: Roles, found: Collected) -> pa.Array:
    import pyarrow as pa

    assert roles.annotator is not None
    values = found.whole(roles.annotator).cast(pa.string())
    if (missing := is_missing(values)).any():
        row = int(missing.argmax())
        raise InputError(
            f"{found.scan.where(row)}, column {roles.annotator!r}: no annotator is named."
        )
    return values


def _combined(
    example: NDArray[Any],
    annotator: NDArray[Any],
    names: list[str],
    sizes: NDArray[Any],
    index: NDArray[Any],
    classes: NDArray[Any],
    where: Where,
    n: int,
) -> Answers:
    """Join the answers of an annotator to an example into one; drop empty answers."""
    given = sizes > 0
    refuse_empty(np.bincount(example[given], minlength=n), where)
    if not len(classes):
        raise InputError(
            f"{where(0)}: all answers are {NO_CLASS_TEXT!r}, so no class is known. Name the "
            "classes by --classes."
        )
    keys, answer = np.unique(example[given] * len(names) + annotator[given], return_inverse=True)
    owner = np.repeat(answer, sizes[given])
    joined = sparse.csr_array(
        (np.ones(len(index), dtype=np.int32), (owner, index)), shape=(len(keys), len(classes) + 1)
    )
    joined.data[:] = 1  # what an annotator says twice counts once
    return Answers.from_membership(
        joined,
        keys // len(names),
        keys % len(names),
        n_rows=n,
        classes=classes,
        annotators=names,
    )


def _scores(
    scan: Scan, values: pa.Array, indptr: NDArray[Any], index: NDArray[Any], c: int
) -> sparse.csr_array:
    """Read one number per candidate, in the order of the list."""
    import pyarrow.compute as pc

    sizes = pc.list_value_length(values).fill_null(0).to_numpy(zero_copy_only=False)
    counts = np.diff(indptr)
    if (wrong := sizes != counts).any():
        row = int(wrong.argmax())
        raise InputError(f"{scan.where(row)}: {sizes[row]} scores for {counts[row]} candidates.")
    data = to_float32(values.flatten().to_numpy(zero_copy_only=False))
    matrix = sparse.csr_array((data, index, indptr), shape=(len(sizes), c))
    matrix.sum_duplicates()
    return matrix


def _agreed(
    scan: Scan,
    truth: NDArray[np.int64],
    groups: Groups | None,
    classes: NDArray[Any],
    what: str,
) -> NDArray[np.int64]:
    """Return the true or gold label of each example; rows that know it must agree."""
    if groups is None:
        return truth
    known = np.flatnonzero(truth != UNKNOWN)
    result = np.full(len(groups.first), UNKNOWN, dtype=np.int64)
    first = known[::-1]  # the first row that knows it is written last
    result[groups.of[first]] = truth[first]
    if (wrong := result[groups.of[known]] != truth[known]).any():
        row = int(known[wrong.argmax()])
        words = [*classes.tolist(), NO_CLASS_TEXT]  # NO_CLASS is the last one
        raise InputError(
            f"{scan.where(row)}: its {what} label is {words[truth[row]]!r}, but an earlier row of "
            f"the same id says {words[result[groups.of[row]]]!r}. Rows of one example must agree."
        )
    return result
