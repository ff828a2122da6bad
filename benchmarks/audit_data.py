"""Problems to audit: candidate sets with known truth, and out-of-fold outputs of a small model.

The model never predicts a row that it was trained on, and only `kinds` and `labels` know the truth:
they are for evaluation. Outputs are cached in a folder, so that an audit can be changed and
measured again within seconds.
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
# Their candidate sets come from people and captions, and are not drawn by q.
REAL = {"lost": "lost.mat", "msrcv2": "MSRCv2.mat"}


@dataclass(frozen=True)
class Case:
    """What an audit gets (candidates, logits, features), and its truth (kinds, labels)."""

    candidates: np.ndarray
    logits: np.ndarray
    features: np.ndarray
    kinds: np.ndarray
    labels: np.ndarray


def cells(names: list[str]) -> list[tuple[str, float, tuple[float, float]]]:
    """List (data, q, tau) of the grid; q is 0 for data with real candidate sets."""
    found = []
    for name in names:
        qs = (0.0,) if name in REAL else QS
        found += [(name, q, tau) for q in qs for tau in TAUS]
    return found


def case(
    name: str, q: float, tau: tuple[float, float], seed: int, folder: Path, model: str = "proden"
) -> Case:
    """Make one cell of the grid, or read it from the cache."""
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
        X = problem.X.reshape(len(problem.X), -1).astype(np.float32)
        mask = problem.candidates.dense()
        kinds = problem.truth.kinds
        labels = problem.truth.labels
    logits = out_of_fold(X, mask, seed, model)
    return Case(mask, logits, X, kinds, labels)


def _drawn(name: str, q: float, tau: tuple[float, float], seed: int) -> Problem:
    return make_problem(SOURCES[name](tau[1], seed), q=q, tau1=tau[0], tau2=tau[1], seed=seed)


def _digits(_tau2: float, seed: int) -> Source:
    """Take all rows of the known digits: no test set is needed."""
    source = digits(seed)
    X = np.concatenate([source.X, source.X_test])
    y = np.concatenate([source.y, source.y_test])
    return Source(X, y, source.pool, source.X_test, source.y_test, source.classes)


def _images(known: str, pool: str) -> Callable[[float, int], Source]:
    def load(tau2: float, seed: int) -> Source:
        from candidly.bench.sources.catalogue import load_set

        (X, y), (aux, _) = load_set(known, "train"), load_set(pool, "train")
        return _some(X.reshape(len(X), -1), y, aux.reshape(len(aux), -1), tau2, seed, 255)

    return load


def _encoded(known: str, pool: str) -> Callable[[float, int], Source]:
    """Encode images with the frozen encoder, and reduce the rows that are used by their PCA."""

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
    """Draw as many known rows as make `ROWS` with their open ones."""
    rng = np.random.default_rng([seed, 7])
    n_known = int(ROWS / (1 + tau2))
    rows = rng.permutation(len(X))[:n_known]
    others = rng.permutation(len(pool))[:ROWS]
    X = X[rows].astype(np.float32) / scale
    y = y[rows]
    pool = pool[others].astype(np.float32) / scale
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
    """Read a table with its own candidate sets; hide some classes, and make some rows closed.

    Rows of hidden classes are open. They keep their other candidates, and are dropped without any.
    `misplace` makes the closed rows; the others stay as they were collected.
    """
    from scipy.io import loadmat

    table = loadmat(Path(os.environ.get("CANDIDLY_DATA", ".")) / "tables" / REAL[name])
    X = table["data"]
    target = table["target"].toarray().T > 0
    sets = table["partial_target"].toarray().T > 0
    rng = np.random.default_rng([seed, 11])
    used = np.flatnonzero(target.sum(axis=0) >= 10)
    hidden = rng.permutation(used)[: len(used) // 3]
    classes = np.setdiff1d(used, hidden)
    y = target.argmax(axis=1)
    mask = sets[:, classes]
    is_open = np.isin(y, hidden)
    known = np.flatnonzero(np.isin(y, classes))
    opened = rng.permutation(np.flatnonzero(is_open & mask.any(axis=1)))
    if len(opened) < tau[1] * len(known):
        known = rng.permutation(known)[: int(len(opened) / tau[1])]
    opened = opened[: int(tau[1] * len(known))]
    rows = np.concatenate([known, opened])
    labels = np.where(is_open[rows], -1, np.searchsorted(classes, y[rows]))
    kinds = np.where(labels < 0, OPEN, NORMAL).astype(np.uint8)
    mask = mask[rows]
    n_known = len(known)
    mask[:n_known], closed = misplace(mask[:n_known], labels[:n_known], int(tau[0] * n_known), rng)
    kinds[closed] = CLOSED
    order = rng.permutation(len(rows))
    return X[rows][order].astype(np.float32), mask[order], kinds[order], labels[order]


def out_of_fold(
    X: np.ndarray, mask: np.ndarray, seed: int, method: str, folds: int = 5, epochs: int = 20
) -> np.ndarray:
    """Return (n, c) logits of an MLP, each row's by a model trained on the other folds."""
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
