"""From columns to a dataset: one pass over the batches of a file, nothing kept of it but what is needed."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from candidly.data.dataset import UNKNOWN, Answers, Dataset, Examples, Options, Source
from candidly.data.guard import inside, refuse_larger_than_memory, to_float32
from candidly.data.labels import (
    LabelColumn,
    Where,
    indices,
    is_text,
    settle,
    to_sets,
    true_indices,
    unproposed,
)
from candidly.data.roles import Roles, assign
from candidly.data.scan import Scan, decoded
from candidly.errors import InputError
from candidly.sets import CandidateSets
from candidly.storage.atomic import file_hash

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa


@dataclass
class Collected:
    """What one pass gathers: a collector for every column that is needed."""

    labels: list[LabelColumn]
    truth: LabelColumn | None
    vectors: Vectors | None
    kept: dict[str, list[pa.Array]]


@dataclass(frozen=True)
class Groups:
    """The file's rows that are one example: `of` each file row its example, and the first file row of each example."""

    of: NDArray[np.int64]
    first: NDArray[np.int64]


def build(scan: Scan, options: Options, labelled: bool) -> Dataset | Examples:
    """Read the columns that are needed and put them together."""
    roles = assign(scan, options, labelled)
    found = _collect(scan, roles, options)
    ids, groups = _identities(scan, roles, found)
    where = scan.where if groups is None else lambda row: scan.where(int(groups.first[row]))
    inputs = _inputs(scan, roles, found, groups, where)
    source = Source(
        scan.path, scan.format, file_hash(scan.path), _resolved(scan, options, roles).as_dict()
    )
    notes = (*scan.notes, *roles.notes)
    if not labelled:
        return Examples(ids, roles.kind, inputs, source, notes, where=where)
    labels, told = _labels(scan, roles, options, found, groups)
    return Dataset(ids, roles.kind, inputs, source, (*notes, *told), where=where, **labels)


def _resolved(scan: Scan, options: Options, roles: Roles) -> Options:
    """The options with every part named, so that a later file is read alike."""
    single = roles.inputs[0] if roles.kind in ("images", "text") else None
    options = options.with_values(
        images=single if roles.kind == "images" else None,
        text=single if roles.kind == "text" else None,
        features=roles.inputs if roles.kind in ("table", "vectors") else (),
    )
    if scan.tag is not None:
        return options.with_values(labels=(scan.tag,), id=None, annotator=None)
    return options.with_values(
        labels=roles.labels or options.labels,
        id=roles.id,
        annotator=roles.annotator or options.annotator,
        truth=roles.truth or options.truth,
    )


def _collect(scan: Scan, roles: Roles, options: Options) -> Collected:
    pool: dict[Any, int] = {}
    found = Collected(
        [LabelColumn(name, options.sep, scan.where, pool) for name in roles.labels],
        LabelColumn(roles.truth, None, scan.where) if roles.truth is not None else None,
        Vectors(scan, roles.inputs[0]) if roles.kind == "vectors" else None,
        {name: [] for name in roles.columns() if name not in (*roles.labels, roles.truth)},
    )
    if found.vectors is not None:
        del found.kept[roles.inputs[0]]
    for batch in scan.batches(roles.columns()):
        for column in (*found.labels, *([found.truth] if found.truth else [])):
            column.add(batch.column(column.name))
        if found.vectors is not None:
            found.vectors.add(batch.column(found.vectors.name))
        for name, parts in found.kept.items():
            parts.append(batch.column(name))
    return found


class Vectors:
    """A column of lists of numbers, all of one length, as a float32 matrix."""

    def __init__(self, scan: Scan, name: str) -> None:
        self.scan, self.name, self.rows = scan, name, 0
        self.matrix: NDArray[np.float32] | None = None
        self.parts: list[NDArray[np.float32]] = []

    def add(self, column: pa.Array) -> None:
        block = self._block(column)
        if self.scan.rows is None:
            self.parts.append(block)
        else:
            if self.matrix is None:
                shape = (self.scan.rows, block.shape[1])
                needed = 4 * shape[0] * shape[1]
                refuse_larger_than_memory(
                    needed, f"{self.scan.path}: the column {self.name!r}", self.scan.path
                )
                self.matrix = np.empty(shape, np.float32)
            self.matrix[self.rows : self.rows + len(block)] = block
        self.rows += len(block)

    def _block(self, column: pa.Array) -> NDArray[np.float32]:
        """The vectors of a batch, checked."""
        import pyarrow as pa
        import pyarrow.compute as pc

        if column.null_count:
            raise self._error(
                int(column.is_null().to_numpy(zero_copy_only=False).argmax()), "there is no vector"
            )
        sizes = pc.list_value_length(column).to_numpy(zero_copy_only=False)
        width = self._width() or int(sizes[0])
        if (wrong := sizes != width).any():
            row = int(wrong.argmax())
            raise self._error(row, f"{sizes[row]} numbers; expected {width}, as in the first row")
        values = column.flatten()
        if not (pa.types.is_floating(values.type) or pa.types.is_integer(values.type)):
            raise self._error(0, f"a list of {values.type}; expected numbers")
        block = to_float32(values.to_numpy(zero_copy_only=False)).reshape(len(column), width)
        finite = np.isfinite(block)
        if values.null_count or not finite.all():
            row, at = divmod(int((~finite).argmax()), width)
            raise self._error(
                row, f"entry {at + 1} is missing or not finite; expected a number of 32 bits"
            )
        return block

    def _width(self) -> int:
        return (
            self.matrix.shape[1]
            if self.matrix is not None
            else self.parts[0].shape[1]
            if self.parts
            else 0
        )

    def _error(self, row: int, what: str) -> InputError:
        return InputError(f"{self.scan.where(self.rows + row)}, column {self.name!r}: {what}.")

    def finish(self) -> NDArray[np.float32]:
        return np.concatenate(self.parts) if self.matrix is None else self.matrix


# ---- identities


def _identities(scan: Scan, roles: Roles, found: Collected) -> tuple[pd.Index, Groups | None]:
    """The ids; and the groups of rows, if each row is one annotator's answer."""
    import pandas as pd

    n = _count(found)
    if not n:
        raise InputError(f"{scan.path} holds no rows.")
    if roles.id is None:
        return pd.RangeIndex(1, n + 1), None
    values = _whole(scan, roles.id, found)
    if values.null_count or _blank(values).any():
        row = int((_blank(values) | values.is_null().to_numpy(zero_copy_only=False)).argmax())
        raise InputError(
            f"{scan.where(row)}, column {roles.id!r}: there is no id. Fill it in, or leave the column out."
        )
    groups = _group(values)
    if roles.annotator is not None:
        return _as_index(values.take(groups.first)), groups
    if len(groups.first) < n:
        repeated = int(np.flatnonzero(groups.first[groups.of] != np.arange(n))[0])
        first = int(groups.first[groups.of[repeated]])
        raise InputError(
            f"{scan.where(repeated)}: the id {values[repeated].as_py()!r} stands already in row {first + 1}. Make ids "
            "unique; if the rows are answers of several annotators, name the column that tells whose by --annotator."
        )
    return _as_index(values), None


def _count(found: Collected) -> int:
    columns = [*found.kept.values()]
    if columns:
        return sum(map(len, columns[0]))
    return found.vectors.rows if found.vectors is not None else found.labels[0].rows


def _whole(scan: Scan, name: str, found: Collected) -> pa.Array:
    """All batches of a column as one array."""
    import pyarrow as pa

    parts = decoded(found.kept[name], scan.path)
    return pa.concat_arrays(parts) if parts else pa.array([], pa.string())


def _blank(values: pa.Array) -> NDArray[np.bool_]:
    import pyarrow.compute as pc

    if not is_text(values.type):
        return np.zeros(len(values), dtype=bool)
    return (
        pc.equal(pc.utf8_trim_whitespace(values), "")
        .fill_null(False)
        .to_numpy(zero_copy_only=False)
    )


def _group(values: pa.Array) -> Groups:
    encoded = values.dictionary_encode()
    of = encoded.indices.to_numpy(zero_copy_only=False).astype(np.int64)
    first = np.full(len(encoded.dictionary), len(of), dtype=np.int64)
    np.minimum.at(first, of, np.arange(len(of)))
    return Groups(of, first)


def _as_index(values: pa.Array) -> pd.Index:
    import pandas as pd
    import pyarrow as pa

    if pa.types.is_integer(values.type):
        return pd.Index(values.to_numpy(zero_copy_only=False))
    return pd.Index(pd.array(values.cast(pa.large_string()), dtype=pd.StringDtype("pyarrow")))


# ---- inputs


def _inputs(scan: Scan, roles: Roles, found: Collected, groups: Groups | None, where: Where) -> Any:
    """What the model will see, one entry an example."""
    if roles.kind == "none":
        return None
    if found.vectors is not None:
        matrix = found.vectors.finish()
        return matrix if groups is None else matrix[groups.first]
    columns = {name: _whole(scan, name, found) for name in roles.inputs}
    if groups is not None:
        for name, values in columns.items():
            _refuse_disagreement(scan, name, values, groups)
        columns = {name: values.take(groups.first) for name, values in columns.items()}
    if roles.kind == "table":
        return _frame(columns)
    (name, values), *_ = columns.items()
    if missing := values.null_count or _blank(values).any():
        missing = int((_blank(values) | values.is_null().to_numpy(zero_copy_only=False)).argmax())
        raise InputError(
            f"{where(missing)}, column {name!r}: there is nothing. Fill it in, or drop the row."
        )
    if roles.kind == "text":
        return values
    folder = scan.path.parent
    return [
        inside(folder, cell, f"{where(i)}, column {name!r}")
        for i, cell in enumerate(values.to_pylist())
    ]


def _refuse_disagreement(scan: Scan, name: str, values: pa.Array, groups: Groups) -> None:
    """Rows of one example must tell the same of it."""
    import pyarrow.compute as pc

    differs = pc.not_equal(values, values.take(groups.first[groups.of])).fill_null(False)
    if pc.any(differs).as_py():
        row = int(differs.to_numpy(zero_copy_only=False).argmax())
        first = int(groups.first[groups.of[row]])
        raise InputError(
            f"{scan.where(row)}, column {name!r}: {values[row].as_py()!r}, but row {first + 1} of the same id says "
            f"{values[first].as_py()!r}. Rows of one example must agree; name the inputs by "
            "--features, --text or --images."
        )


def _frame(columns: dict[str, pa.Array]) -> pd.DataFrame:
    """Numbers as float64 (dates in seconds), all else as categories of text."""
    import pandas as pd
    import pyarrow as pa

    def convert(values: pa.Array) -> Any:
        kind = values.type
        if pa.types.is_string(kind) or pa.types.is_large_string(kind):
            encoded = values.dictionary_encode()
            codes = encoded.indices.fill_null(-1).to_numpy(zero_copy_only=False)
            return pd.Categorical.from_codes(codes, encoded.dictionary.to_pylist())
        if pa.types.is_date(kind) or pa.types.is_timestamp(kind):
            values = values.cast(pa.timestamp("s", getattr(kind, "tz", None)), safe=False).cast(
                pa.int64()
            )
        elif pa.types.is_time(kind):
            values = values.cast(pa.time64("us")).cast(pa.int64())
        return values.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False)

    return pd.DataFrame({name: convert(values) for name, values in columns.items()})


# ---- labels


def _labels(
    scan: Scan, roles: Roles, options: Options, found: Collected, groups: Groups | None
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """The sets, votes, answers, scores and truth; and what was decided about the truth."""
    from_text = any(column.is_text for column in found.labels)
    true_pool = found.truth.pool if found.truth else {}
    labels, true, classes = settle(found.labels[0].pool, true_pool, options.classes, from_text)
    parts = []
    for column in found.labels:
        indptr, codes = column.finish()
        parts.append((indptr, indices(labels, codes, classes, partial(_entry, scan, indptr))))
    if len(parts) > 1 or groups is not None:
        result = _from_answers(scan, roles, found, groups, parts, classes)
    else:
        result = {"sets": to_sets(*parts[0], classes, scan.where)}
        if roles.scores is not None:
            result["scores"] = _scores(
                scan, _whole(scan, roles.scores, found), *parts[0], len(classes)
            )
    if found.truth is None:
        return result, ()
    truth = true_indices(
        true, *found.truth.finish(), classes, scan.where, strict=options.classes is not None
    )
    result["truth"] = truth if groups is None else _agreed(scan, truth, groups)
    return result, _told(unproposed(true, classes))


def _told(names: list[Any]) -> tuple[str, ...]:
    """What becomes of true labels that nobody proposed."""
    if not names:
        return ()
    shown = ", ".join(repr(name) for name in names[:3]) + (", ..." if len(names) > 3 else "")
    return (
        f"{len(names)} true label(s) that nobody proposed ({shown}) count as none of the classes, since the truth only "
        "evaluates: name all classes (--classes) if they are classes.",
    )


def _entry(scan: Scan, indptr: NDArray[Any], at: int) -> str:
    """Where the entry number `at` stands."""
    return scan.where(int(np.searchsorted(indptr, at, side="right")) - 1)


def _from_answers(
    scan: Scan,
    roles: Roles,
    found: Collected,
    groups: Groups | None,
    parts: list[tuple[NDArray[Any], NDArray[Any]]],
    classes: NDArray[Any],
) -> dict[str, Any]:
    """Sets as unions of answers: of several columns, or of several rows."""
    n, k = len(parts[0][0]) - 1, len(parts)
    sizes = np.concatenate([np.diff(indptr) for indptr, _ in parts])
    index = np.concatenate([codes for _, codes in parts])
    if groups is None:
        names, who, row, first = (
            np.array(roles.labels),
            np.repeat(np.arange(k), n),
            np.arange(n),
            np.arange(n),
        )
    else:
        encoded = _annotators(scan, roles, found).dictionary_encode()
        names, row, first = np.array(encoded.dictionary.to_pylist()), groups.of, groups.first
        who = np.tile(encoded.indices.to_numpy(zero_copy_only=False).astype(np.int64), k)
    return _combine(
        np.tile(row, k),
        who,
        names,
        sizes,
        index,
        classes,
        lambda i: scan.where(int(first[i])),
        len(first),
    )


def _annotators(scan: Scan, roles: Roles, found: Collected) -> pa.Array:
    import pyarrow as pa

    assert roles.annotator is not None
    values = _whole(scan, roles.annotator, found).cast(pa.string())
    missing = _blank(values) | values.is_null().to_numpy(zero_copy_only=False)
    if missing.any():
        raise InputError(
            f"{scan.where(int(missing.argmax()))}, column {roles.annotator!r}: no annotator is named."
        )
    return values


def _combine(
    row: NDArray[Any],
    annotator: NDArray[Any],
    names: NDArray[Any],
    sizes: NDArray[Any],
    index: NDArray[Any],
    classes: NDArray[Any],
    where: Where,
    n: int,
) -> dict[str, Any]:
    """Answers, one set a (row, annotator), into votes and unions. Empty answers are dropped."""
    keys, answer = np.unique(
        row[sizes > 0] * len(names) + annotator[sizes > 0], return_inverse=True
    )
    owner = np.repeat(answer, sizes[sizes > 0])
    given = sparse.csr_array(
        (np.ones(len(index), dtype=np.int32), (owner, index)), shape=(len(keys), len(classes))
    )
    given.data[:] = 1  # what an annotator says twice counts once
    example = keys // len(names)
    collect = sparse.csr_array(
        (np.ones(len(keys), dtype=np.int32), (example, np.arange(len(keys)))), (n, len(keys))
    )
    votes = collect @ given
    votes.sort_indices()
    sets = to_sets(votes.indptr, votes.indices, classes, where)
    answers = Answers(example, keys % len(names), names, CandidateSets(given.astype(bool), classes))
    return {"sets": sets, "votes": votes, "answers": answers}


def _scores(
    scan: Scan, values: pa.Array, indptr: NDArray[Any], index: NDArray[Any], c: int
) -> sparse.csr_array:
    """A number for each candidate, in the order of the list."""
    import pyarrow.compute as pc

    sizes = pc.list_value_length(values).fill_null(0).to_numpy(zero_copy_only=False)
    if (wrong := sizes != np.diff(indptr)).any():
        row = int(wrong.argmax())
        raise InputError(
            f"{scan.where(row)}: {sizes[row]} scores for {indptr[row + 1] - indptr[row]} candidates."
        )
    data = to_float32(values.flatten().to_numpy(zero_copy_only=False))
    matrix = sparse.csr_array((data, index, indptr), shape=(len(sizes), c))
    matrix.sum_duplicates()
    return matrix


def _agreed(scan: Scan, truth: NDArray[np.int64], groups: Groups) -> NDArray[np.int64]:
    """The truth of each example; rows that know it must agree."""
    known = np.flatnonzero(truth != UNKNOWN)
    result = np.full(len(groups.first), UNKNOWN, dtype=np.int64)
    result[groups.of[known]] = truth[known]
    if (wrong := result[groups.of[known]] != truth[known]).any():
        row = int(known[wrong.argmax()])
        raise InputError(
            f"{scan.where(row)}: its true label is not that of another row of the same id."
        )
    return result
