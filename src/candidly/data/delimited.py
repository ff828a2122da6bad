"""CSV and TSV files as tables of arrow columns."""

from __future__ import annotations

import codecs
import csv
import re
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from candidly.data.scan import Scan, from_table
from candidly.errors import InputError

if TYPE_CHECKING:
    import pyarrow as pa

CHUNK = 1 << 20
ARMOUR = r"^'('*[=+\-@\t\r])"  # the apostrophe that keeps spreadsheets from running a cell; `export` puts it there


@dataclass(frozen=True)
class Dialect:
    """How a file of text separates and encodes its cells."""

    delimiter: str
    encoding: str
    names: tuple[str, ...]


def read_delimited(path: Path, as_text: Collection[str]) -> Scan:
    """The file as a table; the columns `as_text` stay as they are written, the types of the others are found out."""
    dialect = find_dialect(path)
    table = read_cells(path, dialect, [name for name in dialect.names if name in as_text])
    return from_table(
        path,
        "tsv" if dialect.delimiter == "\t" else "csv",
        table,
        "row {} (the header not counted)",
    )


def find_dialect(path: Path) -> Dialect:
    """Read the header; refuse what is not UTF-8, or UTF-16 with its mark, and quotes that are never closed."""
    encoding, quotes = _survey(path)
    with path.open(encoding=encoding, newline="") as file:
        line = file.readline()
        delimiter = "\t" if path.suffix in (".tsv", ".tab") else max(",;\t", key=line.count)
        file.seek(0)
        try:
            names = [
                re.sub(ARMOUR, r"\1", name)
                for name in next(csv.reader(file, delimiter=delimiter), [])
            ]
        except csv.Error as error:
            raise InputError(f"{path}: the first line is no header ({error}).") from None
    if not any(names):
        raise InputError(f"{path} is empty: expected a first line with the names of the columns.")
    if repeated := [name for i, name in enumerate(names) if name in names[:i]]:
        raise InputError(
            f"{path}: the column {repeated[0]!r} occurs twice in the header. Give each its own name."
        )
    if quotes % 2:
        _refuse_open_quote(path, encoding, delimiter)
    return Dialect(delimiter, encoding, tuple(names))


def _survey(path: Path) -> tuple[str, int]:
    """(encoding, number of quotes), in one pass over the bytes: are they all text?"""
    with path.open("rb") as file:
        utf16 = file.read(2) in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
        encoding = "utf-16" if utf16 else "utf-8-sig"
        file.seek(0)
        decoder, line, quotes, done = codecs.getincrementaldecoder(encoding)(), 1, 0, False
        while not done:
            done = len(chunk := file.read(CHUNK)) < CHUNK
            try:
                text = decoder.decode(chunk, final=done)
            except UnicodeDecodeError as error:
                line += error.object[: error.start].count(b"\n")
                byte, name = error.object[error.start], encoding.removesuffix("-sig").upper()
                raise InputError(
                    f"{path}, line {line}: the byte 0x{byte:02x} is not {name}. "
                    f"Save the file as UTF-8, for instance by: iconv -f WINDOWS-1252 -t UTF-8 {path.name} > new.csv"
                ) from None
            line, quotes = line + text.count("\n"), quotes + text.count('"')
    return encoding, quotes


def _refuse_open_quote(path: Path, encoding: str, delimiter: str) -> None:
    """An odd number of quotes may be harmless; one that swallows the rest of the file is not."""
    row = -1
    with path.open(encoding=encoding, newline="") as file:
        try:
            for _ in csv.reader(file, delimiter=delimiter, strict=True):
                row += 1
        except csv.Error as error:
            if "end of data" in str(error) or "field limit" in str(error):
                raise InputError(
                    f'{path}, row {row + 1} (the header not counted): a quote " is opened and never closed. Close it, '
                    'and write quotes inside of a quoted cell twice, as "".'
                ) from None


def read_cells(path: Path, dialect: Dialect, as_text: Collection[str]) -> pa.Table:
    """All cells; an apostrophe that guards a formula is taken off."""
    import pyarrow as pa
    import pyarrow.csv as reader

    wrong: list[reader.InvalidRow] = []
    try:
        table = reader.read_csv(
            path,
            reader.ReadOptions(use_threads=False, encoding=dialect.encoding.removesuffix("-sig")),
            reader.ParseOptions(
                delimiter=dialect.delimiter,
                newlines_in_values=True,
                ignore_empty_lines=len(dialect.names) > 1,
                invalid_row_handler=lambda row: wrong.append(row) or "error",  # type: ignore[func-returns-value]
            ),
            reader.ConvertOptions(column_types={name: pa.string() for name in as_text}),
        )
    except pa.ArrowInvalid as error:
        if not wrong:
            raise InputError(f"{path} cannot be read as a table: {error}") from None
        raise InputError(
            f"{path}, row {wrong[0].number - 1} (the header not counted): {wrong[0].actual_columns} cells "
            f"({wrong[0].text[:60]!r}), expected {wrong[0].expected_columns} as in the header. "
            f"Quote cells that contain {dialect.delimiter!r}."
        ) from None
    return _without_armour(table.rename_columns(list(dialect.names)))


class UnixLines:
    """A file for `csv.writer` that ends rows with a bare newline.

    `csv.writer` quotes the characters of its own line terminator only. It must stay "\\r\\n", or a cell with a carriage
    return would be read back as two rows.
    """

    def __init__(self, file: TextIO) -> None:
        self.file = file

    def write(self, row: str) -> int:
        return self.file.write(row.removesuffix("\r\n") + "\n")


def csv_writer(file: TextIO, delimiter: str = ",") -> Any:
    """A `csv.writer` with newlines between rows whose cells may hold any character."""
    return csv.writer(UnixLines(file), delimiter=delimiter)


def _without_armour(table: pa.Table) -> pa.Table:
    import pyarrow as pa
    import pyarrow.compute as pc

    for i, column in enumerate(table.columns):
        if pa.types.is_string(column.type):
            table = table.set_column(
                i, table.field(i), pc.replace_substring_regex(column, ARMOUR, r"\1")
            )
    return table
