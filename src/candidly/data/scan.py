"""A file as columns that can be read batch by batch: what CSV, JSON lines, Parquet and Arrow files have in common."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from candidly.errors import InputError

if TYPE_CHECKING:
    import pyarrow as pa

BATCH = 1 << 16


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
    tag: str | None = None  # Label Studio's name of the choices; the columns are then ours, not the file's

    def where(self, row: int) -> str:
        """A row, counting from 0, as the user finds it in the file."""
        return f"{self.path}, {self.place.format(row + 1)}"

    def peek(self, name: str) -> list[Any]:
        """The first values of a column that are not missing."""
        first = next(self.batches([name]), None)
        return [] if first is None else first.column(0)[:200].drop_null().to_pylist()


def from_table(
    path: Path, form: str, table: pa.Table, place: str, notes: tuple[str, ...] = (), tag: str | None = None
) -> Scan:
    """A table in memory."""

    def batches(names: list[str]) -> Iterator[pa.RecordBatch]:
        yield from table.select(names).to_batches(BATCH)

    return Scan(path, form, table.schema, len(table), batches, place, notes, tag)


def scan_parquet(path: Path) -> Scan:
    """A Parquet file, read in batches."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        file = pq.ParquetFile(path)
        schema = file.schema_arrow
    except (pa.ArrowException, OSError) as error:
        raise InputError(f"{path} cannot be read as Parquet ({error}). Write it again.") from error

    def batches(names: list[str]) -> Iterator[pa.RecordBatch]:
        try:
            with pq.ParquetFile(path) as opened:
                yield from (_plain(batch) for batch in opened.iter_batches(BATCH, columns=names, use_threads=False))
        except (pa.ArrowException, OSError) as error:
            raise InputError(f"{path} cannot be read to its end ({error}). Write it again.") from error

    with file:
        return Scan(path, "parquet", schema, file.metadata.num_rows, batches)


def scan_arrow(path: Path) -> Scan:
    """An Arrow (Feather) file, or a stream in a file, as the library `datasets` writes it."""
    import pyarrow as pa

    def batches(names: list[str] | None) -> Iterator[pa.RecordBatch]:
        try:
            with pa.memory_map(str(path)) as source:
                for batch in _arrow_batches(source):
                    yield _plain(batch if names is None else batch.select(names))
        except (pa.ArrowException, OSError) as error:
            raise InputError(f"{path} cannot be read as an Arrow file ({error}). Write it again.") from error

    first = next(batches(None), None)
    if first is None:
        raise InputError(f"{path} holds no rows.")
    return Scan(path, "arrow", first.schema, None, batches)


def _arrow_batches(source: pa.NativeFile) -> Iterator[pa.RecordBatch]:
    import pyarrow as pa

    if source.read(6) == b"ARROW1":
        reader = pa.ipc.open_file(source)
        batches = (reader.get_batch(i) for i in range(reader.num_record_batches))
    else:
        source.seek(0)
        batches = iter(pa.ipc.open_stream(source))
    for batch in batches:
        yield from (batch.slice(start, BATCH) for start in range(0, batch.num_rows, BATCH))


def _plain(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Columns of extension types as what they are stored in; checked, since Arrow trusts what it reads."""
    import pyarrow as pa

    batch.validate(full=True)
    columns = [c.storage if isinstance(c.type, pa.ExtensionType) else c for c in batch.columns]
    return pa.RecordBatch.from_arrays(columns, names=batch.schema.names)
