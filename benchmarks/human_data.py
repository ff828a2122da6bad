"""Labels that people gave, and out-of-fold outputs of small models trained on them.

Folder CANDIDLY_DATA holds CIFAR-10 (both parts), SVHN and CIFAR-100 as `candidly data fetch` lays
them out; its folder `human` holds `cifar10n_first20000.npz` (three workers' labels of the first
20,000 training images of CIFAR-10, from CIFAR-10N), `cifar10h_counts.npz` (how many of about 51
people gave each label to each test image, from CIFAR-10H) and `clinc150.json.gz` (CLINC150).

The truth is CIFAR-10's own label; it evaluates only. Outputs are cached in a folder.
"""

from __future__ import annotations

import gzip
import json
import os
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np

from audit_data import out_of_fold

OPEN = {"svhn": "svhn", "cifar100": "cifar100"}
OPEN_SHARE = 0.2
CARELESS = (0.1, 0.15, 0.25)  # error rates of the simulated annotators of CLINC150
SIMILAR = 5  # intents that a careless annotator confuses with the right one
TEXTS = 4800  # of known intents; all out-of-scope texts come on top


@dataclass(frozen=True)
class Cell:
    """One cell of the benchmark.

    `people`: "cifar10n", "cifar10h" or "clinc150"; `answers` per row; `inputs`: "lite0", "pixels"
    or "text"; `variant`: "", "imbalanced", "300 rows", "svhn" or "cifar100" (a fifth of the images
    is replaced by images of that set, with the answers to random other rows).
    """

    people: str
    answers: int
    inputs: str
    variant: str = ""

    @property
    def name(self) -> str:
        return "-".join(
            str(part).replace(" ", "") for part in (self.people, self.answers, self.inputs)
        ) + (f"-{self.variant.replace(' ', '')}" if self.variant else "")


PLAIN = [
    Cell(people, k, inputs)
    for inputs in ("lite0", "pixels")
    for people, numbers in (("cifar10n", (1, 2, 3)), ("cifar10h", (1, 2, 3, 5)))
    for k in numbers
] + [Cell("cifar10n", 2, "lite0", "imbalanced"), Cell("cifar10n", 3, "lite0", "300 rows")]
WITH_OPEN = [
    Cell(people, k, "lite0", pool)
    for pool in OPEN
    for people in ("cifar10n", "cifar10h")
    for k in (1, 3)
]
TEXT = [Cell("clinc150", 3, "text")]
CELLS = {"plain": PLAIN, "open": WITH_OPEN, "text": TEXT}


@dataclass(frozen=True)
class Case:
    """Answers (n, k), the model's logits (n, c), and the truth: a class, or -1 for none."""

    answers: np.ndarray
    logits: np.ndarray
    truth: np.ndarray


def case(cell: Cell, seed: int, folder: Path) -> Case:
    """Make one cell, or read it from the cache."""
    path = folder / f"human-{cell.name}-seed{seed}.npz"
    if not path.exists():
        answers, truth, X, c = _clinc(seed) if cell.people == "clinc150" else _images(cell, seed)
        mask = np.zeros((len(truth), c), dtype=bool)
        mask[np.arange(len(truth))[:, None], answers] = True
        logits = out_of_fold(X, mask, seed, "proden")
        path.parent.mkdir(parents=True, exist_ok=True)
        np.savez(path.with_suffix(".tmp.npz"), answers=answers, logits=logits, truth=truth)
        os.replace(path.with_suffix(".tmp.npz"), path)
    with np.load(path) as arrays:
        return Case(**arrays)


def _human(name: str) -> Path:
    return Path(os.environ.get("CANDIDLY_DATA", ".")) / "human" / name


@cache
def _pixels(name: str, part: str) -> tuple[np.ndarray, np.ndarray]:
    from candidly.bench.sources.catalogue import load_set

    X, y = load_set(name, part)
    return X[:20000], y[:20000].astype(int)


@cache
def _inputs(name: str, part: str, inputs: str) -> np.ndarray:
    from candidly.data.encoders import encode

    X, _ = _pixels(name, part)
    if inputs == "pixels":
        return X.reshape(len(X), -1).astype(np.float32) / 255
    return encode(X).astype(np.float16).astype(np.float32)


def _images(cell: Cell, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, int]:
    """(answers, truth, X, classes): a random half of CIFAR-10N, or a draw of CIFAR-10H."""
    rng = np.random.default_rng([seed, 99])
    if cell.people == "cifar10n":
        with np.load(_human("cifar10n_first20000.npz")) as workers:
            every = np.stack([workers[f"worker{k}"] for k in (1, 2, 3)], axis=1)
        rows = np.sort(rng.permutation(20000)[:10000])
        answers = every[rows][:, : cell.answers].astype(int)
        part = "train"
    else:
        with np.load(_human("cifar10h_counts.npz")) as people:
            answers = drawn(people["counts"], cell.answers, rng)
        rows = np.arange(10000)
        part = "test"
    truth = _pixels("cifar10", part)[1][rows]
    X = _inputs("cifar10", part, cell.inputs)[rows]
    if cell.variant == "imbalanced":
        kept = rng.random(len(truth)) < np.geomspace(1, 0.05, 10)[truth]
        answers, truth, X = answers[kept], truth[kept], X[kept]
    if cell.variant == "300 rows":
        kept = rng.permutation(len(truth))[:300]
        answers, truth, X = answers[kept], truth[kept], X[kept]
    if cell.variant in OPEN:
        answers, truth, X = _with_open(answers, truth, X, OPEN[cell.variant], rng)
    return answers, truth, X, 10


def drawn(counts: np.ndarray, k: int, rng: np.random.Generator) -> np.ndarray:
    """Draw k answers per row without replacement: (n, k) from counts (n, c)."""
    c = counts.shape[1]
    return np.stack([rng.permutation(np.repeat(np.arange(c), row))[:k] for row in counts])


def _with_open(
    answers: np.ndarray, truth: np.ndarray, X: np.ndarray, pool: str, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Replace a fifth of the images by others, with the answers to random other rows."""
    others = _inputs(pool, "train", "lite0")[:4000]
    n = int(len(truth) * OPEN_SHARE)
    replaced = rng.permutation(len(truth))[:n]
    X = X.copy()
    X[replaced] = others[rng.permutation(len(others))[:n]]
    truth = truth.copy()
    truth[replaced] = -1
    answers = answers.copy()
    answers[replaced] = answers[rng.permutation(len(truth))[:n]]
    return answers, truth, X


def _clinc(seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, int]:
    """Texts of 150 intents and out-of-scope texts, each with three careless annotators.

    An annotator errs at a rate of their own, towards one of the intents most similar to the right
    one; an out-of-scope text gets one of the intents most similar to the text itself.
    """
    from sklearn.decomposition import TruncatedSVD
    from sklearn.feature_extraction.text import TfidfVectorizer

    with gzip.open(_human("clinc150.json.gz"), "rt") as file:
        data = json.load(file)
    rng = np.random.default_rng([seed, 99])
    known = [data["train"][i] for i in rng.permutation(len(data["train"]))[:TEXTS]]
    scope = [pair[0] for part in ("oos_train", "oos_val", "oos_test") for pair in data[part]]
    intents = sorted({pair[1] for pair in data["train"]})
    truth = np.r_[[intents.index(intent) for _, intent in known], np.full(len(scope), -1)]
    words = TfidfVectorizer(sublinear_tf=True, ngram_range=(1, 2))
    sparse = words.fit_transform([text for text, _ in known] + scope)
    X = TruncatedSVD(256, random_state=seed).fit_transform(sparse).astype(np.float32)
    X /= np.maximum(np.linalg.norm(X, axis=1, keepdims=True), 1e-9)
    centres = np.stack([X[truth == j].mean(axis=0) for j in range(len(intents))])
    likeness = X @ centres.T
    likeness[truth >= 0] = (centres @ centres.T)[truth[truth >= 0]]
    likeness[np.flatnonzero(truth >= 0), truth[truth >= 0]] = -np.inf
    similar = np.argsort(-likeness, axis=1)[:, :SIMILAR]
    picked = similar[np.arange(len(X))[:, None], rng.integers(SIMILAR, size=(len(X), 3))]
    wrong = (rng.random(picked.shape) < np.array(CARELESS)) | (truth < 0)[:, None]
    return np.where(wrong, picked, truth[:, None]), truth, X, len(intents)
