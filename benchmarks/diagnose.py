"""Why a compared method falls behind without out-of-candidate examples: numbers of docs/methods.md.

    python benchmarks/diagnose.py cavl
    python benchmarks/diagnose.py lws --data-dir FOLDER
    python benchmarks/diagnose.py pico --data-dir FOLDER

cavl: how many of its hard labels are right, epoch by epoch, on digits. lws, pico: single runs on
Fashion-MNIST at q = 0.1 with other settings; FOLDER holds the idx files of fashion-mnist and mnist.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np

from candidly.bench.problems import Problem, digits, make_problem
from candidly.bench.scales import SCALES, load_source
from candidly.methods.cavl import CAVL
from candidly.methods.settings import make_method
from candidly.tensors.nets import build_net
from candidly.training.trainer import fit

# Settings of the method, and changes of the scheme.
LWS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "as in the table": ({}, {}),
    "40 epochs": ({}, {"epochs": 40}),
    "learning rate 0.2": ({}, {"lr": 0.2}),
    "no weight decay": ({}, {"weight_decay": 0.0}),
    "leverage 0.5": ({"leverage": 0.5}, {}),
    "leverage 2": ({"leverage": 2.0}, {}),
}


class Watched(CAVL):
    """CAVL that prints how many of its labels are right. Its training does not see the truth."""

    def __init__(self, truth: np.ndarray) -> None:
        super().__init__()
        self.truth = truth

    def epoch_start(self, epoch: int, predict_all: Any) -> None:
        if epoch in (1, 5, 20, 59):
            right = (self.confidence.argmax(1).numpy() == self.truth).mean()
            print(f"  after epoch {epoch:2}: {100 * right:.1f} % of the labels are right")


def cavl() -> None:
    for q in (0.1, 0.5):
        print(f"digits, q = {q:g}")
        problem = make_problem(digits(0), q=q, tau1=0, tau2=0, seed=0)
        method = Watched(problem.truth.labels)
        fit(build_net("mlp", (64,), 6), problem.X, problem.candidates, method, epochs=60)


def fashion(data_dir: Path) -> Problem:
    scale = SCALES["fashion"]
    source = load_source(scale.known, scale.n_known, scale.n_test, "mnist", 0, data_dir)
    return make_problem(source, q=0.1, tau1=0, tau2=0, seed=0)


def run(
    problem: Problem, name: str, label: str, settings: dict[str, Any], changes: dict[str, Any]
) -> None:
    scale = SCALES["fashion"]
    model = build_net(scale.net, (1, 28, 28), 10, **scale.net_settings)
    method = make_method(name, None, settings)
    plan = {**scale.changes, **changes}
    fitted = fit(model, problem.X, problem.candidates, method, test=problem.test, **plan)
    X, labels = problem.test
    predicted = fitted.predictor.logits(X).argmax(1)
    classes = " ".join(f"{100 * (predicted[labels == k] == k).mean():.0f}" for k in range(10))
    accuracy = 100 * fitted.history[-1]["accuracy"]
    print(f"{label:20} {accuracy:.1f} % (by class: {classes})", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=["cavl", "lws", "pico"])
    parser.add_argument("--data-dir", type=Path)
    chosen = parser.parse_args()
    if chosen.what == "cavl":
        cavl()
    elif chosen.what == "pico":
        run(fashion(chosen.data_dir), "pico", "weak views", {"augmentation": "same"}, {})
    else:
        problem = fashion(chosen.data_dir)
        for label, (settings, changes) in LWS.items():
            run(problem, "lws", label, settings, changes)


if __name__ == "__main__":
    main()
