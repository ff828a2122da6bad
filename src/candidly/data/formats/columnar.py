"""Parquet and Arrow files, read and written in batches."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from candidly.data.columns.scan import ROWS_PER_BATCH, Scan, refuse_repeated_names, text_bytes
from candidly.data.formats.base import TableFormat
from candidly.data.guard import ROW_BYTES, refuse_larger_than_memory
from candidly.errors import InputError

if TYPE_CHECKING:
    import pyarrow as pa

# Bytes per value in memory, by the physical type of a Parquet column.
VALUE_BYTES = {
    "BOOLEAN": 1,
    "INT32": 4,
    "FLOAT": 4,
    "INT64": 8,
    "DOUBLE": 8,
    "INT96": 8,
    "BYTE_ARRAY": 4,
}


class Parquet(TableFormat):
    """Parquet files. Text is read as dictionaries, so that repeated text takes no memory."""

    name = "parquet"
    suffixes = (".parquet",)

    def recognise(self, path: Path, head: bytes) -> bool:
        return head.startswith(b"PAR1")

    def scan(self, path: Path, as_text: Collection[str] | None) -> Scan:
        import pyarrow as pa
        import pyarrow.parquet as pq

        damages = (pa.ArrowException, OSError, UnicodeDecodeError)
        try:
            with pq.ParquetFile(path) as file:
                schema = file.schema_arrow
                metadata = file.metadata
                texts = _text_columns(metadata)
        except damages as error:
            raise InputError(
                f"{path} cannot be read as Parquet ({error}). Write it again."
            ) from error
        _refuse_names(path, schema)

        def batches(names: list[str]) -> Iterator[pa.RecordBatch]:
            _refuse_large_columns(path, metadata, names)
            try:
                with pq.ParquetFile(path, read_dictionary=texts) as opened:
                    parts = opened.iter_batches(ROWS_PER_BATCH, columns=names, use_threads=False)
                    yield from map(_checked, parts)
            except damages as error:
                raise InputError(
                    f"{path} cannot be read to its end ({error}). Write it again."
                ) from error

        return Scan(path, self.name, schema, metadata.num_rows, batches)

    def write_table(self, batches: Iterator[pa.RecordBatch], path: Path, source: Path) -> None:
        import pyarrow.parquet as pq

        _write_batches(batches, lambda schema: pq.ParquetWriter(path, schema))


class Arrow(TableFormat):
    """Arrow (Feather) files, and streams in files, as the library `datasets` writes them."""

    name = "arrow"
    suffixes = (".arrow", ".feather")

    def recognise(self, path: Path, head: bytes) -> bool:
        return head.startswith((b"ARROW1", b"\xff\xff\xff\xff"))

    def scan(self, path: Path, as_text: Collection[str] | None) -> Scan:
        import pyarrow as pa

        def batches(names: list[str] | None) -> Iterator[pa.RecordBatch]:
            try:
                with pa.memory_map(str(path)) as source:
                    for batch in _arrow_batches(path, source):
                        yield _checked(batch if names is None else batch.select(names))
            except (pa.ArrowException, OSError, UnicodeDecodeError, KeyError) as error:
                raise InputError(
                    f"{path} cannot be read as an Arrow file ({error}). Write it again."
                ) from error

        first = next(batches(None), None)
        if first is None:
            raise InputError(f"{path} holds no rows.")
        _refuse_names(path, first.schema)
        return Scan(path, self.name, first.schema, None, batches)

    def write_table(self, batches: Iterator[pa.RecordBatch], path: Path, source: Path) -> None:
        import pyarrow as pa

        _write_batches(batches, lambda schema: pa.ipc.new_file(str(path), schema))


def _write_batches(batches: Iterator[pa.RecordBatch], open_writer: Any) -> None:
    """Write batch by batch, so that columns that nobody needed do not fill the memory."""
    first = next(batches)
    with open_writer(first.schema) as writer:
        writer.write_batch(first)
        for batch in batches:
            writer.write_batch(batch)


def _text_columns(metadata: Any) -> list[str]:
    """List the columns of text; pyarrow cannot read the text of lists as dictionaries."""
    columns = [metadata.schema.column(j) for j in range(metadata.num_columns)]
    return [c.path for c in columns if c.logical_type.type == "STRING" and c.path == c.name]


def _refuse_large_columns(path: Path, metadata: Any, names: list[str]) -> None:
    """Check the number of values that the file declares: a few bytes can mean billions of them."""
    needed = ROW_BYTES * metadata.num_rows
    for j in range(metadata.num_columns):
        column = metadata.schema.column(j)
        if not any(column.path == name or column.path.startswith(f"{name}.") for name in names):
            continue
        width = VALUE_BYTES.get(column.physical_type, max(column.length, 4))
        for group in range(metadata.num_row_groups):
            chunk = metadata.row_group(group).column(j)
            needed += width * chunk.num_values + chunk.total_uncompressed_size
    refuse_larger_than_memory(needed, f"{path}: reading the table", path)


def _refuse_names(path: Path, schema: pa.Schema) -> None:
    """Refuse column names that are not text, or occur twice."""
    try:
        names = schema.names
    except UnicodeDecodeError as error:
        raise InputError(
            f"{path}: the name of a column is not UTF-8 ({error}). Write the file again."
        ) from None
    refuse_repeated_names(path, names)


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
        for start in range(0, batch.num_rows, ROWS_PER_BATCH):
            yield batch.slice(start, ROWS_PER_BATCH)


def _checked(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Validate a batch, since Arrow trusts what it reads; undo extension types."""
    import pyarrow as pa

    batch.validate(full=True)
    columns = [
        column.storage if isinstance(column.type, pa.ExtensionType) else _decoded_if_small(column)
        for column in batch.columns
    ]
    return pa.RecordBatch.from_arrays(columns, names=batch.schema.names)


def _decoded_if_small(column: pa.Array) -> pa.Array:
    """Decode a dictionary that saves little."""
    import pyarrow as pa

    if not pa.types.is_dictionary(column.type):
        return column
    if text_bytes(column) > 2 * column.dictionary.nbytes:
        return column
    return column.dictionary_decode()
