"""Benchmark problems: known examples with corrupted candidate sets, open examples among them, and a test set."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from candidly.corruption import corrupt
from candidly.kinds import CLOSED, NORMAL, OPEN, Rates, Selection, Truth
from candidly.sets import CandidateSets
from candidly.storage.store import fingerprint

BLOCK = 4096  # rows projected together


@dataclass(frozen=True)
class Source:
    """Clean data: known examples to train on, a pool of open ones, and test examples of the known classes."""

    X: np.ndarray
    y: np.ndarray
    pool: np.ndarray
    X_test: np.ndarray
    y_test: np.ndarray
    classes: tuple[str, ...]
    images: dict[str, int] = field(default_factory=dict)  # that were read of each set to train on

    @cached_property
    def hashes(self) -> dict[str, str]:
        """SHA-256 of what examples are drawn from."""
        return {"X": fingerprint(self.X), "pool": fingerprint(self.pool)}


@dataclass(frozen=True)
class Problem:
    """What a method trains on (`X`, `candidates`), and what only the metrics see (`truth`, `test`)."""

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
    """Corrupt a source."""
    settings = {
        "q": q,
        "tau1": tau1,
        "tau2": tau2,
        "seed": seed,
        "pool": len(source.pool),
        **options,
    }
    candidates, truth = corrupt(source.y, len(source.classes), **settings)
    truth.manifest.update(sources=source.hashes, images=source.images)
    n0, rows = len(source.X), truth.source
    X = np.empty((len(rows), *source.X.shape[1:]), dtype=source.X.dtype)
    X[rows < n0], X[rows >= n0] = source.X[rows[rows < n0]], source.pool[rows[rows >= n0] - n0]
    return Problem(X, candidates, truth, (source.X_test, source.y_test))


def reduced(problem: Problem, components: int) -> Problem:
    """The same problem, its features reduced by a PCA that is fitted on the training rows as they are."""
    plain = np.asarray(problem.X if problem.X.ndim == 2 else problem.X[:, 0], dtype=np.float32)
    mean = plain.mean(0)
    covariance = (plain - mean).T @ (plain - mean)
    axes = np.linalg.eigh(covariance)[1][:, : -components - 1 : -1].astype(
        np.float32
    )  # the largest come last

    def project(X: np.ndarray) -> np.ndarray:
        blocks = [
            (np.asarray(X[i : i + BLOCK], np.float32) - mean) @ axes
            for i in range(0, len(X), BLOCK)
        ]
        return np.concatenate(blocks)

    return replace(problem, X=project(problem.X), test=(project(problem.test[0]), problem.test[1]))


def supervised_problem(problem: Problem) -> Problem:
    """The same known examples with their true labels alone: what could be reached without any ambiguity."""
    known = problem.truth.kinds != OPEN
    truth = problem.truth
    labels = truth.labels[known]
    manifest = {**truth.manifest, "closed_share": 0.0, "open_share": 0.0}
    clean = Truth(
        labels, np.full(len(labels), NORMAL, dtype=truth.kinds.dtype), truth.source[known], manifest
    )
    return Problem(
        problem.X[known],
        CandidateSets(labels, classes=problem.candidates.n_classes),
        clean,
        problem.test,
    )


def true_selection(truth: Truth) -> Selection:
    """The selection an oracle would make."""
    return Selection(*(truth.kinds == kind for kind in (NORMAL, CLOSED, OPEN)))


def digits(seed: int, known: int = 6) -> Source:
    """scikit-learn's 8 x 8 digits as features: classes below `known` are known, the others are the open world.

    Three tenths of the known examples are the test set.
    """
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    X, y = load_digits(return_X_y=True)
    X, mask = X.astype(np.float32), y < known
    X_train, X_test, y_train, y_test = train_test_split(
        X[mask], y[mask], test_size=0.3, random_state=seed, stratify=y[mask]
    )
    return Source(X_train, y_train, X[~mask], X_test, y_test, tuple(map(str, range(known))))
