"""Problems to audit: candidate sets with known truth, and out-of-fold outputs of a small model trained on the sets.

The model never predicts a row that it was trained on, and nothing here but `kinds` and `labels` knows the truth: they
only evaluate. Outputs are kept in a cache folder, so that an audit can be changed and measured again within seconds.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import numpy as np

from candidly.bench.problems import Problem, Source, digits, make_problem
from candidly.corruption import misplace
from candidly.kinds import CLOSED, NORMAL, OPEN
from candidly.sets import CandidateSets

QS = (0.1, 0.3, 0.5)
TAUS = ((0.0, 0.0), (0.1, 0.1), (0.2, 0.4), (0.3, 0.6), (0.3, 0.0), (0.0, 0.6))
ROWS = 5000  # known and open rows together, where there are that many
WIDTH = 64  # of encoded features after the PCA
REAL = {
    "lost": "lost.mat",
    "msrcv2": "MSRCv2.mat",
}  # their candidate sets are people's and captions', not drawn by q


@dataclass(frozen=True)
class Case:
    """What an audit gets (candidates, logits, features), and what it is judged by (kinds, labels)."""

    candidates: np.ndarray
    logits: np.ndarray
    features: np.ndarray
    kinds: np.ndarray
    labels: np.ndarray


def cells(names: list[str]) -> list[tuple[str, float, tuple[float, float]]]:
    """(data, q, tau) of the grid; data with real candidate sets have no q (0 stands for it)."""
    return [
        (name, q, tau) for name in names for q in ((0.0,) if name in REAL else QS) for tau in TAUS
    ]


def case(
    name: str, q: float, tau: tuple[float, float], seed: int, folder: Path, model: str = "proden"
) -> Case:
    """One cell of the grid, from the cache if it is there."""
    path = folder / f"{name}-{model}-q{q:g}-tau{tau[0]:g},{tau[1]:g}-seed{seed}.npz"
    if not path.exists():
        made = _make(name, q, tau, seed, model)
        path.parent.mkdir(parents=True, exist_ok=True)
        np.savez(path.with_suffix(".tmp.npz"), **vars(made))
        os.replace(path.with_suffix(".tmp.npz"), path)
    with np.load(path) as arrays:
        return Case(**arrays)


def _make(name: str, q: float, tau: tuple[float, float], seed: int, model: str) -> Case:
    if name in REAL:
        X, mask, kinds, labels = _real(name, tau, seed)
    else:
        problem = _drawn(name, q, tau, seed)
        X, mask = (
            problem.X.reshape(len(problem.X), -1).astype(np.float32),
            problem.candidates.dense(),
        )
        kinds, labels = problem.truth.kinds, problem.truth.labels
    logits = out_of_fold(X, mask, seed, model)
    return Case(mask, logits, X, kinds, labels)


def _drawn(name: str, q: float, tau: tuple[float, float], seed: int) -> Problem:
    return make_problem(SOURCES[name](tau[1], seed), q=q, tau1=tau[0], tau2=tau[1], seed=seed)


def _digits(_tau2: float, seed: int) -> Source:
    """All rows of the known digits: no test set is needed."""
    source = digits(seed)
    X, y = np.concatenate([source.X, source.X_test]), np.concatenate([source.y, source.y_test])
    return Source(X, y, source.pool, source.X_test, source.y_test, source.classes)


def _images(known: str, pool: str) -> Callable[[float, int], Source]:
    def load(tau2: float, seed: int) -> Source:
        from candidly.bench.sources.catalogue import load_set

        (X, y), (aux, _) = load_set(known, "train"), load_set(pool, "train")
        return _some(X.reshape(len(X), -1), y, aux.reshape(len(aux), -1), tau2, seed, 255)

    return load


def _encoded(known: str, pool: str) -> Callable[[float, int], Source]:
    """Features of the frozen encoder, reduced by a PCA of the rows that are used (no label is needed for it)."""

    @cache
    def features() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        from candidly.bench.sources.catalogue import load_set
        from candidly.data.encoders import encode

        (X, y), (aux, _) = load_set(known, "train"), load_set(pool, "train")
        return encode(X), y, encode(aux)

    def load(tau2: float, seed: int) -> Source:
        source = _some(*features(), tau2, seed, 1)
        axes = np.linalg.eigh(np.cov(source.X.T))[1][:, -WIDTH:].astype(np.float32)
        return replace(
            source, X=source.X @ axes, pool=source.pool @ axes, X_test=source.X_test @ axes
        )

    return load


def _some(
    X: np.ndarray, y: np.ndarray, pool: np.ndarray, tau2: float, seed: int, scale: float
) -> Source:
    """As many known rows as make `ROWS` with their open ones, other ones for each seed."""
    rng = np.random.default_rng([seed, 7])
    n0 = int(ROWS / (1 + tau2))
    rows, others = rng.permutation(len(X))[:n0], rng.permutation(len(pool))[:ROWS]
    X, y, pool = (
        X[rows].astype(np.float32) / scale,
        y[rows],
        pool[others].astype(np.float32) / scale,
    )
    return Source(X, y, pool, X[:1], y[:1], tuple(map(str, range(int(y.max()) + 1))))


SOURCES: dict[str, Callable[[float, int], Source]] = {
    "digits": _digits,
    "fashion+mnist": _images("fashion-mnist", "mnist"),
    "cifar10+svhn": _encoded("cifar10", "svhn"),
    "cifar10+cifar100": _encoded("cifar10", "cifar100"),
}


def _real(
    name: str, tau: tuple[float, float], seed: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """A table with its own candidate sets: some classes are held out as the open world, some sets lose their truth.

    A row of a held-out class keeps its other candidates; without any it is dropped. The closed rows are made by
    `misplace`, the others stay as they were collected.
    """
    from scipy.io import loadmat

    table = loadmat(Path(os.environ.get("CANDIDLY_DATA", ".")) / "tables" / REAL[name])
    X, target, sets = (
        table["data"],
        table["target"].toarray().T > 0,
        table["partial_target"].toarray().T > 0,
    )
    rng = np.random.default_rng([seed, 11])
    used = np.flatnonzero(target.sum(axis=0) >= 10)
    held = rng.permutation(used)[: len(used) // 3]
    kept = np.setdiff1d(used, held)
    y = target.argmax(axis=1)
    mask, is_open = sets[:, kept], np.isin(y, held)
    known = np.flatnonzero(np.isin(y, kept))
    intruders = rng.permutation(np.flatnonzero(is_open & mask.any(axis=1)))
    if len(intruders) < tau[1] * len(known):
        known = rng.permutation(known)[: int(len(intruders) / tau[1])]
    intruders = intruders[: int(tau[1] * len(known))]
    rows = np.concatenate([known, intruders])
    labels = np.where(is_open[rows], -1, np.searchsorted(kept, y[rows]))
    kinds = np.where(labels < 0, OPEN, NORMAL).astype(np.uint8)
    mask, n0 = mask[rows], len(known)
    mask[:n0], closed = misplace(mask[:n0], labels[:n0], int(tau[0] * n0), rng)
    kinds[closed] = CLOSED
    order = rng.permutation(len(rows))
    return X[rows][order].astype(np.float32), mask[order], kinds[order], labels[order]


def out_of_fold(
    X: np.ndarray, mask: np.ndarray, seed: int, method: str, folds: int = 5, epochs: int = 20
) -> np.ndarray:
    """(n, c) logits of an MLP: each row's by a model that was trained on the other folds."""
    import torch

    import candidly
    from candidly.tensors.nets import build_net

    torch.set_num_threads(1)
    logits = np.empty(mask.shape, dtype=np.float32)
    fold = np.random.default_rng([seed, 13]).permutation(len(X)) % folds
    for k in range(folds):
        train, held = fold != k, fold == k
        net = build_net("mlp", X.shape[1:], mask.shape[1], seed=seed)
        sets = CandidateSets(mask[train], classes=mask.shape[1])
        fitted = candidly.fit(net, X[train], sets, method, epochs=epochs, seed=seed, progress=False)
        logits[held] = fitted.predictor.logits(X[held])
    return logits
