"""Write corrected candidate sets in the format they came in. The input is never overwritten."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from candidly.data.columns.corrected import free_names, joined
from candidly.data.dataset import Correction, Dataset
from candidly.data.formats.delimited import harmless, write_csv
from candidly.data.formats.registry import FORMATS
from candidly.errors import InputError
from candidly.sets import CandidateSets
from candidly.storage.atomic import file_hash, write_atomically

__all__ = ["free_names", "harmless", "joined", "write_csv", "write_sets"]


def write_sets(
    dataset: Dataset,
    sets: CandidateSets,
    path: str | Path,
    *,
    keep: NDArray[np.bool_] | None = None,
    scores: NDArray[Any] | None = None,
    columns: Mapping[str, Sequence[Any]] | None = None,
) -> Path:
    """Write the file of a dataset again, with other candidate sets.

    Answers of several annotators become one row per example with the column `candidates`. Label
    Studio's tasks get the sets as predictions, and keep their annotations.

    Parameters
    ----------
    dataset : Dataset
        What `read_file` returned. Its file must still exist, unchanged.
    sets : CandidateSets
        The new sets, one per row of the dataset.
    path : str or Path
        The file to write, with an ending of the same format. It must not exist.
    keep : ndarray of bool, optional
        The rows to write; all by default.
    scores : ndarray, optional
        One number per row, for Label Studio's predictions.
    columns : dict, optional
        New columns by name, one value per row of the dataset, None for missing ones; for formats
        that have columns. A name that the file has already gets a number, as `free_names` says.

    Returns
    -------
    Path
        The file that was written.

    Raises
    ------
    InputError
        If the file exists, has the ending of another format, or the input has changed.

    Examples
    --------
    >>> from pathlib import Path
    >>> from tempfile import TemporaryDirectory
    >>> from candidly import CandidateSets
    >>> from candidly.data import read_file
    >>> with TemporaryDirectory() as folder:
    ...     path = Path(folder) / "pets.csv"
    ...     _ = path.write_text("id,candidates\\na,cat|dog\\nb,dog\\n")
    ...     data = read_file(path)
    ...     sets = CandidateSets([["cat"], ["cat", "dog"]], classes=["cat", "dog"])
    ...     written = write_sets(data, sets, Path(folder) / "corrected.csv").read_text()
    >>> written.splitlines()
    ['id,candidates', 'a,cat', 'b,cat|dog']
    """
    path = Path(path)
    if len(sets) != len(dataset):
        raise InputError(
            f"{len(sets)} sets for the {len(dataset)} rows of {dataset.source.path}: expected one "
            "set per row."
        )
    mask = np.ones(len(dataset), dtype=bool) if keep is None else np.asarray(keep, dtype=bool)
    if mask.shape != (len(dataset),):
        raise InputError(f"keep is of shape {mask.shape}, but there are {len(dataset)} rows.")
    form = FORMATS[dataset.source.format]
    _refuse_ending(dataset, path, form.suffixes)
    _refuse_overwriting(dataset, path)
    _refuse_changed_source(dataset)
    path.parent.mkdir(parents=True, exist_ok=True)
    names = free_names(columns or {}, dataset)
    added = {names[name]: values for name, values in (columns or {}).items()}
    correction = Correction(dataset, sets, mask, scores, added)
    write_atomically(path, lambda temporary: form.write(correction, temporary))
    return path


def _refuse_ending(dataset: Dataset, path: Path, suffixes: tuple[str, ...]) -> None:
    """Refuse a name that promises another format."""
    source = dataset.source
    if path.suffix.lower() not in (*suffixes, source.path.suffix.lower()):
        better = path.with_suffix(suffixes[0]).name
        raise InputError(
            f"cannot write {path}: {source.path} is of the format {source.format}, and so is the "
            f"corrected file. Call it {better!r}."
        )


def _refuse_overwriting(dataset: Dataset, path: Path) -> None:
    source = dataset.source.path
    if path.exists() and source.exists() and path.samefile(source):
        raise InputError(f"{path} is the input, which is never overwritten: choose another name.")
    if path.exists() or path.is_symlink():
        raise InputError(f"{path} exists already: choose another name, or remove it first.")


def _refuse_changed_source(dataset: Dataset) -> None:
    """Refuse to mix new sets with other rows than those they were made for."""
    source = dataset.source
    if not source.path.is_file():
        raise InputError(
            f"{source.path} is missing: the file the sets were read from is needed to write them "
            "back."
        )
    if file_hash(source.path) != source.sha256:
        raise InputError(f"{source.path} has changed since it was read: read it again.")
