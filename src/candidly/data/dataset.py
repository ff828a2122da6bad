"""What a file of examples holds, whatever its format: inputs, candidate sets, and their source."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from candidly.answers import Answers
from candidly.cells import NO_CLASS_TEXT
from candidly.errors import InputError
from candidly.sets import CandidateSets

if TYPE_CHECKING:
    import pandas as pd

# The truth is known: the example belongs to none of the classes.
NO_CLASS = -1
# The truth is not known.
UNKNOWN = -2


@dataclass(frozen=True)
class Options:
    """What the user says about a file, mostly which column plays which part.

    Attributes
    ----------
    labels : tuple of str
        Columns of candidates; empty for the default.
    id, annotator, truth : str or None
        Columns of names, of annotators and of true labels; None for the default.
    gold : str or None
        Column of labels that are certain where it is not empty; None if there is none.
    images, text : str or None
        Column of paths of images, or of text, if it is the input.
    features : tuple of str
        Columns of features, as names or patterns.
    classes : tuple or None
        The class list; None for the candidates that occur.
    sep : str or None
        Separator between candidates of a cell.
    max_memory : int, str or None
        Refuse a file that needs more.

    See Also
    --------
    candidly.data.read_file : It explains them in full.

    Examples
    --------
    >>> Options(labels=("answers",)).as_dict()["labels"]
    ['answers']
    """

    labels: tuple[str, ...] = ()
    id: str | None = None
    images: str | None = None
    text: str | None = None
    features: tuple[str, ...] = ()
    classes: tuple[Any, ...] | None = None
    annotator: str | None = None
    truth: str | None = None
    sep: str | None = "|"
    max_memory: int | str | None = None
    gold: str | None = None

    def __post_init__(self) -> None:
        if self.sep is not None and not self.sep:
            raise InputError("sep='': expected a non-empty string such as '|'.")
        inputs = {"images": self.images, "text": self.text, "features": self.features}
        if len(given := [name for name, value in inputs.items() if value]) > 1:
            raise InputError(
                f"{' and '.join(given)} are given: expected one kind of input. Leave the others "
                "out."
            )

    def with_values(self, **values: Any) -> Options:
        """Return a copy with other values.

        Parameters
        ----------
        **values
            Attributes by name.

        Returns
        -------
        Options
        """
        return replace(self, **values)

    def as_dict(self) -> dict[str, Any]:
        """Return the options for JSON, and for `read_file(path, **options)`.

        Returns
        -------
        dict
            Tuples are lists.
        """
        return {
            name: list(value) if isinstance(value, tuple) else value
            for name, value in asdict(self).items()
        }


def names_of(value: str | Sequence[str] | None) -> tuple[str, ...]:
    """Return column names that are given as a list or as "a,b,c".

    Parameters
    ----------
    value : str, sequence of str or None

    Returns
    -------
    tuple of str

    Examples
    --------
    >>> names_of("a, b")
    ('a', 'b')
    """
    if value is None:
        return ()
    given = value.split(",") if isinstance(value, str) else list(value)
    return tuple(name.strip() for name in given if name.strip())


@dataclass(frozen=True)
class Source:
    """The file behind the data; `read_file(path, **options)` gives the same data again.

    Attributes
    ----------
    path : Path
        The file.
    format : str
        Name of its format, as in `candidly.data.formats.FORMATS`.
    sha256 : str
        Hash of its content.
    options : dict
        The options of `read_file`, with every part that a column plays.
    """

    path: Path
    format: str
    sha256: str
    options: dict[str, Any]


@dataclass(frozen=True, eq=False)
class Examples:
    """Examples to classify.

    Attributes
    ----------
    ids : pandas.Index
        Unique names, or the numbers 1 to n.
    kind : {"table", "text", "images", "vectors", "none"}
        What the inputs are.
    inputs : object
        A DataFrame ("table"); an arrow array of strings ("text"); a list of paths or uint8 pixels
        of shape (n, h, w) or (n, h, w, 3) ("images"); float32 of shape (n, d) ("vectors"); None.
    source : Source
        The file.
    notes : tuple of str
        What the reader left out or decided, in sentences.
    where : callable, optional
        Names an example, counting from 0, as the user finds it in the file.

    Examples
    --------
    >>> import pandas as pd
    >>> source = Source(Path("pets.npz"), "npz", sha256="", options={})
    >>> vectors = np.zeros((2, 3), dtype=np.float32)
    >>> examples = Examples(pd.Index([1, 2]), "vectors", vectors, source, notes=())
    >>> len(examples), examples.place(0)
    (2, 'pets.npz, row 1 (counting from 1)')
    """

    ids: pd.Index
    kind: str
    inputs: Any
    source: Source
    notes: tuple[str, ...]
    where: Callable[[int], str] | None = field(default=None, kw_only=True, repr=False)

    def place(self, row: int) -> str:
        """Name an example as the user finds it in the file.

        Parameters
        ----------
        row : int
            Counting from 0.

        Returns
        -------
        str
        """
        if self.where is not None:
            return self.where(row)
        return f"{self.source.path}, row {row + 1} (counting from 1)"

    def __len__(self) -> int:
        return len(self.ids)


@dataclass(frozen=True, eq=False)
class Dataset(Examples):
    """Examples with their candidate sets.

    Attributes
    ----------
    sets : CandidateSets
        One set per example.
    scores : sparse array of shape (n, c), optional
        The file's numbers for the candidates.
    answers : Answers, optional
        Who answered what; the sets are the unions of the answers.
    truth : ndarray of int, of shape (n,), optional
        Class indices, NO_CLASS or UNKNOWN; only used to evaluate.
    gold : ndarray of int, of shape (n,), optional
        Labels that are certain, in the same form; used to train and to audit.
    columns : tuple of str
        Names of all columns of the file, if it is a table.

    See Also
    --------
    Examples : The other attributes.

    Examples
    --------
    >>> from tempfile import TemporaryDirectory
    >>> from candidly.data import read_file
    >>> with TemporaryDirectory() as folder:
    ...     path = Path(folder) / "pets.csv"
    ...     _ = path.write_text("candidates,weight,label\\ncat|dog,4.1,cat\\ndog,23.0,\\n")
    ...     data = read_file(path)
    >>> data.kind, data.sets[0], list(data.truth_labels())
    ('table', ('cat', 'dog'), ['cat', None])
    """

    sets: CandidateSets
    scores: sparse.csr_array | None = None
    answers: Answers | None = None
    truth: NDArray[np.int64] | None = None
    gold: NDArray[np.int64] | None = None
    columns: tuple[str, ...] = ()

    def truth_labels(self) -> Iterator[Any]:
        """Give the truth of each row, if the file has it.

        Yields
        ------
        object
            A label, "none of the classes", or None if unknown.
        """
        assert self.truth is not None
        return self._labels_of(self.truth)

    def gold_labels(self) -> Iterator[Any]:
        """Give the label of each row that is certain, if the file has such labels.

        Yields
        ------
        object
            A label, "none of the classes", or None if nothing is certain.
        """
        assert self.gold is not None
        return self._labels_of(self.gold)

    def unseen_truth(self) -> NDArray[np.int64] | None:
        """Give the truth of the rows that may be evaluated: gold rows are known to the model.

        Returns
        -------
        ndarray of int, of shape (n,), or None
            As `truth`, but UNKNOWN where the label is gold; None if nothing is left.
        """
        if self.truth is None or self.gold is None:
            return self.truth
        truth = np.where(self.gold == UNKNOWN, self.truth, UNKNOWN)
        return truth if (truth != UNKNOWN).any() else None

    def _labels_of(self, indices: NDArray[np.int64]) -> Iterator[Any]:
        words = dict(enumerate(self.sets.classes.tolist()))
        words |= {NO_CLASS: NO_CLASS_TEXT, UNKNOWN: None}
        return (words[i] for i in indices.tolist())


@dataclass(frozen=True, eq=False)
class Correction:
    """Other candidate sets for a dataset, and the rows to write.

    Attributes
    ----------
    dataset : Dataset
        What was read. Its file, `dataset.source.path`, has not changed since.
    sets : CandidateSets
        The new sets, one per row of the dataset.
    keep : ndarray of bool
        The rows to write.
    scores : ndarray or None
        One number per row, for formats that can store it.
    columns : dict
        New columns by name, one value per row and None for missing ones, for formats that have
        columns.
    """

    dataset: Dataset
    sets: CandidateSets
    keep: NDArray[np.bool_]
    scores: NDArray[Any] | None = None
    columns: Mapping[str, Sequence[Any]] = field(default_factory=dict)
