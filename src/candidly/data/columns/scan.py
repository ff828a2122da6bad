"""A table that is read batch by batch: what all formats with columns have in common."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from candidly.data.guard import refuse_larger_than_memory
from candidly.errors import InputError

if TYPE_CHECKING:
    import pyarrow as pa

ROWS_PER_BATCH = 1 << 16
PEEKED_ROWS = 200
# One array of Arrow's usual string type holds at most so many bytes of text.
MAX_STRING_BYTES = 2**31 - 1


@dataclass(frozen=True)
class Scan:
    """A table in a file, of which columns can be read from the beginning any number of times.

    Attributes
    ----------
    path : Path
        The file.
    format : str
        Name of the format, as in `candidly.data.formats.FORMATS`.
    schema : pyarrow.Schema
        Names and types of all columns.
    rows : int or None
        Number of rows; None if only reading all batches would tell.
    batches : callable
        ``batches(names)`` yields record batches of the columns `names`.
    place : str
        Text for a row in messages; `{}` becomes its number, counting from 1.
    notes : tuple of str
        What the reader left out or decided, in sentences.
    tag : str, optional
        Label Studio's name of the choices. The columns are then ours, not the file's.

    See Also
    --------
    scan_table : Make a scan of a table in memory.
    """

    path: Path
    format: str
    schema: pa.Schema
    rows: int | None
    batches: Callable[[list[str]], Iterator[pa.RecordBatch]]
    place: str = "row {} (counting from 1)"
    notes: tuple[str, ...] = ()
    tag: str | None = None

    def where(self, row: int) -> str:
        """Name a row, counting from 0, as the user finds it in the file."""
        return f"{self.path}, {self.place.format(row + 1)}"

    def typed_batches(self) -> Iterator[pa.RecordBatch]:
        """Read all columns, with the types that the schema names."""
        import pyarrow as pa

        for batch in self.batches(self.schema.names):
            columns = [without_dictionaries([column], self.path)[0] for column in batch.columns]
            fields = zip(columns, self.schema, strict=True)
            typed = [column.cast(field.type) for column, field in fields]
            yield pa.RecordBatch.from_arrays(typed, schema=self.schema)

    def peek(self, name: str) -> list[Any]:
        """Read the first values of a column, without missing ones."""
        first = next(self.batches([name]), None)
        return [] if first is None else first.column(0)[:PEEKED_ROWS].drop_null().to_pylist()


def scan_table(
    path: Path,
    form: str,
    table: pa.Table,
    place: str = "row {} (counting from 1)",
    notes: tuple[str, ...] = (),
    tag: str | None = None,
) -> Scan:
    """Make a scan of a table in memory.

    Parameters
    ----------
    path : Path
        The file that the table was read from.
    form : str
        Name of its format.
    table : pyarrow.Table
        All its rows and columns.
    place, notes, tag
        See `Scan`.

    Returns
    -------
    Scan
    """
    refuse_repeated_names(path, table.schema.names)

    def batches(names: list[str]) -> Iterator[pa.RecordBatch]:
        yield from table.select(names).to_batches(ROWS_PER_BATCH)

    return Scan(path, form, table.schema, len(table), batches, place, notes, tag)


def refuse_repeated_names(path: Path, names: list[str]) -> None:
    """Refuse two columns of one name."""
    if len({*names}) < len(names):
        repeated = next(name for i, name in enumerate(names) if name in names[:i])
        raise InputError(f"{path}: the column {repeated!r} occurs twice. Give each its own name.")


def without_dictionaries(parts: list[pa.Array], path: Path) -> list[pa.Array]:
    """Decode the parts of a column, after a check of how long their text would be."""
    import pyarrow as pa

    total = sum(map(text_bytes, parts))
    refuse_larger_than_memory(total, f"{path}: the text of a column", path)
    plain = [
        part.dictionary_decode() if pa.types.is_dictionary(part.type) else part for part in parts
    ]
    if total > MAX_STRING_BYTES:
        plain = [part.cast(pa.large_string()) for part in plain]
    return plain


def text_bytes(part: pa.Array) -> int:
    """Count the bytes of text that a dictionary array expands to; 0 for other arrays."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if not (pa.types.is_dictionary(part.type) and is_string(part.type.value_type)):
        return 0
    lengths = pc.binary_length(part.dictionary).cast(pa.int64())
    return pc.sum(lengths.take(part.indices)).as_py() or 0


def is_string(kind: pa.DataType) -> bool:
    """Say whether a column of this type holds text, not encoded."""
    from pyarrow import types

    return bool(types.is_string(kind) or types.is_large_string(kind))


def is_text(kind: pa.DataType) -> bool:
    """Say whether a column of this type holds text, plain or as a dictionary."""
    from pyarrow import types

    return is_string(kind.value_type if types.is_dictionary(kind) else kind)


def is_list(kind: pa.DataType) -> bool:
    """Say whether a column of this type holds lists."""
    from pyarrow import types

    return bool(types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind))
