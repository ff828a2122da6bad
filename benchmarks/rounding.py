"""How far apart are trainings that differ in rounding alone? One seed, trained again with one weight moved by 1e-6.

    python benchmarks/rounding.py mini --methods PRODEN --count 6 --data-dir DIR

The first line of a method is the run of `candidly bench run` itself. One JSON line per run, with processor and threads.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch

from candidly.bench.grid import ROWS, Cell, Job, machine, method_of, problem_of
from candidly.bench.scales import SCALES, moments
from candidly.metrics import final_score
from candidly.nets import Net, build_net
from candidly.train import fit
from candidly.views import make_views

NUDGE = 1e-6
LEARNERS = {row.name: row for row in ROWS if row.reference is None}


def nudge(model: Net, amount: float) -> Net:
    with torch.no_grad():
        model.head.weight[0, 0] += amount
    return model


def accuracy(job: Job, data_dir: Path | None, amount: float) -> float:
    problem = problem_of(job, data_dir)
    views = make_views(problem.X, **moments(job.scale))
    model = build_net(job.scale.net, views.shape, problem.candidates.n_classes, seed=job.seed, **job.scale.net_settings)
    plan: dict[str, Any] = {"scheme": job.scale.scheme, "seed": job.seed, **job.plan}
    fitted = fit(nudge(model, amount), views, problem.candidates, method_of(job, problem), test=problem.test, **plan)
    return 100 * final_score(fitted.history)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("scale", choices=list(SCALES))
    parser.add_argument("--cell", nargs=4, metavar=("OPEN", "Q", "TAU1", "TAU2"), default=["svhn", "0.1", "0.2", "0.4"])
    parser.add_argument("--methods", nargs="+", default=["PRODEN"], choices=list(LEARNERS))
    parser.add_argument("--count", type=int, default=6)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--data-dir", type=Path)
    chosen = parser.parse_args()
    cell = Cell(chosen.cell[0], *map(float, chosen.cell[1:]))
    for name in chosen.methods:
        job = Job(SCALES[chosen.scale], cell, LEARNERS[name], chosen.seed)
        scores = []
        for k in range(chosen.count):
            scores.append(accuracy(job, chosen.data_dir, k * NUDGE))
            print(json.dumps({"run": job.name, "nudge": k * NUDGE, "score": scores[-1], **machine()}), flush=True)
        print(f"{name}: mean {np.mean(scores):.2f}, standard deviation {np.std(scores, ddof=1):.2f}", flush=True)


if __name__ == "__main__":
    main()
