"""The formats by name: ours, and those of other packages (entry points of `candidly.formats`)."""

from __future__ import annotations

from importlib.metadata import EntryPoint, entry_points
from pathlib import Path

from candidly.data.formats.arrays import Mat, Npz
from candidly.data.formats.base import Format, UnsupportedFormat
from candidly.data.formats.columnar import Arrow, Parquet
from candidly.data.formats.delimited import Csv, Tsv
from candidly.data.formats.label_studio import LabelStudio
from candidly.data.formats.records import JsonArray, JsonLines
from candidly.errors import InputError
from candidly.plugins import load_plugins

GROUP = "candidly.formats"
HEAD_BYTES = 4096

UNSUPPORTED = (
    UnsupportedFormat("gzip", (b"\x1f\x8b",), "is compressed by gzip: unpack it first."),
    UnsupportedFormat(
        "pickle",
        (b"\x80\x04", b"\x80\x05"),
        "looks like a pickle. Pickles are never loaded, since they can run code: save the data in "
        "another format.",
    ),
    UnsupportedFormat(
        "office", (b"\xd0\xcf\x11\xe0",), "is an old Office file: save it as CSV UTF-8."
    ),
    UnsupportedFormat(
        "npy", (b"\x93NUMPY",), "is a single array: save X and S together by np.savez."
    ),
)
# CSV comes last: any text may be a table.
SUPPORTED = (
    Parquet(),
    Arrow(),
    Npz(),
    Mat(),
    LabelStudio(),
    JsonArray(),
    JsonLines(),
    Tsv(),
    Csv(),
)
OWN_FORMATS: dict[str, Format] = {form.name: form for form in (*UNSUPPORTED, *SUPPORTED)}


def load_formats(points: list[EntryPoint]) -> dict[str, Format]:
    """Load formats of other packages; one that cannot be used is left out with a warning."""
    return load_plugins(points, Format, OWN_FORMATS, "format", _accept)


def _accept(name: str, cls: type[Format]) -> Format:
    form = cls()
    if form.name != name:
        raise ValueError(f"its name is {form.name!r}; expected that of the entry point")
    return form


# In the order in which a file is shown to them. Formats of other packages are asked first: they
# are installed on purpose, and ours take any text and any archive.
FORMATS: dict[str, Format] = load_formats(list(entry_points(group=GROUP))) | OWN_FORMATS


def find_format(path: Path) -> Format:
    """Find the format of a file, by its content, and by its name where that does not tell.

    Parameters
    ----------
    path : Path
        The file.

    Returns
    -------
    Format
        The first of `FORMATS` that recognises it.

    Raises
    ------
    InputError
        If the file is empty or cannot be opened.
    """
    try:
        with path.open("rb") as file:
            head = file.read(HEAD_BYTES)
    except OSError as error:
        raise InputError(f"{path} cannot be opened: {error.strerror}.") from error
    if not head.strip():
        raise InputError(f"{path} is empty.")
    return next(form for form in FORMATS.values() if form.recognise(path, head))
