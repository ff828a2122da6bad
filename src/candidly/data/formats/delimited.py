"""CSV and TSV: text whose cells are separated by commas, semicolons or tabs."""

from __future__ import annotations

import codecs
import csv
import re
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from candidly.blocks import row_blocks
from candidly.data.columns.corrected import FORMULA
from candidly.data.columns.scan import Scan, refuse_repeated_names, scan_table
from candidly.data.formats.base import TableFormat
from candidly.errors import InputError
from candidly.storage.atomic import write_atomically

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

CHUNK_BYTES = 1 << 20
ROWS_AT_ONCE = 1 << 16
# The apostrophe that keeps spreadsheets from running a cell: `harmless` puts it there.
FORMULA_GUARD = r"^'('*[=+\-@\t\r])"
NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")


class Csv(TableFormat):
    """Comma-separated values: any text that no other format recognises."""

    name = "csv"
    suffixes: tuple[str, ...] = (".csv",)
    has_lists = False

    def recognise(self, path: Path, head: bytes) -> bool:
        return True

    def scan(self, path: Path, as_text: Collection[str] | None) -> Scan:
        dialect = find_dialect(path)
        stay_text = [name for name in dialect.names if as_text is None or name in as_text]
        form = Tsv.name if dialect.delimiter == "\t" else Csv.name
        table = _read_cells(path, dialect, stay_text)
        return scan_table(path, form, table, "row {} (the header not counted)")

    def write_table(self, batches: Iterator[pa.RecordBatch], path: Path, source: Path) -> None:
        dialect = find_dialect(source)
        first = next(batches)
        columns = ([c.to_pylist() for c in part.columns] for part in chain([first], batches))
        rows = (row for part in columns for row in zip(*part, strict=True))
        _write_rows(path, first.schema.names, rows, dialect.delimiter, dialect.encoding)


class Tsv(Csv):
    """Tab-separated values."""

    name = "tsv"
    suffixes = (".tsv", ".tab")

    def recognise(self, path: Path, head: bytes) -> bool:
        return path.suffix in self.suffixes


# ---- reading


@dataclass(frozen=True)
class Dialect:
    """How a file of text separates and encodes its cells."""

    delimiter: str
    encoding: str
    names: tuple[str, ...]


def find_dialect(path: Path) -> Dialect:
    """Read the header; refuse open quotes, and text that is not UTF-8 or marked UTF-16."""
    encoding, quotes = _survey(path)
    with path.open(encoding=encoding, newline="") as file:
        line = file.readline()
        delimiter = "\t" if path.suffix in Tsv.suffixes else max(",;\t", key=line.count)
        file.seek(0)
        try:
            header = next(csv.reader(file, delimiter=delimiter), [])
        except csv.Error as error:
            raise InputError(f"{path}: the first line is not a header ({error}).") from None
    names = [re.sub(FORMULA_GUARD, r"\1", name) for name in header]
    if not any(names):
        raise InputError(f"{path} is empty: expected a first line with the names of the columns.")
    refuse_repeated_names(path, names)
    if quotes % 2:
        _refuse_open_quote(path, encoding, delimiter)
    return Dialect(delimiter, encoding, tuple(names))


def _survey(path: Path) -> tuple[str, int]:
    """Check that all bytes are text; return (encoding, number of quotes)."""
    with path.open("rb") as file:
        start = file.read(3)
        file.seek(0)
        encoding = _encoding(start)
        decoder = codecs.getincrementaldecoder(encoding)()
        line = 1
        quotes = 0
        done = False
        while not done:
            chunk = file.read(CHUNK_BYTES)
            done = len(chunk) < CHUNK_BYTES
            try:
                text = decoder.decode(chunk, final=done)
            except UnicodeDecodeError as error:
                line += error.object[: error.start].count(b"\n")
                byte = error.object[error.start]
                name = encoding.removesuffix("-sig").upper()
                raise InputError(
                    f"{path}, line {line}: the byte 0x{byte:02x} is not {name}. Save the file as "
                    f"UTF-8, for instance by: iconv -f WINDOWS-1252 -t UTF-8 {path.name} > new.csv"
                ) from None
            line += text.count("\n")
            quotes += text.count('"')
    return encoding, quotes


def _encoding(start: bytes) -> str:
    """Tell the encoding by the byte order mark."""
    if start.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return "utf-16"
    return "utf-8-sig" if start == codecs.BOM_UTF8 else "utf-8"


def _refuse_open_quote(path: Path, encoding: str, delimiter: str) -> None:
    """Refuse a quote that swallows the rest of the file; other odd numbers of quotes are fine."""
    row = -1
    with path.open(encoding=encoding, newline="") as file:
        try:
            for _ in csv.reader(file, delimiter=delimiter, strict=True):
                row += 1
        except csv.Error as error:
            if "end of data" in str(error) or "field limit" in str(error):
                raise InputError(
                    f'{path}, row {row + 1} (the header not counted): a quote " is opened and '
                    "never closed. Close it, and write quotes inside of a quoted cell twice, as "
                    '"".'
                ) from None


def _read_cells(path: Path, dialect: Dialect, stay_text: list[str]) -> pa.Table:
    """Read all cells, without the apostrophes that guard formulas."""
    import pyarrow as pa
    import pyarrow.csv as reader

    wrong: list[reader.InvalidRow] = []

    def note_wrong_row(row: reader.InvalidRow) -> str:
        wrong.append(row)
        return "error"

    try:
        table = reader.read_csv(
            path,
            reader.ReadOptions(use_threads=False, encoding=dialect.encoding.removesuffix("-sig")),
            reader.ParseOptions(
                delimiter=dialect.delimiter,
                newlines_in_values=True,
                ignore_empty_lines=len(dialect.names) > 1,
                invalid_row_handler=note_wrong_row,
            ),
            reader.ConvertOptions(column_types={name: pa.string() for name in stay_text}),
        )
    except pa.ArrowInvalid as error:
        if not wrong:
            raise InputError(f"{path} cannot be read as a table: {error}") from None
        row = wrong[0]
        raise InputError(
            f"{path}, row {row.number - 1} (the header not counted): {row.actual_columns} cells "
            f"({row.text[:60]!r}), expected {row.expected_columns} as in the header. "
            f"Quote cells that contain {dialect.delimiter!r}."
        ) from None
    return _without_guards(table.rename_columns(list(dialect.names)))


def _without_guards(table: pa.Table) -> pa.Table:
    import pyarrow as pa
    import pyarrow.compute as pc

    for i, column in enumerate(table.columns):
        if pa.types.is_string(column.type):
            plain = pc.replace_substring_regex(column, FORMULA_GUARD, r"\1")
            table = table.set_column(i, table.field(i), plain)
    return table


# ---- writing


def write_csv(frame: pd.DataFrame, path: str | Path, delimiter: str = ",") -> None:
    """Write a table as CSV in UTF-8 that spreadsheets show and never run.

    Parameters
    ----------
    frame : DataFrame
        The table. Missing values become empty cells.
    path : str or Path
        The file, which is replaced if it exists.
    delimiter : str, default ","
        Separator between cells.

    See Also
    --------
    harmless : What becomes of text that looks like a formula.
    """
    write_atomically(
        Path(path),
        lambda temporary: _write_rows(temporary, list(frame), _plain_rows(frame), delimiter),
    )


def harmless(cell: Any) -> Any:
    """Put an apostrophe before text that a spreadsheet would run; reading takes it off again.

    Examples
    --------
    >>> harmless("=1+1")
    "'=1+1"
    >>> harmless("-3")
    '-3'
    """
    if isinstance(cell, str) and FORMULA.match(cell) and not NUMBER.fullmatch(cell):
        return f"'{cell}"
    return cell


def _plain_rows(frame: pd.DataFrame) -> Iterator[tuple[Any, ...]]:
    """Yield the rows as plain values, made block by block: they take more memory than the table."""
    for block in row_blocks(len(frame), 1, ROWS_AT_ONCE):
        part = frame.iloc[block]
        columns = [
            part[name].astype(object).where(part[name].notna(), "").tolist() for name in part
        ]
        yield from zip(*columns, strict=True)


def _write_rows(
    path: Path,
    names: list[Any],
    rows: Iterable[tuple[Any, ...]],
    delimiter: str,
    encoding: str = "utf-8",
) -> None:
    with path.open("w", encoding=encoding, newline="") as file:
        writer = csv.writer(UnixLines(file), delimiter=delimiter)
        writer.writerow([harmless(name) for name in names])
        writer.writerows([harmless(cell) for cell in row] for row in rows)


class UnixLines:
    """A file for `csv.writer` that ends rows with a bare newline.

    `csv.writer` quotes the characters of its own line terminator only. It must stay "\\r\\n", or a
    cell with a carriage return would be read back as two rows.
    """

    def __init__(self, file: TextIO) -> None:
        self.file = file

    def write(self, row: str) -> int:
        return self.file.write(row.removesuffix("\r\n") + "\n")
