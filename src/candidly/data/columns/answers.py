"""Candidate sets, votes, scores and truth, from the columns of a table."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from candidly.data.columns.collect import Collected, is_missing
from candidly.data.columns.examples import Groups
from candidly.data.columns.labels import (
    Where,
    class_indices,
    resolve_classes,
    to_sets,
    true_indices,
    unproposed,
)
from candidly.data.columns.roles import Roles
from candidly.data.columns.scan import Scan
from candidly.data.dataset import UNKNOWN, Answers, Options
from candidly.data.guard import to_float32
from candidly.errors import InputError
from candidly.sets import CandidateSets

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
    labels, true, classes = resolve_classes(
        found.labels[0].pool, true_pool, options.classes, from_text
    )
    parts: list[Part] = []
    for column in found.labels:
        indptr, codes = column.finish()
        place = partial(_entry_place, scan, indptr)
        parts.append((indptr, class_indices(labels, codes, classes, place)))
    if len(parts) > 1 or groups is not None:
        fields = _from_answers(roles, found, groups, parts, classes)
    else:
        fields = {"sets": to_sets(*parts[0], classes, scan.where)}
        if roles.scores is not None:
            values = found.whole(roles.scores)
            fields["scores"] = _scores(scan, values, *parts[0], len(classes))
    if found.truth is None:
        return fields, ()
    is_strict = options.classes is not None
    truth = true_indices(true, *found.truth.finish(), classes, scan.where, strict=is_strict)
    fields["truth"] = truth if groups is None else _agreed_truth(scan, truth, groups)
    return fields, _truth_notes(unproposed(true, classes))


def _truth_notes(names: list[Any]) -> tuple[str, ...]:
    """Say what becomes of true labels that nobody proposed."""
    if not names:
        return ()
    shown = ", ".join(repr(name) for name in names[:SHOWN_LABELS])
    rest = ", ..." if len(names) > SHOWN_LABELS else ""
    return (
        f"{len(names)} true label(s) that nobody proposed ({shown}{rest}) count as none of the "
        "classes, since the truth only evaluates: name all classes (--classes) if they are "
        "classes.",
    )


def _entry_place(scan: Scan, indptr: NDArray[Any], at: int) -> str:
    """Name the row of the entry number `at`."""
    return scan.where(int(np.searchsorted(indptr, at, side="right")) - 1)


def _from_answers(
    roles: Roles,
    found: Collected,
    groups: Groups | None,
    parts: list[Part],
    classes: NDArray[Any],
) -> dict[str, Any]:
    """Make sets as unions of answers: of several columns, or of several rows."""
    n = len(parts[0][0]) - 1
    k = len(parts)
    sizes = np.concatenate([np.diff(indptr) for indptr, _ in parts])
    index = np.concatenate([codes for _, codes in parts])
    if groups is None:
        names = np.array(roles.labels)
        annotator = np.repeat(np.arange(k), n)
        example = first = np.arange(n)
    else:
        encoded = _annotators(roles, found).dictionary_encode()
        names = np.array(encoded.dictionary.to_pylist())
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
    names: NDArray[Any],
    sizes: NDArray[Any],
    index: NDArray[Any],
    classes: NDArray[Any],
    where: Where,
    n: int,
) -> dict[str, Any]:
    """Turn answers, one set per (example, annotator), into votes and unions; drop empty answers."""
    given = sizes > 0
    keys, answer = np.unique(example[given] * len(names) + annotator[given], return_inverse=True)
    owner = np.repeat(answer, sizes[given])
    answered = sparse.csr_array(
        (np.ones(len(index), dtype=np.int32), (owner, index)), shape=(len(keys), len(classes))
    )
    answered.data[:] = 1  # what an annotator says twice counts once
    row = keys // len(names)
    of_example = sparse.csr_array(
        (np.ones(len(keys), dtype=np.int32), (row, np.arange(len(keys)))), (n, len(keys))
    )
    votes = of_example @ answered
    votes.sort_indices()
    sets = to_sets(votes.indptr, votes.indices, classes, where)
    answers = Answers(row, keys % len(names), names, CandidateSets(answered.astype(bool), classes))
    return {"sets": sets, "votes": votes, "answers": answers}


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


def _agreed_truth(scan: Scan, truth: NDArray[np.int64], groups: Groups) -> NDArray[np.int64]:
    """Return the truth of each example; rows that know it must agree."""
    known = np.flatnonzero(truth != UNKNOWN)
    result = np.full(len(groups.first), UNKNOWN, dtype=np.int64)
    result[groups.of[known]] = truth[known]
    if (wrong := result[groups.of[known]] != truth[known]).any():
        row = int(known[wrong.argmax()])
        raise InputError(
            f"{scan.where(row)}: its true label is not that of another row of the same id."
        )
    return result
