"""Size a scale on validation rows, cut from its training rows: no test row chooses anything.

    python benchmarks/tune.py mini --methods "ooc, robust" PRODEN --set epochs=20
    python benchmarks/tune.py cpu --minutes 8 --set lr=0.1 weight_decay=0.005

One JSON line per run: the settings, the mean accuracy of the last tenth of the epochs and that of
the last one, time and FLOPs; the arithmetic of a pass in training is counted on its first batch.
With `--minutes` as many epochs are trained as fit, after a measurement of some steps.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import time
from pathlib import Path
from typing import Any

import torch

from candidly.bench.grid import ROWS, Cell, Job, Row
from candidly.bench.problems import Problem, Source, make_problem, reduced, supervised_problem
from candidly.bench.runner import method_of
from candidly.bench.scales import SCALES, Scale, load_source, moments
from candidly.metrics import final_score
from candidly.tensors.nets import build_net
from candidly.tensors.views import make_views
from candidly.training.trainer import Trainer, fit, make_scheme

VALIDATION = 5000
CLEAN = "supervised"


def validation_source(scale: Scale, opened: str, seed: int, data_dir: Path | None) -> Source:
    """Take the scale's training rows, and others of the training set as the test set."""
    n = None if scale.n_known is None else scale.n_known + VALIDATION
    source = load_source(scale.known, n, 1, opened, seed, data_dir, scale.encoding)
    X, y = source.X, source.y
    held = X[:VALIDATION] if scale.encoding is None else X[:VALIDATION, 0]
    validation = {"X_test": held, "y_test": y[:VALIDATION]}
    return dataclasses.replace(source, X=X[VALIDATION:], y=y[VALIDATION:], **validation)


def validation_problem(scale: Scale, cell: Cell, seed: int, data_dir: Path | None) -> Problem:
    source = validation_source(scale, cell.open_set, seed, data_dir)
    problem = make_problem(source, q=cell.q, tau1=cell.tau1, tau2=cell.tau2, seed=seed)
    return problem if scale.encoding is None else reduced(problem, scale.encoding.components)


def train(job: Job, problem: Problem, minutes: float | None) -> dict[str, Any]:
    scale = job.scale
    data = supervised_problem(problem) if job.row.reference == CLEAN else problem
    views = make_views(data.X, versions=scale.encoding is not None, **moments(scale))
    model = build_net(
        scale.net, views.shape, data.candidates.n_classes, seed=job.seed, **scale.net_settings
    )
    changes = dict(job.plan)
    if minutes is not None:
        per_epoch = seconds_of_an_epoch(job, problem, data, views)
        changes["epochs"] = max(1, round(60 * minutes / per_epoch))
    plan = {"scheme": scale.scheme, "seed": job.seed, **changes}
    method = method_of(job, problem)
    began = time.perf_counter()
    began_cpu = time.process_time()
    known: dict[str, Any] = {"test": data.test, "truth": data.truth}
    fitted = fit(model, views, data.candidates, method, **known, **plan)
    seconds = time.perf_counter() - began
    cpu = time.process_time() - began_cpu
    last = fitted.history[-1]
    precision = {name: last[name] for name in last if name.startswith("precision_")}
    return {
        "epochs": plan.get("epochs"),
        "score": round(100 * final_score(fitted.history), 2),
        "last": round(100 * last["accuracy"], 2),
        **{name: round(value, 3) for name, value in precision.items() if value is not None},
        "seconds": round(seconds, 1),
        "cpu": round(cpu, 1),
        "pflop": round(last["flops"] / 1e15, 5),
    }


def seconds_of_an_epoch(
    job: Job, problem: Problem, data: Problem, views: Any, steps: int = 30
) -> float:
    """Estimate from some steps of a training that is thrown away; the first ones do not count."""
    plan = make_scheme(job.scale.scheme, **job.plan)
    model = build_net(
        job.scale.net, views.shape, data.candidates.n_classes, **job.scale.net_settings
    )
    trainer = Trainer(model, views, data.candidates, method_of(job, problem), plan)
    trainer.step.train()
    trainer.method.epoch_start(0, trainer.predict_all)
    for count in (5, steps):
        began = time.process_time()
        for batch, size, _ in trainer.batches(torch.arange(count * plan.batch_size) % len(views)):
            trainer.update(batch, size)
    trainer.close()
    # Processor time: other programs may be running.
    spent = (time.process_time() - began) / torch.get_num_threads()
    return spent / steps * len(views) / plan.batch_size


def changed(scale: Scale, options: argparse.Namespace) -> Scale:
    given = dict(text.split("=") for text in options.set)
    kinds: dict[str, Any] = {"epochs": int, "batch_size": int, "precision": str}
    changes = {k: kinds.get(k, float)(v) for k, v in given.items()}
    widths = {} if options.widths is None else {"widths": options.widths}
    warmup = scale.warmup if options.warmup is None else (options.warmup, options.warmup)
    return dataclasses.replace(
        scale,
        net_settings={**scale.net_settings, **widths},
        warmup=warmup,
        n_known=scale.n_known if options.known is None else options.known,
        changes={**scale.changes, **changes},
        lr={} if "lr" in changes else scale.lr,
    )


def with_settings(row: Row, given: list[str]) -> Row:
    """Change the settings of a row of `ooc`."""
    if row.method != "ooc" or not given:
        return row
    pairs = [text.split("=") for text in given]
    return dataclasses.replace(row, settings={name: json.loads(value) for name, value in pairs})


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("scale", choices=list(SCALES))
    names = ("OPEN", "Q", "TAU1", "TAU2")
    parser.add_argument("--cell", nargs=4, metavar=names, default=["svhn", "0.1", "0.2", "0.4"])
    parser.add_argument(
        "--methods", nargs="+", default=[CLEAN, "ooc, robust"], choices=[row.name for row in ROWS]
    )
    parser.add_argument(
        "--set", nargs="*", default=[], metavar="NAME=VALUE", help="settings of the scheme"
    )
    parser.add_argument("--widths", nargs=3, type=int, help="of the convolutional net")
    parser.add_argument("--warmup", type=float, help="of ooc, as a share of the training")
    parser.add_argument(
        "--ooc", nargs="*", default=[], metavar="NAME=VALUE", help="settings of ooc, as JSON"
    )
    parser.add_argument("--known", type=int, help="training examples of known classes")
    parser.add_argument("--minutes", nargs="+", type=float, default=[None])
    parser.add_argument("--seed", type=int, default=100)
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--out", type=Path, help="file that lines are added to")
    options = parser.parse_args()
    scale = changed(SCALES[options.scale], options)
    cell = Cell(options.cell[0], *map(float, options.cell[1:]))
    problem = validation_problem(scale, cell, options.seed, options.data_dir)
    rows = [with_settings(row, options.ooc) for row in ROWS if row.name in options.methods]
    for minutes in options.minutes:
        for row in rows:
            job = Job(scale, cell, row, options.seed)
            line = {
                "scale": scale.name,
                "cell": cell.name,
                "row": row.name,
                "seed": options.seed,
                "minutes": minutes,
                "changes": job.plan,
                "net": scale.net_settings,
                "warmup": scale.ooc_settings(cell.q),
                "known": scale.n_known,
                "ooc": row.settings,
                **train(job, problem, minutes),
            }
            print(json.dumps(line), flush=True)
            if options.out is not None:
                with options.out.open("a") as file:
                    file.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    main()
