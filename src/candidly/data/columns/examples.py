"""Ids and inputs of examples, from the columns of a table."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from candidly.data.columns.collect import Collected, is_missing
from candidly.data.columns.labels import Where
from candidly.data.columns.roles import Roles
from candidly.data.columns.scan import Scan, is_string
from candidly.data.guard import file_within
from candidly.errors import InputError

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa


@dataclass(frozen=True)
class Groups:
    """Rows of a file that are one example.

    Attributes
    ----------
    of : ndarray
        The example of each row of the file.
    first : ndarray
        The first row of each example.
    """

    of: NDArray[np.int64]
    first: NDArray[np.int64]


def find_examples(roles: Roles, found: Collected) -> tuple[pd.Index, Groups | None]:
    """Return the ids, and the groups of rows if each row is one annotator's answer."""
    import pandas as pd

    scan = found.scan
    n = found.count_rows()
    if not n:
        raise InputError(f"{scan.path} holds no rows.")
    if roles.id is None:
        return pd.RangeIndex(1, n + 1), None
    values = found.whole(roles.id)
    if (missing := is_missing(values)).any():
        raise InputError(
            f"{scan.where(int(missing.argmax()))}, column {roles.id!r}: there is no id. Fill it "
            "in, or leave the column out."
        )
    groups = _group(values)
    if roles.annotator is not None:
        return _as_index(values.take(groups.first)), groups
    if len(groups.first) < n:
        repeated = int(np.flatnonzero(groups.first[groups.of] != np.arange(n))[0])
        first = int(groups.first[groups.of[repeated]])
        raise InputError(
            f"{scan.where(repeated)}: duplicate id {values[repeated].as_py()!r} (first in row "
            f"{first + 1}). Make ids unique; if the rows are answers of several annotators, name "
            "the column of annotators by --annotator."
        )
    return _as_index(values), None


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


def find_inputs(roles: Roles, found: Collected, groups: Groups | None, where: Where) -> Any:
    """Return the inputs of the examples, as `Examples` describes them."""
    if roles.kind == "none":
        return None
    if found.vectors is not None:
        matrix = found.vectors.finish()
        return matrix if groups is None else matrix[groups.first]
    columns = {name: found.whole(name) for name in roles.inputs}
    if groups is not None:
        for name, values in columns.items():
            _refuse_disagreement(found.scan, name, values, groups)
        columns = {name: values.take(groups.first) for name, values in columns.items()}
    if roles.kind == "table":
        return _as_frame(columns)
    (name, values), *_ = columns.items()
    if (missing := is_missing(values)).any():
        raise InputError(
            f"{where(int(missing.argmax()))}, column {name!r}: the cell is empty. Fill it in, or "
            "drop the row."
        )
    if roles.kind == "text":
        return values
    folder = found.scan.path.parent
    return [
        file_within(folder, cell, f"{where(i)}, column {name!r}")
        for i, cell in enumerate(values.to_pylist())
    ]


def _refuse_disagreement(scan: Scan, name: str, values: pa.Array, groups: Groups) -> None:
    """Refuse rows of one example with different inputs."""
    import pyarrow.compute as pc

    differs = pc.not_equal(values, values.take(groups.first[groups.of])).fill_null(False)
    if pc.any(differs).as_py():
        row = int(differs.to_numpy(zero_copy_only=False).argmax())
        first = int(groups.first[groups.of[row]])
        raise InputError(
            f"{scan.where(row)}, column {name!r}: {values[row].as_py()!r}, but row {first + 1} of "
            f"the same id says {values[first].as_py()!r}. Rows of one example must agree; name "
            "the inputs by --features, --text or --images."
        )


def _as_frame(columns: dict[str, pa.Array]) -> pd.DataFrame:
    """Make a table: numbers as float64 (dates in seconds), all else as categories of text."""
    import pandas as pd

    return pd.DataFrame({name: _as_feature(values) for name, values in columns.items()})


def _as_feature(values: pa.Array) -> Any:
    import pandas as pd
    import pyarrow as pa

    kind = values.type
    if is_string(kind):
        encoded = values.dictionary_encode()
        codes = encoded.indices.fill_null(-1).to_numpy(zero_copy_only=False)
        return pd.Categorical.from_codes(codes, encoded.dictionary.to_pylist())
    if pa.types.is_date(kind) or pa.types.is_timestamp(kind):
        in_seconds = pa.timestamp("s", getattr(kind, "tz", None))
        values = values.cast(in_seconds, safe=False).cast(pa.int64())
    elif pa.types.is_time(kind):
        values = values.cast(pa.time64("us")).cast(pa.int64())
    return values.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False)
