"""What `candidly fit FILE` says of small files whose truth is known, and how long it takes.

    python benchmarks/fit_file.py                                  # this version
    PYTHONPATH=OLD/src python benchmarks/fit_file.py               # another one, for comparison

The files are made from data that scikit-learn carries: digits as vectors and as pixels, 0-5 known
and 6-9 open, and wines with three annotators who err in 10, 20 and 30 % of their answers.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.datasets import load_wine

from candidly.bench.problems import digits, make_problem

COLUMNS = ("file", "epochs", "outside: true", "estimate (90 %)", "accuracy", "AP", "seconds")


def write_digits(path: Path, q: float, *, pixels: bool) -> list[str]:
    """Write digits with candidate sets; return the options to read them."""
    problem = make_problem(digits(0), q=q, tau1=0.2, tau2=0.4, seed=0)
    X = (problem.X.reshape(-1, 8, 8) * 15.9).astype(np.uint8) if pixels else problem.X
    classes = np.array([str(label) for label in range(6)])
    S = problem.candidates.dense().astype(np.uint8)
    np.savez(path, X=X, S=S, y=problem.truth.labels, classes=classes)
    return ["--encoder", "none"] if pixels else []


def write_wine(path: Path) -> list[str]:
    """Write wines with three columns of answers; return the options to read them."""
    rng = np.random.default_rng(0)
    data = load_wine(as_frame=True)
    y = data.target.to_numpy()
    names = np.array(["a", "b", "c"])
    frame = data.frame.drop(columns="target")
    for number, share in enumerate((0.1, 0.2, 0.3), 1):
        is_wrong = rng.random(len(y)) < share
        answers = np.where(is_wrong, (y + rng.integers(1, 3, len(y))) % 3, y)
        frame[f"ann{number}"] = names[answers]
    frame["label"] = names[y]
    frame.to_csv(path, index=False)
    return ["--labels", "ann1,ann2,ann3"]


def measure(file: Path, options: list[str]) -> list[str]:
    """Run `candidly fit`; return the cells of a row of the table."""
    out = file.with_suffix(".run")
    command = [sys.executable, "-m", "candidly", "fit", str(file), *options, "--out", str(out)]
    began = time.perf_counter()
    said = subprocess.run([*command, "--json"], capture_output=True, text=True, check=True)
    seconds = time.perf_counter() - began
    found: dict[str, Any] = json.loads(said.stdout)
    share, quality = found["shares"]["outside"], found["evaluation"]
    epochs = len((out / "metrics.jsonl").read_text().splitlines())
    return [
        file.name,
        str(epochs),
        f"{quality['outside']:.3f}",
        f"{share['share']:.3f} ({share['low']:.3f} to {share['high']:.3f})",
        f"{quality['accuracy']:.3f}",
        f"{quality['ap_outside']:.3f}",
        f"{seconds:.0f}",
    ]


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        files = {
            place / "digits-q0.1.npz": write_digits(place / "digits-q0.1.npz", 0.1, pixels=False),
            place / "digits-q0.3.npz": write_digits(place / "digits-q0.3.npz", 0.3, pixels=False),
            place / "pixels-q0.1.npz": write_digits(place / "pixels-q0.1.npz", 0.1, pixels=True),
            place / "wine.csv": write_wine(place / "wine.csv"),
        }
        print("| " + " | ".join(COLUMNS) + " |")
        print("|---" * len(COLUMNS) + "|")
        for file, options in files.items():
            print("| " + " | ".join(measure(file, options)) + " |", flush=True)


if __name__ == "__main__":
    main()
