"""Does training gain from votes? Classifiers on CIFAR-10N, and on six careless annotators.

    python benchmarks/human_train.py --out results/human_train.jsonl     # compute what is missing
    python benchmarks/human_train.py --show results/human_train.jsonl

CIFAR-10N: an MLP on features of the frozen encoder, trained on a random half of the first 20,000
images with the labels of one, two or three workers; accuracy on CIFAR-10's own labels of the other
half. Digits: 1,000 rows, six annotators of whom one answers at random; accuracy on the other rows.
All methods train the same net for as long; `candid` and `posterior` are given the answers, PRODEN
their union, "majority" the label with most votes, "true labels" the truth.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import numpy as np
import torch

import candidly
from candidly.bench.runner import machine
from candidly.storage.provenance import versions
from candidly.tensors.nets import build_net
from human_data import _human, _inputs, _pixels

SEEDS = range(3)
ERRORS = (0.3, 0.5)  # of the annotators of digits


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path)
    parser.add_argument("--show", type=Path)
    given = parser.parse_args()
    torch.set_num_threads(1)
    if given.out is not None:
        run(given.out)
    if (shown := given.show or given.out) is not None:
        print(show(shown))


def run(out: Path) -> None:
    lines = out.read_text().splitlines() if out.exists() else []
    done = {(line["cell"], line["seed"]) for line in map(json.loads, lines)}
    cells = {f"CIFAR-10N, {k} worker(s)": (_cifar, k, 20) for k in (1, 2, 3)}
    cells |= {f"digits, six annotators, {e:.0%} errors": (_digits, e, 60) for e in ERRORS}
    for seed in SEEDS:
        for name, (make, what, epochs) in cells.items():
            if (name, seed) in done:
                continue
            began = time.perf_counter()
            accuracy = measure(*make(what, seed), seed, epochs)
            line = {
                "cell": name,
                "seed": seed,
                "accuracy": accuracy,
                "made": versions() | machine(),
            }
            line["seconds"] = round(time.perf_counter() - began, 1)
            with out.open("a") as file:
                file.write(json.dumps(line) + "\n")
            print(name, seed, accuracy, flush=True)


def measure(X, answers, truth, X_test, y_test, seed, epochs) -> dict[str, float]:
    """Accuracy of each method on the test rows."""
    c = answers.n_classes
    single = candidly.CandidateSets(np.eye(c, dtype=bool)[answers.majority()], answers.classes)
    certain = candidly.CandidateSets(np.eye(c, dtype=bool)[truth], answers.classes)
    tasks = {
        "candid": (answers, "candid"),
        "posterior": (answers, "posterior"),
        "majority": (single, "proden"),
        "PRODEN": (answers.to_sets(), "proden"),
        "true labels": (certain, "proden"),
    }
    found = {}
    for name, (labels, method) in tasks.items():
        net = build_net("mlp", X.shape[1:], c, seed=seed)
        fitted = candidly.fit(net, X, labels, method, epochs=epochs, seed=seed, progress=False)
        found[name] = float((fitted.predictor.logits(X_test).argmax(axis=1) == y_test).mean())
    return found


def _cifar(k: int, seed: int):
    with np.load(_human("cifar10n_first20000.npz")) as workers:
        every = np.stack([workers[f"worker{j}"] for j in (1, 2, 3)], axis=1).astype(int)
    y = _pixels("cifar10", "train")[1]
    X = _inputs("cifar10", "train", "lite0")
    order = np.random.default_rng([seed, 5]).permutation(20000)
    train, test = order[:10000], order[10000:]
    return X[train], candidly.Answers(every[train][:, :k], 10), y[train], X[test], y[test]


def _digits(error: float, seed: int):
    from sklearn.datasets import load_digits

    X, y = load_digits(return_X_y=True)
    X = (X / 16).astype(np.float32)
    rng = np.random.default_rng([seed, 5])
    order = rng.permutation(len(y))
    train, test = order[:1000], order[1000:]
    near = (y[train][:, None] + rng.choice([-1, 1], size=(1000, 6))) % 10
    given = np.where(rng.random((1000, 6)) < error, near, y[train][:, None])
    given[:, 0] = rng.integers(10, size=1000)
    return X[train], candidly.Answers(given, 10), y[train], X[test], y[test]


def show(path: Path) -> str:
    """Make the table of docs/audit.md: mean and standard deviation over seeds, in percent."""
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    methods = list(lines[0]["accuracy"])
    rows = ["| accuracy, % | " + " | ".join(methods) + " |", "|---|" + "---|" * len(methods)]
    for name in dict.fromkeys(line["cell"] for line in lines):
        group = [line["accuracy"] for line in lines if line["cell"] == name]
        values = [[100 * accuracy[method] for accuracy in group] for method in methods]
        cells = [f"{np.mean(v):.1f} ± {np.std(v, ddof=1):.1f}" for v in values]
        rows.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(rows)


if __name__ == "__main__":
    main()
