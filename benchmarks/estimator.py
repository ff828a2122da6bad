"""Numbers of docs/estimator.md, on digits: 0-5 are known, half of 6-9 is among the training rows.

python benchmarks/estimator.py reject     # rejected known test inputs; which score ranks best
python benchmarks/estimator.py epochs     # how long to train: digits, and folds of FILE.mat
python benchmarks/estimator.py audit      # what finds closed and open rows best
"""

from __future__ import annotations

import argparse
import dataclasses
from pathlib import Path
from typing import Any

import numpy as np

from candidly import PartialLabelClassifier
from candidly.bench.problems import Problem, digits, make_problem
from candidly.data import read_file
from candidly.data.inputs import fit_inputs
from candidly.metrics import auroc
from candidly.scores import doubt, energy, log_softmax
from candidly.training.estimator import CALIBRATION_FOLDS, split
from ooc_rates import cut

CELLS = ((0.1, 0.2, 0.4), (0.3, 0.2, 0.4), (0.3, 0.0, 0.0))  # q, tau1, tau2
ASKED = (0.02, 0.05, 0.1)
LENGTHS = (30, 60, 120, 240)  # epochs
KINDS = ("normal", "closed", "open")


def load(q: float, tau1: float, tau2: float, seed: int) -> tuple[Problem, np.ndarray]:
    """Make a problem, and inputs of no known class that it does not contain."""
    source = digits(seed)
    order = np.random.default_rng(seed).permutation(len(source.pool))
    half = len(order) // 2
    unseen = source.pool[order[:half]]
    pooled = dataclasses.replace(source, pool=source.pool[order[half:]])
    return make_problem(pooled, q=q, tau1=tau1, tau2=tau2, seed=seed), unseen


def reject(seeds: int) -> None:
    lost: dict[str, list[list[float]]] = {"training rows": [], "calibrate=1": [], "calibrate=5": []}
    ranks: dict[str, list[Any]] = {"energy": [], "largest probability": []}
    for cell in CELLS:
        for seed in range(seeds):
            problem, unknown = load(*cell, seed)
            model = fitted(problem, seed)
            unseen = model._unseen(
                problem.X,
                problem.candidates,
                seed,
                model.rates_,
                CALIBRATION_FOLDS,
                CALIBRATION_FOLDS,
            )
            normal = model.selection_.normal
            first = split(problem.candidates, CALIBRATION_FOLDS, seed) == 0
            seen = model.predictor_.logits(problem.X)
            used = (seen[normal], unseen[normal & first], unseen[normal])
            for name, logits in zip(lost, used, strict=True):
                model.known_energies_ = -np.sort(-energy(logits))
                lost[name].append(rejected(model, problem))
            logits = np.concatenate(
                [model.predictor_.logits(X) for X in (problem.test[0], unknown)]
            )
            strange = np.arange(len(logits)) >= len(problem.test[0])
            ranks["energy"].append(auroc(energy(logits), strange))
            ranks["largest probability"].append(auroc(doubt(log_softmax(logits)), strange))
            latest = {name: values[-1] for name, values in lost.items()}
            print(cell, seed, model.rates_, latest, flush=True)
    print(f"known test inputs that are rejected: mean (least to most), asked for {ASKED}")
    for name, values in lost.items():
        table = np.array(values)
        columns = zip(table.mean(0), table.min(0), table.max(0), strict=True)
        shown = [f"{mean:.3f} ({least:.3f} to {most:.3f})" for mean, least, most in columns]
        print(f"{name:14}" + "   ".join(shown))
    areas = "; ".join(f"{name} {np.mean(values):.3f}" for name, values in ranks.items())
    print(f"AUROC, known against unknown: {areas}")


def fitted(problem: Problem, seed: int) -> PartialLabelClassifier:
    model = PartialLabelClassifier("ooc", random_state=seed, calibrate=0)
    return model.fit(problem.X, problem.candidates)


def rejected(model: PartialLabelClassifier, problem: Problem) -> list[float]:
    """Return the shares of the known test inputs that are rejected."""
    answers = [model.predict(problem.test[0], reject=share) for share in ASKED]
    return [float(np.mean([label is None for label in labels])) for labels in answers]


def epochs(seeds: int, files: list[Path]) -> None:
    """Print the accuracy of several lengths on a quarter of the training rows, not on test rows."""
    print("epochs", LENGTHS)
    for q, tau1, tau2 in CELLS:
        rows = []
        for seed in range(seeds):
            problem = make_problem(cut(digits(seed), seed), q=q, tau1=tau1, tau2=tau2, seed=seed)
            rows.append(
                [accuracy(n, seed, problem.X, problem.candidates, problem.test) for n in LENGTHS]
            )
        print(
            f"digits, q, tau1, tau2 = {q, tau1, tau2}:", np.mean(rows, axis=0).round(3), flush=True
        )
    for file in files:
        data = read_file(file)
        X = fit_inputs(data)[1]
        fold = split(data.sets, 2, 0)
        rows = []
        for k in range(2):
            held = fold == k
            test = (X[held], data.truth[held])
            rows.append([accuracy(n, k, X[~held], data.sets[~held], test) for n in LENGTHS])
        print(f"{file.name}, two folds:", np.mean(rows, axis=0).round(3), flush=True)


def accuracy(
    length: int, seed: int, X: np.ndarray, sets: Any, test: tuple[np.ndarray, np.ndarray]
) -> float:
    model = PartialLabelClassifier("ooc", epochs=length, calibrate=0, random_state=seed).fit(
        X, sets
    )
    return float(np.mean(model.predict_proba(test[0]).argmax(1) == test[1]))


def audit(seeds: int) -> None:
    for cell in CELLS:
        rows = []
        for seed in range(seeds):
            problem, _ = load(*cell, seed)
            model = fitted(problem, seed)
            groups = model.selection_
            selected = np.select([groups.closed, groups.open], KINDS[1:], KINDS[0])
            audited = model.audit(problem.X, problem.candidates, cv=5)["verdict"].to_numpy()
            truth = np.array(KINDS)[problem.truth.kinds]
            scores = [f1(found, truth, k) for found in (selected, audited) for k in KINDS[1:]]
            rows.append(scores)
        means = np.mean(rows, axis=0).round(3)
        f1s = f"F1 of closed, open rows: selection_ {means[:2]}, audit {means[2:]}"
        print(f"q, tau1, tau2 = {cell}: {f1s}", flush=True)


def f1(found: np.ndarray, truth: np.ndarray, kind: str) -> float:
    """Return 2 hits / (found + true); 1 where there are none and none is found."""
    total = np.sum(found == kind) + np.sum(truth == kind)
    return float(2 * np.sum((found == kind) & (truth == kind)) / total) if total else 1.0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=["reject", "epochs", "audit"])
    parser.add_argument("files", nargs="*", type=Path, metavar="FILE.mat")
    parser.add_argument("--seeds", type=int, default=4)
    given = parser.parse_args()
    if given.what == "epochs":
        epochs(given.seeds, given.files)
    else:
        {"reject": reject, "audit": audit}[given.what](given.seeds)
