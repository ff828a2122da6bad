"""Benchmark problems: corrupted candidate sets, open examples among the known, and a test set."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from candidly.blocks import row_blocks
from candidly.corruption import corrupt
from candidly.kinds import CLOSED, NORMAL, OPEN, Rates, Selection, Truth
from candidly.sets import CandidateSets
from candidly.storage.store import fingerprint


@dataclass(frozen=True)
class Source:
    """Clean data.

    Parameters
    ----------
    X, y : array
        Known examples to train on, and their classes from 0.
    pool : array
        Open examples.
    X_test, y_test : array
        Test examples of the known classes.
    classes : tuple of str
        Names of the known classes.
    images : dict
        How many images of each set were read to train on.
    """

    X: np.ndarray
    y: np.ndarray
    pool: np.ndarray
    X_test: np.ndarray
    y_test: np.ndarray
    classes: tuple[str, ...]
    images: dict[str, int] = field(default_factory=dict)

    @cached_property
    def hashes(self) -> dict[str, str]:
        """SHA-256 of what examples are drawn from."""
        return {"X": fingerprint(self.X), "pool": fingerprint(self.pool)}


@dataclass(frozen=True)
class Problem:
    """What a method trains on (`X`, `candidates`), and what only metrics see (`truth`, `test`)."""

    X: np.ndarray
    candidates: CandidateSets
    truth: Truth
    test: tuple[np.ndarray, np.ndarray]

    @property
    def rates(self) -> Rates:
        """The true shares of closed and open examples."""
        return Rates(self.truth.manifest["closed_share"], self.truth.manifest["open_share"])


def make_problem(
    source: Source, *, q: float, tau1: float, tau2: float, seed: int, **options: Any
) -> Problem:
    """Corrupt a source; see `candidly.corrupt` for the parameters and `options`."""
    candidates, truth = corrupt(
        source.y,
        len(source.classes),
        q=q,
        tau1=tau1,
        tau2=tau2,
        seed=seed,
        pool=len(source.pool),
        **options,
    )
    truth.manifest.update(sources=source.hashes, images=source.images)
    n_known = len(source.X)
    rows = truth.source
    known = rows < n_known
    X = np.empty((len(rows), *source.X.shape[1:]), dtype=source.X.dtype)
    X[known] = source.X[rows[known]]
    X[~known] = source.pool[rows[~known] - n_known]
    return Problem(X, candidates, truth, (source.X_test, source.y_test))


def reduced(problem: Problem, components: int) -> Problem:
    """Reduce the features by a PCA, fitted on the training rows without augmentation.

    Parameters
    ----------
    problem : Problem
        Its `X` has the shape (n, d), or (n, k, d) with k versions of each row, the first of which
        is not augmented.
    components : int
        Number of features to keep.
    """
    from sklearn.decomposition import PCA

    X = problem.X
    plain = np.asarray(X if X.ndim == 2 else X[:, 0], dtype=np.float32)
    pca = PCA(components, svd_solver="covariance_eigh").fit(plain)

    def project(X: np.ndarray) -> np.ndarray:
        projected = np.empty((*X.shape[:-1], components), dtype=np.float32)
        for rows in row_blocks(len(X), math.prod(X.shape[1:])):
            flat = np.asarray(X[rows], dtype=np.float32).reshape(-1, X.shape[-1])
            projected[rows] = pca.transform(flat).reshape(projected[rows].shape)
        return projected

    X_test, y_test = problem.test
    return replace(problem, X=project(X), test=(project(X_test), y_test))


def supervised_problem(problem: Problem) -> Problem:
    """Keep the known examples with their true labels alone: what is possible without ambiguity."""
    truth = problem.truth
    known = truth.kinds != OPEN
    labels = truth.labels[known]
    kinds = np.full(len(labels), NORMAL, dtype=truth.kinds.dtype)
    manifest = {**truth.manifest, "closed_share": 0.0, "open_share": 0.0}
    clean = Truth(labels, kinds, truth.source[known], manifest)
    candidates = CandidateSets(labels, classes=problem.candidates.n_classes)
    return Problem(problem.X[known], candidates, clean, problem.test)


def true_selection(truth: Truth) -> Selection:
    """Make the selection of an oracle."""
    return Selection(*(truth.kinds == kind for kind in (NORMAL, CLOSED, OPEN)))


def digits(seed: int, known: int = 6) -> Source:
    """Load scikit-learn's 8 x 8 digits as features.

    Classes below `known` are known, the others are open. Three tenths of the known examples are the
    test set.
    """
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    X, y = load_digits(return_X_y=True)
    X = X.astype(np.float32)
    mask = y < known
    X_train, X_test, y_train, y_test = train_test_split(
        X[mask], y[mask], test_size=0.3, random_state=seed, stratify=y[mask]
    )
    return Source(X_train, y_train, X[~mask], X_test, y_test, tuple(map(str, range(known))))
