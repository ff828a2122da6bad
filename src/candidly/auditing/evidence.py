"""What a model's outputs say of each candidate set: a few numbers per row, in one pass over blocks.

Everything is relative to the row's best class: r_j = p_j / max p, so that logits need one exp and
nothing underflows. Of probabilities only the sums and the members are divided by it: passes over
all classes are what costs. Sets of any size cost only their members: they are read as CSR.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from candidly.answers import Answers
from candidly.blocks import row_blocks
from candidly.cells import NO_CLASS_TEXT
from candidly.checks import as_numpy
from candidly.data.dataset import NO_CLASS, UNKNOWN
from candidly.errors import InputError
from candidly.labels import class_finder, is_missing, listed, shown_classes
from candidly.probabilities import describe_row, show_row, sums_to_one
from candidly.sets import CandidateSets

# How sharply the model ranks the classes after the best: powers of two, computed by square roots.
POWERS = (0.25, 0.5, 1.0, 2.0)
FLOATS = (np.float32, np.float64)
NEIGHBOURS = 30  # rows that vote

Floats = NDArray[np.floating[Any]]


class Observed(NamedTuple):
    """Numbers of n rows; r_j = p_j / max p.

    Attributes
    ----------
    sizes : int array of shape (n,)
        Sizes of the candidate sets.
    hit : array of shape (n,)
        1 if the best class is a candidate, else 0; 1/2 if a candidate and another class tie.
    rest : array of shape (powers, n)
        Share of the other classes' weight p^power that lies on candidates.
    chance : array of shape (n,)
        The same share if the other classes weighed the same.
    best_in, best_out : array of shape (n,)
        r of the best candidate, and of the best non-candidate (0 if there is none).
    label_in, label_out : int array of shape (n,)
        The best candidate, and the best non-candidate.
    doubt : array of shape (n,)
        -log max p.
    spread : array of shape (powers, n)
        Sum of r^power over all classes but the best one.
    scores : array of shape (n, d)
        Signs of open rows: doubt, energy (of logits), votes of neighbours (with features).
    """

    sizes: NDArray[np.int64]
    hit: Floats
    rest: Floats
    chance: Floats
    best_in: Floats
    best_out: Floats
    label_in: NDArray[np.int64]
    label_out: NDArray[np.int64]
    doubt: Floats
    spread: Floats
    scores: Floats


@dataclass(frozen=True, eq=False)
class Outputs:
    """Candidate sets and a model's outputs for the same rows. Values are checked when read.

    Attributes
    ----------
    sets : CandidateSets
        The candidates of n rows over c classes.
    values : array or memory map of shape (n, c)
        Probabilities or logits, never copied as a whole.
    logits : bool
        Whether the values are logits.
    features : array of shape (n, d), optional
        For neighbours.
    answers : Answers, optional
        What each annotator said.
    gold : int array of shape (n,), optional
        Certain truth: a class index, -1 for none of the classes, -2 where it is not known.
    """

    sets: CandidateSets
    values: Any
    logits: bool
    features: Any = None
    answers: Answers | None = None
    gold: NDArray[np.int64] | None = None

    def __len__(self) -> int:
        return len(self.sets)

    @property
    def score_names(self) -> tuple[str, ...]:
        """Names of the columns of `Observed.scores`."""
        energy = ("energy",) if self.logits else ()
        votes = ("votes",) if self.has_features else ()
        return ("doubt", *energy, *votes)

    @property
    def has_features(self) -> bool:
        """Whether there are features."""
        return self.features is not None

    def scratch(self) -> Floats:
        """Allocate the arrays of a block once: fresh memory costs more than arithmetic.

        Returns
        -------
        array of shape (2, rows of the longest block, c)
            Not initialised.
        """
        kind = self.values.dtype if self.values.dtype in FLOATS else np.float32
        rows = next(self.blocks()).stop  # no block is longer than the first
        return np.empty((2, rows, self.sets.n_classes), dtype=kind)

    def blocks(self) -> Iterator[slice]:
        """Split the rows into blocks.

        Yields
        ------
        slice
            Consecutive rows.
        """
        return row_blocks(*self.sets.shape)


def few_threads(outputs: Outputs) -> AbstractContextManager[object]:
    """Use one thread for products of small matrices; neighbours are worth more.

    On a busy machine two threads would wait for each other most of the time.

    Parameters
    ----------
    outputs : Outputs
        Without features, one thread is enough.

    Returns
    -------
    context manager
        It limits the threads of BLAS in a `with` block.
    """
    from threadpoolctl import threadpool_limits

    return threadpool_limits(None if outputs.has_features else 1, "blas")


def read_outputs(
    candidates: Any, probs: Any, logits: Any, features: Any, answers: Any = None, gold: Any = None
) -> Outputs:
    """Check the shapes of an audit's arguments and return them as one object.

    Parameters
    ----------
    candidates : CandidateSets or whatever makes one
        The candidate labels of n rows over c classes.
    probs, logits : array of shape (n, c), or None
        The model's outputs, one of the two. The columns of a DataFrame are put in the order of
        the classes.
    features : array of shape (n, d), or None
        For neighbours.
    answers : Answers, or whatever makes one, optional
        What each annotator said. `candidates` may be None, or Answers themselves.
    gold : sequence of length n, optional
        Labels that are certain, "none of the classes", and None where nothing is.

    Returns
    -------
    Outputs

    Raises
    ------
    InputError
        If a shape or a type does not fit, or there are fewer than two classes.

    Examples
    --------
    >>> outputs = read_outputs([["a"], ["a", "b"]], [[0.9, 0.1], [0.2, 0.8]], None, None)
    >>> len(outputs), outputs.score_names
    (2, ('doubt',))
    """
    if (probs is None) == (logits is None):
        raise InputError(
            "expected either probs or logits, the model's outputs (n, c), and not both."
        )
    sets, answers = read_answers(candidates, answers)
    if sets.n_classes < 2:
        raise InputError(
            f"there is only the class {sets.classes.tolist()[0]!r}: expected at least 2, or no set "
            "can be wrong."
        )
    name, values = ("probs", probs) if logits is None else ("logits", logits)
    values = _numbers(_in_order(values, sets.classes.tolist(), name), name)
    if values.shape != sets.shape:
        raise InputError(
            f"{name} has shape {values.shape}, but there are {len(sets)} candidate sets over "
            f"{sets.n_classes} classes: expected {sets.shape}, columns in the order of the "
            "classes. A class that no set names must be in the class list too: "
            "CandidateSets(sets, classes=...)."
        )
    certain = None if gold is None else read_gold(gold, sets.classes, len(sets))
    if features is None:
        return Outputs(sets, values, logits is not None, None, answers, certain)
    features = _numbers(features, "features")
    if features.ndim != 2 or len(features) != len(sets):
        raise InputError(
            f"features has shape {features.shape}: expected a row of numbers for each of "
            f"{len(sets)} rows."
        )
    return Outputs(sets, values, logits is not None, features, answers, certain)


def read_answers(candidates: Any, answers: Any) -> tuple[CandidateSets, Answers | None]:
    """Read candidate sets and answers, either of which may be missing.

    Parameters
    ----------
    candidates : CandidateSets, Answers, whatever makes candidate sets, or None
    answers : Answers, whatever makes them, or None

    Returns
    -------
    sets : CandidateSets
        By default the unions of the answers.
    answers : Answers or None
        Over the classes of the sets.

    Raises
    ------
    InputError
        If neither is given, both are Answers, or their rows differ.

    Examples
    --------
    >>> sets, answers = read_answers(None, [["a", "b"], ["a", None]])
    >>> list(sets)
    [('a', 'b'), ('a',)]
    """
    if isinstance(candidates, Answers):
        if answers is not None:
            raise InputError("candidates are Answers already: pass them, or answers=, not both.")
        candidates, answers = None, candidates
    if candidates is None and answers is None:
        raise InputError("expected candidates, or answers=, or both.")
    if answers is None:
        found = candidates if isinstance(candidates, CandidateSets) else CandidateSets(candidates)
        return found, None
    if candidates is None:
        given = answers if isinstance(answers, Answers) else Answers(answers)
        return given.to_sets(), given
    sets = candidates if isinstance(candidates, CandidateSets) else CandidateSets(candidates)
    given = Answers(answers, sets.classes)
    if len(given) != len(sets):
        raise InputError(
            f"answers are about {len(given)} rows, but there are {len(sets)} candidate sets: "
            "expected the same rows."
        )
    return sets, given


def read_gold(gold: Any, classes: NDArray[Any], n: int) -> NDArray[np.int64]:
    """Read labels that are certain as class indices.

    Parameters
    ----------
    gold : sequence of length n
        A class label, "none of the classes", or None or NaN where the truth is not certain.
    classes : array of shape (c,)
        The class labels.
    n : int
        Number of rows.

    Returns
    -------
    int array of shape (n,)
        Class indices; NO_CLASS (-1) for none of the classes, UNKNOWN (-2) for not certain.

    Raises
    ------
    InputError
        If there is another number of them, or a label is not a class.

    Examples
    --------
    >>> read_gold(["dog", None, "none of the classes"], np.array(["cat", "dog"]), 3)
    array([ 1, -2, -1])
    """
    labels = list(listed(gold, "gold"))
    if len(labels) != n:
        raise InputError(f"gold has {len(labels)} entries, but there are {n} rows.")
    find = class_finder(classes)
    index = np.full(n, UNKNOWN, dtype=np.int64)
    for row, value in enumerate(labels):
        if is_missing(value):
            continue
        label = value.item() if isinstance(value, np.generic) else value
        index[row] = NO_CLASS if label == NO_CLASS_TEXT else find(label)
        if label != NO_CLASS_TEXT and index[row] < 0:
            raise InputError(
                f"gold, row {row}: {label!r} is not among the {shown_classes(classes)}. Expected "
                f"a class, {NO_CLASS_TEXT!r}, or None where the truth is not certain."
            )
    return index


def gold_labels(gold: NDArray[np.int64] | None, classes: NDArray[Any]) -> list[Any] | None:
    """Give the labels that `read_gold` reads as these indices.

    Parameters
    ----------
    gold : int array of shape (n,), or None
    classes : array of shape (c,)

    Returns
    -------
    list, or None

    Examples
    --------
    >>> gold_labels(np.array([1, -2, -1]), np.array(["cat", "dog"]))
    ['dog', None, 'none of the classes']
    """
    if gold is None:
        return None
    words = {**dict(enumerate(classes.tolist())), NO_CLASS: NO_CLASS_TEXT, UNKNOWN: None}
    return [words[index] for index in gold.tolist()]


def _in_order(values: Any, classes: list[Any], name: str) -> Any:
    """The columns of a DataFrame by their names, unless they are mere numbers."""
    if not hasattr(values, "columns") or len(columns := list(values.columns)) != len(classes):
        return values
    if set(columns) == set(classes):
        return values[classes]
    if columns == list(range(len(classes))):
        return values
    raise InputError(
        f"{name} has the columns {columns}, but the classes are {classes}: expected a column for "
        "each."
    )


def _numbers(values: Any, name: str) -> Any:
    # What has a shape but is not an array, such as rows of a memory map, is read when needed.
    is_lazy = hasattr(values, "shape") and not hasattr(values, "__array__")
    array = values if is_lazy else as_numpy(values)
    if array.dtype.kind not in "fiub":
        raise InputError(f"{name} is an array of {array.dtype}: expected numbers.")
    return array


@dataclass(frozen=True, eq=False)
class Reference:
    """Rows that others are compared with.

    Attributes
    ----------
    rows : int array of shape (m,)
        Their numbers.
    mean : array of shape (d,)
        Means of their features.
    scale : float
        Standard deviation of all their features together.
    features : float32 array of shape (m, d)
        Their features, standardised.
    votes : array of shape (m, c)
        One vote per row, split evenly among its candidates.
    """

    rows: NDArray[np.int64]
    mean: Floats
    scale: float
    features: Floats
    votes: Floats


def make_reference(outputs: Outputs, rows: NDArray[np.int64]) -> Reference | None:
    """Make the rows that others are compared with.

    Parameters
    ----------
    outputs : Outputs
    rows : int array of shape (m,)

    Returns
    -------
    Reference or None
        None without features.
    """
    if outputs.features is None:
        return None
    X = _features(outputs.features, rows)
    mean = X.mean(axis=0, dtype=np.float64)
    scale = float(X.std(dtype=np.float64)) or 1.0
    mask = outputs.sets.dense(rows)
    votes = mask / mask.sum(axis=1, keepdims=True)
    return Reference(rows, mean, scale, _standardise(X, mean, scale), votes)


def _standardise(X: Floats, mean: Floats, scale: float) -> Floats:
    """Features in units of `scale`. In double precision: squares of 1e20 overflow float32."""
    return ((X - mean) / scale).astype(np.float32)


def observe(
    outputs: Outputs,
    rows: Any,
    reference: Reference | None,
    powers: tuple[float, ...] = POWERS,
    scratch: Floats | None = None,
) -> Observed:
    """Compute the numbers of some rows.

    Parameters
    ----------
    outputs : Outputs
    rows : slice or int array
        A slice keeps the precision of the outputs, float32 or float64; indices use float64.
    reference : Reference or None
        Neighbours, if there are features.
    powers : tuple of float
        Powers of `Observed.rest` and `Observed.spread`.
    scratch : array of shape (2, at least as many rows, c), optional
        Overwritten; see `Outputs.scratch`.

    Returns
    -------
    Observed

    Raises
    ------
    InputError
        If outputs are not finite, or not probabilities; the message names the row.
    """
    sets = _members(outputs.sets, rows)
    c = outputs.sets.n_classes
    is_block = isinstance(rows, slice)
    index = np.arange(rows.start, rows.stop) if is_block else rows
    values = np.asarray(outputs.values[rows])
    if not (is_block and values.dtype in FLOATS):
        values = values.astype(np.float32 if is_block else np.float64)  # a sample is for fitting
    # `_check_values` reports what is not a number.
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        if scratch is None:
            scratch = np.empty((2, *values.shape), values.dtype)
        r, weights = scratch[:, : len(values)]
        top = values.max(axis=1) if outputs.logits else None
        if top is None:
            np.copyto(r, values)
        else:
            np.exp(np.subtract(values, top[:, None], out=r), out=r)
        total = r @ np.ones(c, dtype=r.dtype)  # faster than r.sum(axis=1)
        _check_values(index, values, total, top)
        owner = np.repeat(np.arange(len(r)), sets.sizes)
        flat = owner * c + sets.indices
        members = r.ravel()[flat]
        everywhere = _sums(r, powers, weights)
        best_in, label_in = _best_inside(members, sets, owner)
        best_out, label_out = _best_outside(r, flat)
        best = np.maximum(best_in, best_out)  # 1, if the outputs are logits
        members = members / best[owner]
        best_in = best_in / best
        best_out = best_out / best
        total = total / best
        sums = [np.add.reduceat(power_of(members, power), sets.starts) for power in powers]
        hit = 0.5 * ((best_in > best_out).astype(r.dtype) + (best_in >= best_out))
        spread = np.maximum(everywhere / [power_of(best, power) for power in powers] - 1, 0)
        spread = spread.astype(r.dtype)
        chance = (sets.sizes.astype(r.dtype) - hit) / (c - 1)
        rest = np.where(spread > 0, np.clip((np.stack(sums) - hit) / spread, 0, 1), chance)
    doubt = np.log(total)
    energy = [] if top is None else [-(top + doubt)]
    scores = [doubt, *energy, *_neighbour_scores(outputs, index, reference)]
    return Observed(
        sizes=sets.sizes,
        hit=hit,
        rest=rest,
        chance=chance,
        best_in=best_in,
        best_out=best_out,
        label_in=label_in,
        label_out=label_out,
        doubt=doubt,
        spread=spread,
        scores=np.stack(scores, axis=1),
    )


class _Members(NamedTuple):
    """The candidates of some rows: `indices[starts[i] : starts[i] + sizes[i]]`."""

    starts: NDArray[np.int64]
    sizes: NDArray[np.int64]
    indices: NDArray[Any]


def _members(sets: CandidateSets, rows: Any) -> _Members:
    if not isinstance(rows, slice):
        sets = sets[rows]
        rows = slice(0, len(sets))
    indptr = sets.indptr[rows.start : rows.stop + 1]
    return _Members(indptr[:-1] - indptr[0], np.diff(indptr), sets.indices[indptr[0] : indptr[-1]])


def _check_values(index: NDArray[Any], values: Floats, total: Floats, top: Floats | None) -> None:
    """Refuse NaN, infinities, logits beyond float32 and rows that are not probabilities."""
    name = "probs" if top is None else "logits"
    bad = ~np.isfinite(total)
    if top is not None:
        bad |= np.abs(top) > np.finfo(np.float32).max
    if bad.any():
        at = int(bad.argmax())
        raise InputError(
            f"{name}, row {index[at]}: {show_row(values[at])} are not all finite numbers of at "
            "most 3.4e38 (float32). Did training diverge?"
        )
    if top is not None:
        return
    wrong = ~sums_to_one(total)
    if wrong.any() or values.min() < 0:
        at = int(wrong.argmax() if wrong.any() else values.min(axis=1).argmin())
        raise InputError(
            f"probs, row {index[at]}: {describe_row(values[at])}: expected probabilities that sum "
            "to 1. Pass raw scores as logits=."
        )


def _best_inside(
    members: Floats, sets: _Members, owner: NDArray[np.int64]
) -> tuple[Floats, NDArray[np.int64]]:
    """(r, label) of the best candidate, the first of equals. `owner`: the row of each member."""
    best = np.maximum.reduceat(members, sets.starts)
    is_best = np.flatnonzero(members == best[owner])[::-1]  # backwards: the first is written last
    label = np.empty(len(best), dtype=np.int64)
    label[owner[is_best]] = sets.indices[is_best]
    return best, label


def _best_outside(r: Floats, flat: NDArray[np.int64]) -> tuple[Floats, NDArray[np.int64]]:
    """(r, label) of the best non-candidate, 0 for full sets.

    Overwrites the candidates' entries of `r`.
    """
    r.ravel()[flat] = -1
    label = r.argmax(axis=1)
    return np.maximum(r[np.arange(len(r)), label], 0), label


def _sums(r: Floats, powers: tuple[float, ...], scratch: Floats) -> Floats:
    """(powers, n): sums of r^power over all classes."""
    ones = np.ones(r.shape[1], dtype=r.dtype)
    return np.stack([power_of(r, power, scratch) @ ones for power in powers])


def power_of(r: Floats, power: float, out: Floats | None = None) -> Floats:
    """Compute r^power for a power of two, by squares or square roots.

    Parameters
    ----------
    r : array
    power : float
        Such as 0.25, 0.5, 1 or 2.
    out : array of the shape of r, optional
        Where to write the result.

    Returns
    -------
    array
        `r` itself for a power of 1.

    Examples
    --------
    >>> power_of(np.array([16.0]), 0.25)
    array([2.])
    """
    if power == 1:
        return r
    function = np.square if power > 1 else np.sqrt
    out = function(r, out=out)
    for _ in range(abs(int(np.log2(power))) - 1):
        function(out, out=out)
    return out


def _neighbour_scores(
    outputs: Outputs, index: NDArray[Any], reference: Reference | None
) -> list[Floats]:
    """-log of the most votes that a class gets from the nearest reference rows.

    Their distance is not a score: open rows that resemble each other, such as images of another
    set, are not lonely.
    """
    if reference is None:
        return []
    parts = [index[part] for part in row_blocks(len(index), len(reference.rows))]
    return [-np.log(np.concatenate([_votes(outputs.features, part, reference) for part in parts]))]


def _votes(features: Any, index: NDArray[Any], reference: Reference) -> Floats:
    """The most votes that a class gets from the neighbours of each row, itself excluded."""
    X = _standardise(_features(features, index), reference.mean, reference.scale)
    Y = reference.features
    nearness = X @ Y.T - 0.5 * (Y**2).sum(axis=1)  # falls with the distance
    nearness[index[:, None] == reference.rows] = -np.inf
    k = min(NEIGHBOURS, max(1, len(Y) - 1))
    nearest = np.argpartition(-nearness, k - 1, axis=1)[:, :k]
    return reference.votes[nearest].mean(axis=1).max(axis=1)


def _features(features: Any, rows: NDArray[Any]) -> Floats:
    given = as_numpy(features[rows])
    with np.errstate(over="ignore"):
        X = given.astype(np.float32, copy=False)
    if not np.isfinite(X).all():
        at = tuple(np.argwhere(~np.isfinite(X))[0])
        raise InputError(
            f"features, row {rows[at[0]]}: {given[at]:g} is not a finite float32 "
            f"(column {at[1]}). "
            "Fill in missing values, or scale the features down."
        )
    return X
