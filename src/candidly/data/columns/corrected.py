"""Tables with corrected candidates: what all formats with columns need to write sets back."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from itertools import chain, count
from typing import TYPE_CHECKING, Any

from candidly.data.columns.labels import split_cell
from candidly.data.columns.roles import LABELS, SCORES
from candidly.data.columns.scan import Scan, is_list, is_text
from candidly.data.dataset import Correction, Dataset
from candidly.sets import CandidateSets

if TYPE_CHECKING:
    import pyarrow as pa

# Text that a spreadsheet would run, with any apostrophes in front that keep it from doing so.
FORMULA = re.compile(r"'*[=+\-@\t\r]")


def corrected_batches(
    correction: Correction, scan: Scan, has_lists: bool
) -> Iterator[pa.RecordBatch]:
    """Yield the table of `scan` with other candidates, one row per example, batch by batch.

    Parameters
    ----------
    correction : Correction
        The dataset that was read from the table, its new sets, and the rows to yield.
    scan : Scan
        The table.
    has_lists : bool
        Whether cells may be lists; if not, new candidates are text.

    Yields
    ------
    pyarrow.RecordBatch
        All columns but those that the new sets put out of date, and the new columns of the
        correction. Answers of several annotators are replaced by one column, `candidates`.
    """
    import pyarrow as pa

    dataset, sets = correction.dataset, correction.sets
    if dataset.answers is None:
        name = dataset.source.options["labels"][0]
        kind = _new_type(scan.schema.field(name).type)
        batches = scan.typed_batches()
    else:
        name = LABELS
        kind = _type_of_labels(sets) if has_lists else pa.string()
        table = _one_row_per_example(dataset, pa.Table.from_batches(scan.typed_batches()), kind)
        batches = iter(table.to_batches())
    outdated = outdated_columns(dataset) - {name}
    new_columns = {new: pa.array(values) for new, values in correction.columns.items()}
    row = 0
    for batch in batches:
        part = slice(row, row + batch.num_rows)
        row = part.stop
        column = _as_column(sets[part], kind, dataset.source.options["sep"])
        at = batch.schema.get_field_index(name)
        corrected = batch.set_column(at, pa.field(name, kind), column)
        corrected = corrected.drop_columns([n for n in batch.schema.names if n in outdated])
        for new, values in new_columns.items():
            corrected = corrected.append_column(new, values[part])
        yield corrected.filter(pa.array(correction.keep[part]))


def outdated_columns(dataset: Dataset) -> set[str | None]:
    """Name the columns that new sets put out of date: answers, and scores of single candidates."""
    options = dataset.source.options
    names: set[str | None] = set()
    if dataset.answers is not None:
        names |= {LABELS, *options["labels"], options["annotator"]}
    if dataset.scores is not None:
        names.add(SCORES)
    return names


def free_names(names: Iterable[str], dataset: Dataset) -> dict[str, str]:
    """Find names for new columns that the file of a dataset does not have.

    Parameters
    ----------
    names : iterable of str
        The wanted names.
    dataset : Dataset
        What was read.

    Returns
    -------
    dict
        The name to use, by the wanted one: the same, or with the first free number at its end.
    """
    taken = {*dataset.columns}

    def free(name: str) -> str:
        others = (f"{name}_{number}" for number in count(2))
        return next(each for each in chain([name], others) if each not in taken)

    return {name: free(name) for name in names}


def first_rows(ids: list[Any], gold: list[Any] | None = None) -> list[int]:
    """Find the first row of each id; if there are gold labels, the first that has one."""
    first: dict[Any, int] = {}
    for row, name in enumerate(ids):
        known = first.setdefault(name, row)
        if gold is not None and _is_blank(gold[known]) and not _is_blank(gold[row]):
            first[name] = row
    return list(first.values())


def _is_blank(cell: Any) -> bool:
    return cell is None or (isinstance(cell, str) and not cell.strip())


def joined(labels: tuple[Any, ...], sep: str | None) -> str:
    """Write the labels of a set into one cell of text.

    Parameters
    ----------
    labels : tuple
        The labels.
    sep : str or None
        Separator between candidates; None means "|".

    Returns
    -------
    str
        Labels joined by the separator; or a JSON array, where that would be read back differently
        or start a formula.

    Examples
    --------
    >>> joined(("cat", "dog"), "|")
    'cat|dog'
    >>> joined(("a|b", "c"), "|")
    '["a|b", "c"]'
    """
    names = [str(label) for label in labels]
    text = (sep or "|").join(names)
    if FORMULA.match(text) or text.startswith("'"):
        return json.dumps(names, ensure_ascii=False)
    try:
        same = split_cell(text, sep) == names
    except ValueError:
        same = False
    return text if same else json.dumps(names, ensure_ascii=False)


def _new_type(kind: pa.DataType) -> pa.DataType:
    """Give the type of the corrected candidates, by that of the old ones."""
    import pyarrow as pa

    if is_text(kind):
        return pa.string()
    return pa.list_(kind.value_type if is_list(kind) else kind)


def _type_of_labels(sets: CandidateSets) -> pa.DataType:
    import pyarrow as pa

    return pa.list_(pa.int64() if sets.classes.dtype.kind in "iu" else pa.string())


def _one_row_per_example(dataset: Dataset, table: pa.Table, kind: pa.DataType) -> pa.Table:
    """Replace answers by an empty column of candidates."""
    import pyarrow as pa

    options = dataset.source.options
    if options["annotator"] is not None:
        ids = table.column(options["id"]).to_pylist()
        gold = None if options["gold"] is None else table.column(options["gold"]).to_pylist()
        table = table.take(pa.array(first_rows(ids, gold)))
    outdated = outdated_columns(dataset)
    table = table.select([name for name in table.schema.names if name not in outdated])
    return table.append_column(pa.field(LABELS, kind), pa.nulls(len(table), kind))


def _as_column(sets: CandidateSets, kind: pa.DataType, sep: str | None) -> pa.Array:
    """Write sets as a column; numbers in place of names are positions in the class list."""
    import pyarrow as pa

    if not is_list(kind):
        return pa.array([joined(labels, sep) for labels in sets], pa.string())
    positions = pa.types.is_integer(kind.value_type) and sets.classes.dtype.kind not in "iu"
    labels = pa.array(range(sets.n_classes)) if positions else pa.array(sets.classes.tolist())
    values = labels.take(pa.array(sets.indices)).cast(kind.value_type)
    return pa.ListArray.from_arrays(pa.array(sets.indptr, pa.int32()), values).cast(kind)
