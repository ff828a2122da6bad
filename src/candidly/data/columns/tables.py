"""From a table to a dataset."""

from __future__ import annotations

from candidly.data.columns.answers import find_sets
from candidly.data.columns.collect import collect_columns
from candidly.data.columns.examples import find_examples, find_inputs
from candidly.data.columns.roles import Roles, assign_roles
from candidly.data.columns.scan import Scan
from candidly.data.dataset import Dataset, Examples, Options, Source
from candidly.storage.atomic import file_hash


def build_dataset(scan: Scan, options: Options, labelled: bool) -> Dataset | Examples:
    """Read the columns of a table that are needed, and put them together.

    Parameters
    ----------
    scan : Scan
        The table.
    options : Options
        Columns that the user names.
    labelled : bool
        Whether candidate sets are needed.

    Returns
    -------
    Dataset or Examples
        A `Dataset` if `labelled`.
    """
    roles = assign_roles(scan, options, labelled)
    found = collect_columns(scan, roles, options)
    ids, groups = find_examples(roles, found)
    where = scan.where if groups is None else lambda row: scan.where(int(groups.first[row]))
    inputs = find_inputs(roles, found, groups, where)
    resolved = _resolved(scan, options, roles)
    source = Source(scan.path, scan.format, file_hash(scan.path), resolved.as_dict())
    notes = (*scan.notes, *roles.notes)
    if not labelled:
        return Examples(ids, roles.kind, inputs, source, notes, where=where)
    fields, truth_notes = find_sets(roles, options, found, groups)
    fields["columns"] = tuple(scan.schema.names)
    return Dataset(ids, roles.kind, inputs, source, (*notes, *truth_notes), where=where, **fields)


def _resolved(scan: Scan, options: Options, roles: Roles) -> Options:
    """Return the options with every part named, so that a later file is read alike."""
    options = options.with_values(
        images=roles.inputs[0] if roles.kind == "images" else None,
        text=roles.inputs[0] if roles.kind == "text" else None,
        features=roles.inputs if roles.kind in ("table", "vectors") else (),
    )
    if scan.tag is not None:
        return options.with_values(labels=(scan.tag,), id=None, annotator=None)
    return options.with_values(
        labels=roles.labels or options.labels,
        id=roles.id,
        annotator=roles.annotator or options.annotator,
        truth=roles.truth or options.truth,
        gold=roles.gold or options.gold,
    )
