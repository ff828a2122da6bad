"""Benchmark data: candidate sets from true labels, with closed and open examples (Section 5.1)."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

from candidly.blocks import row_blocks
from candidly.checks import number, one_of, whole
from candidly.errors import InputError
from candidly.kinds import CLOSED, KINDS, NORMAL, OPEN, Truth
from candidly.sets import CandidateSets

OPEN_SETS = ("uniform", "matched")

Mask = NDArray[np.bool_]


def corrupt(
    y: Any,
    n_classes: int,
    *,
    q: float,
    tau1: float = 0.0,
    tau2: float = 0.0,
    seed: int = 0,
    open_sets: str = "uniform",
    pool: int | None = None,
) -> tuple[CandidateSets, Truth]:
    """Make candidate sets for true labels, and add open examples. The rows come back shuffled.

    Parameters
    ----------
    y : array of shape (n0,)
        True class indices.
    n_classes : int
        Number of classes.
    q : float
        Each wrong label joins a set independently with this probability.
    tau1 : float, default=0
        floor(tau1 * n0) known examples lose their true label to a wrong one (closed).
    tau2 : float, default=0
        floor(tau2 * n0) examples of an auxiliary set are added (open).
    seed : int, default=0
        Decides everything that is drawn.
    open_sets : {"uniform", "matched"}
        Sets of open examples: "uniform" are Bernoulli(q), never empty; "matched" are as large as
        those of known examples.
    pool : int, optional
        Size of the auxiliary set, from which open examples are drawn without replacement. By
        default it has exactly as many as needed.

    Returns
    -------
    sets : CandidateSets
        The candidates of n examples.
    truth : Truth
        True labels and kinds; ``X = np.concatenate([known, auxiliary])[truth.source]``.

    References
    ----------
    He, Feng and Yang, KDD 2023, Section 5.1.

    Examples
    --------
    >>> import candidly
    >>> sets, truth = candidly.corrupt([0, 1, 2] * 10, 3, q=0.2, tau1=0.1, tau2=0.5, seed=0)
    >>> len(sets), truth.manifest["counts"]
    (45, {'normal': 27, 'closed': 3, 'open': 15})
    """
    y = _checked(y, n_classes, q=q, tau1=tau1, tau2=tau2, seed=seed, open_sets=open_sets)
    rng = np.random.default_rng(seed)
    n0 = len(y)
    n_open = _count(tau2, n0)
    mask, closed = misplace(draw_known_sets(y, n_classes, q, rng), y, _count(tau1, n0), rng)
    known_sizes = mask.sum(axis=1) if open_sets == "matched" else None
    open_mask = draw_open_sets(n_open, n_classes, q, rng, known_sizes)

    kinds = np.repeat(np.array([NORMAL, OPEN], dtype=np.uint8), [n0, n_open])
    kinds[closed] = CLOSED
    labels = np.concatenate([y, np.full(n_open, -1)])
    source = np.concatenate([np.arange(n0), n0 + _draw_pool(pool, n_open, rng)])

    order = rng.permutation(n0 + n_open)
    sets = CandidateSets(np.concatenate([mask, open_mask])[order], classes=n_classes)
    manifest = {
        "seed": int(seed),
        "q": float(q),
        "tau1": float(tau1),
        "tau2": float(tau2),
        "open_sets": open_sets,
        "pool": None if pool is None else int(pool),
        "y_sha256": hashlib.sha256(y.tobytes()).hexdigest(),
        **_realised(sets, kinds[order]),
    }
    return sets, Truth(labels[order], kinds[order], source[order], manifest)


def draw_known_sets(
    y: NDArray[np.int64], n_classes: int, q: float, rng: np.random.Generator
) -> Mask:
    """Draw candidate sets: the true label, and each wrong one with probability q.

    Parameters
    ----------
    y : int array of shape (n,)
        True class indices.
    n_classes : int
    q : float
    rng : numpy.random.Generator

    Returns
    -------
    bool array of shape (n, c)

    Examples
    --------
    >>> import numpy as np
    >>> draw_known_sets(np.array([0, 1]), 2, 0.0, np.random.default_rng(0))
    array([[ True, False],
           [False,  True]])
    """
    mask = _bernoulli(len(y), n_classes, q, rng)
    mask[np.arange(len(y)), y] = True
    return mask


def misplace(
    mask: Mask, y: NDArray[np.int64], count: int, rng: np.random.Generator
) -> tuple[Mask, NDArray[np.int64]]:
    """Replace the true label in some sets by a uniform non-candidate.

    A full set has no non-candidate, so the rows are chosen among the others.

    Parameters
    ----------
    mask : bool array of shape (n, c)
        Candidate sets that hold the truth.
    y : int array of shape (n,)
        True class indices.
    count : int
        Number of sets to change.
    rng : numpy.random.Generator

    Returns
    -------
    mask : bool array of shape (n, c)
        A changed copy.
    rows : int array of shape (count,)
        The rows that lost their true label.

    Raises
    ------
    InputError
        If fewer than `count` sets lack a class.

    Examples
    --------
    >>> import numpy as np
    >>> mask, rows = misplace(np.eye(2, dtype=bool), np.array([0, 1]), 2, np.random.default_rng(0))
    >>> mask
    array([[False,  True],
           [ True, False]])
    """
    eligible = np.flatnonzero(~mask.all(axis=1))
    if count > len(eligible):
        raise InputError(
            f"{count} sets are to lose their true label, but {len(mask) - len(eligible)} of "
            f"{len(mask)} hold every class already, which leaves {len(eligible)}. Choose a smaller "
            "tau1 or q."
        )
    rows = rng.choice(eligible, size=count, replace=False)
    into = _draw_outside(mask, rows, rng)
    mask = mask.copy()
    mask[rows, y[rows]] = False
    mask[rows, into] = True
    return mask, rows


def draw_open_sets(
    n_open: int,
    n_classes: int,
    q: float,
    rng: np.random.Generator,
    sizes: NDArray[Any] | None = None,
) -> Mask:
    """Draw sets for examples of no known class.

    Parameters
    ----------
    n_open : int
        Number of sets.
    n_classes : int
    q : float
        Probability of each label to join, without `sizes`; an empty set gets one uniform label.
    rng : numpy.random.Generator
    sizes : int array, optional
        A set's size is drawn from them, with replacement; the set is a uniform subset of that size.

    Returns
    -------
    bool array of shape (n_open, c)

    Examples
    --------
    >>> import numpy as np
    >>> draw_open_sets(3, 5, 0.3, np.random.default_rng(0), np.array([2])).sum(axis=1)
    array([2, 2, 2])
    """
    if sizes is not None:
        drawn = rng.choice(sizes, size=n_open)
        return rng.permuted(np.arange(n_classes) < drawn[:, None], axis=1)
    mask = _bernoulli(n_open, n_classes, q, rng)
    empty = np.flatnonzero(~mask.any(axis=1))
    mask[empty, rng.integers(n_classes, size=len(empty))] = True
    return mask


def _bernoulli(n: int, c: int, q: float, rng: np.random.Generator) -> Mask:
    """(n, c) independent bool entries, True with probability q."""
    mask = np.empty((n, c), dtype=bool)
    for rows in row_blocks(n, c):
        block = mask[rows]
        np.less(rng.random(block.shape, dtype=np.float32), np.float32(q), out=block)
    return mask


def _draw_outside(
    mask: Mask, rows: NDArray[np.int64], rng: np.random.Generator
) -> NDArray[np.int64]:
    """Draw one label per row, uniform among those not in its set, by rejection."""
    label = rng.integers(mask.shape[1], size=len(rows))
    while len(again := np.flatnonzero(mask[rows, label])):
        label[again] = rng.integers(mask.shape[1], size=len(again))
    return label


def _draw_pool(pool: int | None, count: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """Draw rows of the auxiliary set without replacement; all in order if its size is not given."""
    if pool is None:
        return np.arange(count)
    if pool < count:
        raise InputError(
            f"pool={pool}: {count} open images are needed. Choose a smaller tau2 or a larger pool."
        )
    return rng.choice(pool, size=count, replace=False)


def _count(share: float, n0: int) -> int:
    """Compute floor(share * n0), safe from rounding: 0.29 * 100 is 29."""
    return int(share * n0 + 1e-9)


def _realised(sets: CandidateSets, kinds: NDArray[np.uint8]) -> dict[str, Any]:
    """Counts, shares of n, and mean set sizes that came out."""
    counts = np.bincount(kinds, minlength=3)
    totals = np.bincount(kinds, weights=sets.sizes, minlength=3)
    n = len(sets)
    n0 = int(counts[NORMAL] + counts[CLOSED])
    return {
        "n": n,
        "n0": n0,
        "n_classes": sets.n_classes,
        "counts": dict(zip(KINDS, counts.tolist(), strict=True)),
        "closed_share": int(counts[CLOSED]) / n,
        "open_share": int(counts[OPEN]) / n,
        "tau1_realised": int(counts[CLOSED]) / n0,
        "tau2_realised": int(counts[OPEN]) / n0,
        "mean_set_size": {
            kind: float(t / k) if k else None
            for kind, t, k in zip(KINDS, totals, counts, strict=True)
        },
    }


def _checked(
    y: Any, n_classes: int, *, q: float, tau1: float, tau2: float, seed: int, open_sets: str
) -> NDArray[np.int64]:
    """Check all arguments; return the true labels as int64."""
    for name, share in (("q", q), ("tau1", tau1), ("tau2", tau2)):
        number(share, name, 0, 1)
    if n_classes < 2:
        raise InputError(
            f"n_classes={n_classes!r}: expected at least 2, or there is no wrong label."
        )
    whole(seed, "seed")
    one_of(open_sets, OPEN_SETS, "open_sets")
    labels = np.asarray(y)
    if labels.ndim != 1 or labels.dtype.kind not in "iu" or not len(labels):
        raise InputError(
            f"y is {labels.dtype} of shape {labels.shape}: expected a vector of class indices "
            "(integers)."
        )
    if (wrong := (labels < 0) | (labels >= n_classes)).any():
        row = int(wrong.argmax())
        raise InputError(
            f"y, row {row}: class index {labels[row]} is outside 0..{n_classes - 1} "
            f"(n_classes={n_classes})."
        )
    return labels.astype(np.int64)
