"""Benchmark data: candidate sets made from true labels, with out-of-candidate examples of both kinds (Section 5.1)."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from candidly.checks import number, one_of, whole
from candidly.errors import InputError
from candidly.kinds import CLOSED, KINDS, NORMAL, OPEN, Truth
from candidly.sets import CandidateSets

OPEN_SETS = ("uniform", "matched")

_BLOCK = 1 << 20  # random numbers drawn together: bounds the memory beside the mask itself

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
    """Make candidate sets for the n0 true labels `y`, and add open examples; the rows come back shuffled.

    q: each wrong label joins a set independently with this probability.
    tau1: floor(tau1 * n0) known examples lose their true label to a wrong one.
    tau2: floor(tau2 * n0) open examples, from an auxiliary set of images, are added.
    open_sets: "uniform": their sets are Bernoulli(q), never empty; "matched": they are as large as the known ones.
    pool: how many auxiliary images there are to draw from, without replacement; None: exactly as many as needed.
    """
    y = _checked(y, n_classes, q=q, tau1=tau1, tau2=tau2, seed=seed, open_sets=open_sets)
    rng = np.random.default_rng(seed)
    n0, n_closed, n_open = len(y), _count(tau1, len(y)), _count(tau2, len(y))
    mask, closed = misplace(flip(y, n_classes, q, rng), y, n_closed, rng)
    known_sizes = mask.sum(axis=1) if open_sets == "matched" else None
    open_mask = intrude(n_open, n_classes, q, rng, known_sizes)

    kinds = np.repeat(np.array([NORMAL, OPEN], dtype=np.uint8), [n0, n_open])
    kinds[closed] = CLOSED
    labels = np.concatenate([y, np.full(n_open, -1)])
    source = np.concatenate([np.arange(n0), n0 + _draw_pool(pool, n_open, rng)])

    order = rng.permutation(n0 + n_open)
    sets = CandidateSets(np.concatenate([mask, open_mask])[order], classes=n_classes)
    asked = {
        "seed": int(seed),
        "q": float(q),
        "tau1": float(tau1),
        "tau2": float(tau2),
        "open_sets": open_sets,
    }
    manifest = (
        asked
        | {
            "pool": None if pool is None else int(pool),
            "y_sha256": hashlib.sha256(y.tobytes()).hexdigest(),
        }
        | _realised(sets, kinds[order])
    )
    return sets, Truth(labels[order], kinds[order], source[order], manifest)


def flip(y: NDArray[np.int64], n_classes: int, q: float, rng: np.random.Generator) -> Mask:
    """(n, c) candidate sets: the true label, and each wrong one with probability q."""
    mask = _bernoulli(len(y), n_classes, q, rng)
    mask[np.arange(len(y)), y] = True
    return mask


def misplace(
    mask: Mask, y: NDArray[np.int64], count: int, rng: np.random.Generator
) -> tuple[Mask, NDArray[np.int64]]:
    """Take the true label out of `count` sets and put a uniformly drawn non-candidate in: (new mask, those rows).

    A full set has no non-candidate, so the rows are chosen among the others.
    """
    eligible = np.flatnonzero(~mask.all(axis=1))
    if count > len(eligible):
        raise InputError(
            f"{count} sets are to lose their true label, but {len(mask) - len(eligible)} of {len(mask)} hold every "
            f"class already, which leaves {len(eligible)}. Choose a smaller tau1 or q."
        )
    rows = rng.choice(eligible, size=count, replace=False)
    into = _draw_outside(mask, rows, rng)
    mask = mask.copy()
    mask[rows, y[rows]] = False
    mask[rows, into] = True
    return mask, rows


def intrude(
    n_open: int,
    n_classes: int,
    q: float,
    rng: np.random.Generator,
    sizes: NDArray[Any] | None = None,
) -> Mask:
    """(n_open, c) sets for examples of no known class.

    Without `sizes` each label joins with probability q, and an empty set gets one uniform label. With `sizes`, a set's
    size is drawn from them, with replacement, and the set is a uniform subset of that size.
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
    for block in _blocks(mask):
        np.less(rng.random(block.shape, dtype=np.float32), np.float32(q), out=block)
    return mask


def _blocks(mask: Mask) -> Iterator[Mask]:
    """Views of consecutive rows, about `_BLOCK` entries each."""
    step = max(1, _BLOCK // mask.shape[1])
    return (mask[start : start + step] for start in range(0, len(mask), step))


def _draw_outside(
    mask: Mask, rows: NDArray[np.int64], rng: np.random.Generator
) -> NDArray[np.int64]:
    """For each row one label, uniform among those not in its set: draw any, and again while it is in."""
    label = rng.integers(mask.shape[1], size=len(rows))
    while len(again := np.flatnonzero(mask[rows, label])):
        label[again] = rng.integers(mask.shape[1], size=len(again))
    return label


def _draw_pool(pool: int | None, count: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """Rows of the auxiliary set, without replacement; all of them in order if its size is not given."""
    if pool is None:
        return np.arange(count)
    if pool < count:
        raise InputError(
            f"pool={pool}: {count} open images are needed. Choose a smaller tau2 or a larger pool."
        )
    return rng.choice(pool, size=count, replace=False)


def _count(share: float, n0: int) -> int:
    """floor(share * n0), safe from rounding: 0.29 * 100 is 29."""
    return int(share * n0 + 1e-9)


def _realised(sets: CandidateSets, kinds: NDArray[np.uint8]) -> dict[str, Any]:
    """Counts, shares of n, and mean set sizes that came out."""
    counts = np.bincount(kinds, minlength=3)
    totals = np.bincount(kinds, weights=sets.sizes, minlength=3)
    n, n0 = len(sets), int(counts[NORMAL] + counts[CLOSED])
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
    """The true labels as an int64 vector, after all arguments have been looked at."""
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
            f"y is {labels.dtype} of shape {labels.shape}: expected a vector of class indices (integers)."
        )
    if (wrong := (labels < 0) | (labels >= n_classes)).any():
        row = int(wrong.argmax())
        raise InputError(
            f"y, row {row}: class index {labels[row]} is outside 0..{n_classes - 1} (n_classes={n_classes})."
        )
    return labels.astype(np.int64)
