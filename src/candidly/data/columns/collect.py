"""One pass over the batches of a table, keeping only what is needed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from candidly.data.columns.labels import LabelColumn
from candidly.data.columns.roles import Roles
from candidly.data.columns.scan import Scan, is_text, without_dictionaries
from candidly.data.dataset import Options
from candidly.data.guard import refuse_larger_than_memory, to_float32
from candidly.errors import InputError

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass
class Collected:
    """What one pass over a table collects; `columns` holds the batches of other columns."""

    scan: Scan
    labels: list[LabelColumn]
    truth: LabelColumn | None
    gold: LabelColumn | None
    vectors: VectorColumn | None
    columns: dict[str, list[pa.Array]]

    def count_rows(self) -> int:
        for parts in self.columns.values():
            return sum(map(len, parts))
        return self.vectors.rows if self.vectors is not None else self.labels[0].rows

    def whole(self, name: str) -> pa.Array:
        """Join the batches of a column."""
        import pyarrow as pa

        parts = without_dictionaries(self.columns[name], self.scan.path)
        return pa.concat_arrays(parts) if parts else pa.array([], pa.string())


def collect_columns(scan: Scan, roles: Roles, options: Options) -> Collected:
    """Read the columns that play a part."""
    pool: dict[Any, int] = {}
    labels = [LabelColumn(name, options.sep, scan.where, pool) for name in roles.labels]
    truth = None if roles.truth is None else LabelColumn(roles.truth, None, scan.where)
    gold = None if roles.gold is None else LabelColumn(roles.gold, None, scan.where)
    vectors = VectorColumn(scan, roles.inputs[0]) if roles.kind == "vectors" else None
    collectors: list[LabelColumn | VectorColumn] = [
        *labels,
        *([] if truth is None else [truth]),
        *([] if gold is None else [gold]),
        *([] if vectors is None else [vectors]),
    ]
    collected = {collector.name for collector in collectors}
    columns: dict[str, list[pa.Array]] = {
        name: [] for name in roles.columns() if name not in collected
    }
    for batch in scan.batches(roles.columns()):
        for collector in collectors:
            collector.add(batch.column(collector.name))
        for name, parts in columns.items():
            parts.append(batch.column(name))
    return Collected(scan, labels, truth, gold, vectors, columns)


class VectorColumn:
    """Collects a column of lists of numbers, all of one length, as a float32 matrix."""

    def __init__(self, scan: Scan, name: str) -> None:
        self.scan = scan
        self.name = name
        self.rows = 0
        self._matrix: NDArray[np.float32] | None = None
        self._parts: list[NDArray[np.float32]] = []

    def add(self, column: pa.Array) -> None:
        """Add the next rows."""
        block = self._checked(column)
        if self.scan.rows is None:
            self._parts.append(block)
        else:
            if self._matrix is None:
                self._matrix = self._allocate((self.scan.rows, block.shape[1]))
            self._matrix[self.rows : self.rows + len(block)] = block
        self.rows += len(block)

    def finish(self) -> NDArray[np.float32]:
        """Return all rows."""
        return np.concatenate(self._parts) if self._matrix is None else self._matrix

    def _allocate(self, shape: tuple[int, int]) -> NDArray[np.float32]:
        path = self.scan.path
        refuse_larger_than_memory(
            4 * shape[0] * shape[1], f"{path}: the column {self.name!r}", path
        )
        return np.empty(shape, np.float32)

    def _checked(self, column: pa.Array) -> NDArray[np.float32]:
        """Turn a batch into a matrix."""
        import pyarrow as pa
        import pyarrow.compute as pc

        if column.null_count:
            row = int(column.is_null().to_numpy(zero_copy_only=False).argmax())
            raise self._error(row, "there is no vector")
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
            raise self._error(row, f"entry {at + 1} is missing or not a finite float32")
        return block

    def _width(self) -> int:
        if self._matrix is not None:
            return self._matrix.shape[1]
        return self._parts[0].shape[1] if self._parts else 0

    def _error(self, row: int, what: str) -> InputError:
        return InputError(f"{self.scan.where(self.rows + row)}, column {self.name!r}: {what}.")


def is_missing(values: pa.Array) -> NDArray[np.bool_]:
    """Mark values that are null or blank text."""
    import pyarrow.compute as pc

    if not is_text(values.type):
        return values.is_null().to_numpy(zero_copy_only=False)
    blank = pc.equal(pc.utf8_trim_whitespace(values), "").fill_null(True)
    return blank.to_numpy(zero_copy_only=False)
