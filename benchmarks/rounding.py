"""How far apart are trainings of one seed that differ in rounding alone? One weight moves by 1e-6.

    python benchmarks/rounding.py mini --methods PRODEN --count 6 --data-dir DIR

The first line of a method is the run of `candidly bench run` itself. One JSON line per run, with
processor and threads.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch

from candidly.bench.grid import ROWS, Cell, Job
from candidly.bench.runner import machine, method_of, problem_of
from candidly.bench.scales import SCALES, moments
from candidly.metrics import final_score
from candidly.tensors.nets import Net, build_net
from candidly.tensors.views import make_views
from candidly.training.trainer import fit

NUDGE = 1e-6
LEARNERS = {row.name: row for row in ROWS if row.reference is None}


def nudge(model: Net, amount: float) -> Net:
    with torch.no_grad():
        model.head.weight[0, 0] += amount
    return model


def accuracy(job: Job, data_dir: Path | None, amount: float) -> float:
    problem = problem_of(job, data_dir)
    scale, sets = job.scale, problem.candidates
    views = make_views(problem.X, versions=scale.encoding is not None, **moments(scale))
    model = build_net(scale.net, views.shape, sets.n_classes, seed=job.seed, **scale.net_settings)
    plan: dict[str, Any] = {"scheme": scale.scheme, "seed": job.seed, **job.plan}
    method = method_of(job, problem)
    fitted = fit(nudge(model, amount), views, sets, method, test=problem.test, **plan)
    return 100 * final_score(fitted.history)


def main() -> None:
    layout = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=layout)
    parser.add_argument("scale", choices=list(SCALES))
    names = ("OPEN", "Q", "TAU1", "TAU2")
    parser.add_argument("--cell", nargs=4, metavar=names, default=["svhn", "0.1", "0.2", "0.4"])
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
            line = {"run": job.name, "nudge": k * NUDGE, "score": scores[-1], **machine()}
            print(json.dumps(line), flush=True)
        spread = np.std(scores, ddof=1)
        print(f"{name}: mean {np.mean(scores):.2f}, standard deviation {spread:.2f}", flush=True)


if __name__ == "__main__":
    main()
