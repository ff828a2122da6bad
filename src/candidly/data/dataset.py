"""What a file of examples holds, whatever its format: inputs, candidate sets, and where it all came from."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from candidly.errors import InputError
from candidly.sets import CandidateSets

if TYPE_CHECKING:
    import pandas as pd

NO_CLASS = -1  # the truth is known: the example belongs to none of the classes
UNKNOWN = -2  # the truth is not known
NO_CLASS_TEXT = "none of the classes"  # how files of text say NO_CLASS


@dataclass(frozen=True)
class Options:
    """Which column, variable or data key plays which part, where a file's own names do not tell."""

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

    def __post_init__(self) -> None:
        if self.sep is not None and not self.sep:
            raise InputError("sep='': expected a non-empty string such as '|'.")
        inputs = {"images": self.images, "text": self.text, "features": self.features}
        if len(given := [name for name, value in inputs.items() if value]) > 1:
            raise InputError(
                f"{' and '.join(given)} are given: expected one kind of input. Leave the others out."
            )

    def with_values(self, **values: Any) -> Options:
        return replace(self, **values)

    def as_dict(self) -> dict[str, Any]:
        """For JSON, and for `read_file(path, **options)`."""
        return {
            name: list(value) if isinstance(value, tuple) else value
            for name, value in asdict(self).items()
        }


def names_of(value: str | Sequence[str] | None) -> tuple[str, ...]:
    """Column names, given as a list or as "a,b,c"."""
    if value is None:
        return ()
    given = value.split(",") if isinstance(value, str) else list(value)
    return tuple(name.strip() for name in given if name.strip())


@dataclass(frozen=True)
class Source:
    """The file behind the data. `read_file(path, **options)` gives the same data again."""

    path: Path
    format: str
    sha256: str
    options: dict[str, Any]


@dataclass(frozen=True, eq=False)
class Answers:
    """Who proposed what: answer k is the set ``sets[k]`` that ``annotators[annotator[k]]`` gave to the example row[k].

    An annotator has at most one answer to an example; those who gave none have no entry.
    """

    row: NDArray[np.int64]
    annotator: NDArray[np.int64]
    annotators: NDArray[Any]
    sets: CandidateSets


@dataclass(frozen=True, eq=False)
class Examples:
    """n examples to classify.

    kind and inputs: "table", a DataFrame; "text", an arrow array of strings; "images", a list of paths or uint8 pixels
    (n, h, w[, 3]); "vectors", float32 (n, d); "none", None.
    """

    ids: pd.Index
    kind: str
    inputs: Any
    source: Source
    notes: tuple[str, ...]  # what a reader left out or decided, in sentences
    where: Callable[[int], str] | None = field(default=None, kw_only=True, repr=False)

    def place(self, row: int) -> str:
        """An example, counting from 0, as the user finds it in the file."""
        return (
            f"{self.source.path}, row {row + 1} (counting from 1)"
            if self.where is None
            else self.where(row)
        )

    def __len__(self) -> int:
        return len(self.ids)


@dataclass(frozen=True, eq=False)
class Dataset(Examples):
    """n examples with their candidate sets.

    votes: (n, c) how many annotators proposed a label. scores: (n, c) what the file says of each candidate.
    truth: (n,) class indices, NO_CLASS or UNKNOWN; for evaluation only.
    """

    sets: CandidateSets
    votes: sparse.csr_array | None = None
    scores: sparse.csr_array | None = None
    answers: Answers | None = None
    truth: NDArray[np.int64] | None = None

    def truth_labels(self) -> Iterator[Any]:
        """The truth in words, one a row: a label, "none of the classes", or None if it is not known."""
        assert self.truth is not None
        classes = self.sets.classes.tolist()
        return (
            classes[i] if i >= 0 else NO_CLASS_TEXT if i == NO_CLASS else None
            for i in self.truth.tolist()
        )
