"""Read a file of examples, whatever its format."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypedDict, Unpack

from candidly.data.columns.labels import read_classes
from candidly.data.dataset import Dataset, Examples, Options, names_of
from candidly.data.formats.registry import find_format
from candidly.data.guard import memory_limit
from candidly.errors import InputError

# The table of a folder of images.
METADATA = ("metadata.csv", "metadata.jsonl")


class Reading(TypedDict, total=False):
    """The options of `read_file`, all optional; a type for other functions that pass them on.

    Attributes
    ----------
    labels, features : str, sequence of str or None
        Columns of candidates and of features.
    id, images, text, annotator, truth, gold : str or None
        One column each.
    classes : str, Path, sequence or None
        The class list, or a file of it.
    sep : str or None
        Separator between candidates of a cell.
    max_memory : int, str or None
        Refuse a file that needs more.
    """

    labels: str | Sequence[str] | None
    id: str | None
    images: str | None
    text: str | None
    features: str | Sequence[str] | None
    classes: str | Path | Sequence[Any] | None
    annotator: str | None
    truth: str | None
    gold: str | None
    sep: str | None
    max_memory: int | str | None


def read_file(path: str | Path, **options: Unpack[Reading]) -> Dataset:
    """Read examples with candidate sets.

    CSV, TSV, Parquet, Arrow, NPZ, .mat, JSON lines, JSON arrays and Label Studio's JSON export are
    read, folders of images with a table, and formats that other packages add
    (`candidly.data.formats`). The format is found by content, then by name.

    Parameters
    ----------
    path : str or Path
        The file, or a folder with `metadata.csv` or `metadata.jsonl`.
    labels : str or sequence of str, optional
        Column(s) of candidates, by default `candidates`. Several columns are answers of
        annotators, and the set is their union. In Label Studio's export: the tag of the choices.
    id : str, optional
        Column of unique names of the examples, by default `id` or `task`.
    images, text : str, optional
        Column of paths of images, or of text, if it is the input.
    features : str or sequence of str, optional
        Columns of features, as names or patterns such as "f*"; or one column of vectors.
    classes : str, Path or sequence, optional
        The class list: a file with one class per line, or the classes. By default the candidates
        that occur, sorted.
    annotator : str, optional
        Column of annotators; several rows may then have one id.
    truth : str, optional
        Column of true labels, by default `label`. Only used to evaluate.
    gold : str, optional
        Column of labels that are certain where it is not empty: a class, or "none of the classes".
        They train and audit; such rows are not evaluated.
    sep : str, default "|"
        Separator between candidates of a cell.
    max_memory : int or str, optional
        Refuse a file that needs more, in bytes or as "8GB". By default 1 GiB or 200 times the size
        of the file, whichever is more.

    Returns
    -------
    Dataset
        Inputs, candidate sets, and what else the file holds.

    Raises
    ------
    InputError
        If the file cannot be read; the message names the row and what to do.

    Examples
    --------
    >>> from pathlib import Path
    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     path = Path(folder) / "pets.csv"
    ...     _ = path.write_text("candidates,weight\\ncat|dog,4.1\\ndog,23.0\\n")
    ...     data = read_file(path)
    >>> [data.sets[row] for row in range(len(data))]
    [('cat', 'dog'), ('dog',)]
    >>> data.inputs["weight"].tolist()
    [4.1, 23.0]
    """
    found = _read(path, _options(options), labelled=True)
    assert isinstance(found, Dataset)
    return found


def read_examples(path: str | Path, **options: Unpack[Reading]) -> Examples:
    """Read examples to classify; the file need not hold candidates.

    Parameters
    ----------
    path : str or Path
        The file or folder.
    **options
        Those of `read_file`. ``read_examples(path, **dataset.source.options)`` reads the inputs
        that `dataset` has.

    Returns
    -------
    Examples
        The inputs and ids.

    Raises
    ------
    InputError
        If the file cannot be read.
    """
    return _read(path, _options(options), labelled=False)


def _options(given: Reading) -> Options:
    named: dict[str, Any] = {**given}
    named |= {name: names_of(named.get(name)) for name in ("labels", "features")}
    if (classes := named.get("classes")) is not None:
        named["classes"] = tuple(read_classes(classes))
    return Options(**named)


def _read(path: str | Path, options: Options, labelled: bool) -> Dataset | Examples:
    with memory_limit(options.max_memory):
        found = located(Path(path))
        return find_format(found).read(found, options, labelled)


def located(path: Path) -> Path:
    """Find the file of a path: in a folder, its table.

    Parameters
    ----------
    path : Path
        A file, or a folder with one of METADATA.

    Returns
    -------
    Path

    Raises
    ------
    InputError
        If there is no such file, no single table, or the name is not UTF-8.
    """
    try:
        str(path).encode()
    except UnicodeEncodeError:
        raise InputError(
            f"{str(path)!r}: the name is not UTF-8, which some readers need. Rename the file."
        ) from None
    if path.is_dir():
        found = [path / name for name in METADATA if (path / name).is_file()]
        if len(found) != 1:
            raise InputError(
                f"{path} is a folder: expected one of {' or '.join(METADATA)} in it, found "
                f"{len(found)}."
            )
        return found[0]
    if not path.is_file():
        raise InputError(f"{path} is missing: there is no such file.")
    return path
