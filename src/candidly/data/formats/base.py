"""The contract of a file format, and a base class for formats that hold one table."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, NoReturn

from candidly.data.columns.corrected import corrected_batches
from candidly.data.columns.roles import text_columns
from candidly.data.columns.scan import Scan
from candidly.data.columns.tables import build_dataset
from candidly.data.dataset import Correction, Dataset, Examples, Options
from candidly.errors import InputError

if TYPE_CHECKING:
    import pyarrow as pa


class Format(ABC):
    """A file format: how to recognise, read and write it.

    A package adds a format by an entry point of the group ``candidly.formats`` whose name is that
    of the format, and whose value is the subclass. It is made without arguments.

    Attributes
    ----------
    name : str
        Name of the format, in messages and in `FORMATS`.
    suffixes : tuple of str
        Endings of file names, in lower case, the usual one first. A file is written under one of
        them, or under the ending of the file that it corrects.

    See Also
    --------
    TableFormat : Base class of formats that hold one table; reading and writing are simpler there.
    """

    name: str
    suffixes: tuple[str, ...]

    @abstractmethod
    def recognise(self, path: Path, head: bytes) -> bool:
        """Say whether a file is of this format.

        Parameters
        ----------
        path : Path
            The file, which exists. Look at its name only if the content does not tell.
        head : bytes
            Its first 4,096 bytes, not all of them blank.

        Returns
        -------
        bool
        """

    @abstractmethod
    def read(self, path: Path, options: Options, labelled: bool) -> Dataset | Examples:
        """Read a file.

        Parameters
        ----------
        path : Path
            The file.
        options : Options
            What the user says about it.
        labelled : bool
            Whether candidate sets are needed. If not, a file without them must be readable.

        Returns
        -------
        Dataset or Examples
            A `Dataset` if `labelled`.

        Raises
        ------
        InputError
            If the file is damaged or holds something unexpected.
        """

    @abstractmethod
    def write(self, correction: Correction, path: Path) -> None:
        """Write the file of a dataset again, with other candidate sets.

        Parameters
        ----------
        correction : Correction
            The dataset that was read, its new sets, the rows to write, and a score per row for
            formats that can store it.
        path : Path
            The file to write. It has another, temporary name until it is complete.
        """


class TableFormat(Format):
    """A format that holds one table: supply `scan` and `write_table`.

    Attributes
    ----------
    has_lists : bool
        Whether a cell can hold a list. If not, candidates are written as text, such as "cat|dog".
    """

    has_lists: ClassVar[bool] = True

    @abstractmethod
    def scan(self, path: Path, as_text: Collection[str] | None) -> Scan:
        """Open the table; `scan_table` makes a `Scan` of a `pyarrow.Table`.

        Parameters
        ----------
        path : Path
            The file.
        as_text : collection of str, or None
            Columns whose cells stay as they are written, None for all columns. Only formats without
            types, such as CSV, need it: there, "007" may be a number or a name.

        Returns
        -------
        Scan
        """

    @abstractmethod
    def write_table(self, batches: Iterator[pa.RecordBatch], path: Path, source: Path) -> None:
        """Write a table.

        Parameters
        ----------
        batches : iterator of pyarrow.RecordBatch
            The rows, in at least one batch. `pyarrow.Table.from_batches` makes them one table.
        path : Path
            The file to write.
        source : Path
            The file that the table was read from, for details that the columns do not hold.
        """

    def read(self, path: Path, options: Options, labelled: bool) -> Dataset | Examples:
        return build_dataset(self.scan(path, text_columns(options)), options, labelled)

    def write(self, correction: Correction, path: Path) -> None:
        source = correction.dataset.source.path
        scan = self.scan(source, as_text=None)
        batches = corrected_batches(correction, scan, self.has_lists)
        self.write_table(batches, path, source)


@dataclass(frozen=True)
class UnsupportedFormat(Format):
    """A format that is only recognised to say what to do instead."""

    name: str
    magics: tuple[bytes, ...]
    advice: str
    suffixes: tuple[str, ...] = ()

    def recognise(self, path: Path, head: bytes) -> bool:
        return head.startswith(self.magics)

    def read(self, path: Path, options: Options, labelled: bool) -> NoReturn:
        raise InputError(f"{path} {self.advice}")

    def write(self, correction: Correction, path: Path) -> NoReturn:
        raise InputError(f"{path} {self.advice}")
