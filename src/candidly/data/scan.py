"""A file as columns that can be read batch by batch: what CSV, JSON lines, Parquet and Arrow files have in common."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from candidly.data.guard import ROW_BYTES, refuse_larger_than_memory
from candidly.errors import InputError

if TYPE_CHECKING:
    import pyarrow as pa

BATCH = 1 << 16
WIDTHS = {
    "BOOLEAN": 1,
    "INT32": 4,
    "FLOAT": 4,
    "INT64": 8,
    "DOUBLE": 8,
    "INT96": 8,
    "BYTE_ARRAY": 4,
}
LONGEST = 2**31 - 1  # bytes of text in one array of Arrow's usual type


@dataclass(frozen=True)
class Scan:
    """`batches(columns)` reads these columns from the beginning; `rows` is their number if it is known already."""

    path: Path
    format: str
    schema: pa.Schema
    rows: int | None
    batches: Callable[[list[str]], Iterator[pa.RecordBatch]]
    place: str = "row {} (counting from 1)"
    notes: tuple[str, ...] = ()
    tag: str | None = (
        None  # Label Studio's name of the choices; the columns are then ours, not the file's
    )

    def where(self, row: int) -> str:
        """A row, counting from 0, as the user finds it in the file."""
        return f"{self.path}, {self.place.format(row + 1)}"

    def plain_batches(self) -> Iterator[pa.RecordBatch]:
        """All columns, of the types that the schema names."""
        import pyarrow as pa

        for batch in self.batches(self.schema.names):
            columns = [decoded([column], self.path)[0] for column in batch.columns]
            fields = zip(columns, self.schema, strict=True)
            yield pa.RecordBatch.from_arrays(
                [c.cast(field.type) for c, field in fields], schema=self.schema
            )

    def peek(self, name: str) -> list[Any]:
        """The first values of a column that are not missing."""
        first = next(self.batches([name]), None)
        return [] if first is None else first.column(0)[:200].drop_null().to_pylist()


def from_table(
    path: Path,
    form: str,
    table: pa.Table,
    place: str,
    notes: tuple[str, ...] = (),
    tag: str | None = None,
) -> Scan:
    """A table in memory."""

    def batches(names: list[str]) -> Iterator[pa.RecordBatch]:
        yield from table.select(names).to_batches(BATCH)

    return Scan(path, form, table.schema, len(table), batches, place, notes, tag)


def scan_parquet(path: Path) -> Scan:
    """A Parquet file, read in batches. Text comes as dictionaries, so that repeated text takes no memory."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path) as file:
            schema, metadata = file.schema_arrow, file.metadata
            texts = _text_leaves(metadata)
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path} cannot be read as Parquet ({error}). Write it again.") from error
    _refuse_names(path, schema)

    def batches(names: list[str]) -> Iterator[pa.RecordBatch]:
        _refuse_large_columns(path, metadata, names)
        try:
            with pq.ParquetFile(path, read_dictionary=texts) as opened:
                yield from (
                    _plain(batch)
                    for batch in opened.iter_batches(BATCH, columns=names, use_threads=False)
                )
        except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
            raise InputError(
                f"{path} cannot be read to its end ({error}). Write it again."
            ) from error

    return Scan(path, "parquet", schema, metadata.num_rows, batches)


def _text_leaves(metadata: Any) -> list[str]:
    """The columns of text; pyarrow cannot read the text of lists as dictionaries."""
    columns = [metadata.schema.column(j) for j in range(metadata.num_columns)]
    return [c.path for c in columns if c.logical_type.type == "STRING" and c.path == c.name]


def _refuse_large_columns(path: Path, metadata: Any, names: list[str]) -> None:
    """By the numbers of values that the file declares: a few bytes can stand for billions of equal ones."""
    needed = ROW_BYTES * metadata.num_rows
    for j in range(metadata.num_columns):
        column = metadata.schema.column(j)
        if any(column.path == name or column.path.startswith(f"{name}.") for name in names):
            chunks = [
                metadata.row_group(group).column(j) for group in range(metadata.num_row_groups)
            ]
            width = WIDTHS.get(column.physical_type, max(column.length, 4))
            needed += sum(
                width * chunk.num_values + chunk.total_uncompressed_size for chunk in chunks
            )
    refuse_larger_than_memory(needed, f"{path}: reading the table", path)


def _refuse_names(path: Path, schema: pa.Schema) -> None:
    """Refuse columns that cannot be told apart, or whose names are no text."""
    try:
        names = schema.names
    except UnicodeDecodeError as error:
        raise InputError(
            f"{path}: the name of a column is not UTF-8 ({error}). Write the file again."
        ) from None
    if repeated := [name for i, name in enumerate(names) if name in names[:i]]:
        raise InputError(
            f"{path}: the column {repeated[0]!r} occurs twice. Give each its own name."
        )


def decoded(parts: list[pa.Array], path: Path) -> list[pa.Array]:
    """Parts of a column without dictionaries, after a look at how long their text would be."""
    import pyarrow as pa

    total = sum(map(_text_bytes, parts))
    refuse_larger_than_memory(total, f"{path}: the text of a column", path)
    plain = [
        part.dictionary_decode() if pa.types.is_dictionary(part.type) else part for part in parts
    ]
    if total > LONGEST:
        plain = [part.cast(pa.large_string()) for part in plain]
    return plain


def _text_bytes(part: pa.Array) -> int:
    """The length of the text that a dictionary stands for; 0 for other columns."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if not (pa.types.is_dictionary(part.type) and is_string(part.type.value_type)):
        return 0
    lengths = pc.binary_length(part.dictionary).cast(pa.int64())
    return pc.sum(lengths.take(part.indices)).as_py() or 0


def is_string(kind: pa.DataType) -> bool:
    from pyarrow import types

    return bool(types.is_string(kind) or types.is_large_string(kind))


def scan_arrow(path: Path) -> Scan:
    """An Arrow (Feather) file, or a stream in a file, as the library `datasets` writes it."""
    import pyarrow as pa

    def batches(names: list[str] | None) -> Iterator[pa.RecordBatch]:
        try:
            with pa.memory_map(str(path)) as source:
                for batch in _arrow_batches(path, source):
                    yield _plain(batch if names is None else batch.select(names))
        except (pa.ArrowException, OSError, UnicodeDecodeError, KeyError) as error:
            raise InputError(
                f"{path} cannot be read as an Arrow file ({error}). Write it again."
            ) from error

    first = next(batches(None), None)
    if first is None:
        raise InputError(f"{path} holds no rows.")
    _refuse_names(path, first.schema)
    return Scan(path, "arrow", first.schema, None, batches)


def _arrow_batches(path: Path, source: pa.NativeFile) -> Iterator[pa.RecordBatch]:
    import pyarrow as pa

    if source.read(6) == b"ARROW1":
        reader = pa.ipc.open_file(source)
        batches = (reader.get_batch(i) for i in range(reader.num_record_batches))
    else:
        source.seek(0)
        batches = iter(pa.ipc.open_stream(source))
    rows = 0
    for batch in batches:
        rows += batch.num_rows
        refuse_larger_than_memory(ROW_BYTES * rows, f"{path}: reading the table", path)
        yield from (batch.slice(start, BATCH) for start in range(0, batch.num_rows, BATCH))


def _plain(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Columns of extension types as what they are stored in; checked, since Arrow trusts what it reads."""
    import pyarrow as pa

    batch.validate(full=True)
    columns = [
        c.storage if isinstance(c.type, pa.ExtensionType) else _undone(c) for c in batch.columns
    ]
    return pa.RecordBatch.from_arrays(columns, names=batch.schema.names)


def _undone(column: pa.Array) -> pa.Array:
    """A column without its dictionary where that saves little."""
    import pyarrow as pa

    if (
        not pa.types.is_dictionary(column.type)
        or _text_bytes(column) > 2 * column.dictionary.nbytes
    ):
        return column
    return column.dictionary_decode()
