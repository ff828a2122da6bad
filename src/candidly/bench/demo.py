"""`candidly demo`: the method at work on scikit-learn's digits, from clean labels to a picture of what it found."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np

from candidly.bench.figures import loss_histograms, losses_figure, precision_figure
from candidly.bench.problems import Problem, digits, make_problem
from candidly.checks import one_of
from candidly.kinds import KINDS
from candidly.methods import Method
from candidly.methods.ooc import OOC, warmup_epochs
from candidly.methods.settings import make_method, parse_settings
from candidly.metrics import final_score
from candidly.storage.store import Run, read_arrays, read_metrics, write_json, writing
from candidly.tensors.nets import build_net
from candidly.training.trainer import Fitted, fit

WARMUP = 0.3  # of the training; chosen on validation rows. The paper's tenth is 16,000 steps there, and 50 here.


def run_demo(
    out: Path,
    *,
    q: float,
    tau1: float,
    tau2: float,
    seed: int,
    epochs: int,
    settings: list[str],
    also: list[str],
) -> dict[str, Any]:
    """Train PRODEN, `ooc`, its robust preset and `also`; write a RUN folder for each, and two pictures, below `out`."""
    began = time.perf_counter()
    problem = make_problem(digits(seed), q=q, tau1=tau1, tau2=tau2, seed=seed)
    methods = make_methods(problem, settings, also)
    config = {"demo": "digits", "q": q, "tau": [tau1, tau2], "seed": seed, "epochs": epochs}
    chosen = {name: method.settings for name, method in methods.items()}
    with writing(out, {**config, "methods": chosen}, replace=True) as run:
        rows = [train_one(run, name, method, problem, config) for name, method in methods.items()]
        draw(run, problem, warmup_epochs(methods["ooc"].settings["warmup"], epochs))
        took = round(time.perf_counter() - began, 1)
        results = {
            "out": str(out),
            "data": problem.truth.manifest,
            "methods": rows,
            "seconds": took,
        }
        write_json(run.folder / "results.json", results)
    return results


def make_methods(problem: Problem, settings: list[str], also: list[str]) -> dict[str, Method]:
    """Make the methods by the name of their row. Only `ooc` is given the true shares.

    A setting `name=value` is that of `ooc`; `method.name=value` is that of another one.
    """
    given: dict[str, list[str]] = {name: [] for name in ("ooc", "proden", *also)}
    for assignment in settings:
        owner, dot, _ = assignment.partition("=")[0].partition(".")
        name = one_of(owner, given, "method of this demo") if dot else "ooc"
        given[name].append(assignment.removeprefix(f"{owner}.") if dot else assignment)
    parsed = {name: parse_settings(name, assignments) for name, assignments in given.items()}
    ooc = {"rates": problem.rates, "warmup": WARMUP, **parsed["ooc"]}
    return {
        "PRODEN": make_method("proden"),
        "ooc": make_method("ooc", None, ooc),
        "ooc, robust": make_method("ooc", "robust", ooc),
        **{
            name: make_method(name, None, parsed[name])
            for name in also
            if name not in ("ooc", "proden")
        },
    }


def train_one(
    run: Run, name: str, method: Method, problem: Problem, config: dict[str, Any]
) -> dict[str, Any]:
    """One method into one RUN folder, unless it is there already; returns its row of the printed table."""
    folder = run.folder / folder_name(name)
    if not folder.exists():
        net = {
            "name": "mlp",
            "shape": list(problem.X.shape[1:]),
            "n_classes": problem.candidates.n_classes,
        }
        with writing(folder, {**config, "method": name, "net": net}) as inner:
            data = {
                "test": problem.test,
                "truth": problem.truth,
                "seed": config["seed"],
                "epochs": config["epochs"],
            }
            model = build_net(
                "mlp", problem.X.shape[1:], problem.candidates.n_classes, seed=config["seed"]
            )
            fitted = fit(
                model, problem.X, problem.candidates, method, run=inner, label=name, **data
            )
            inner.save_model(fitted.predictor, net)
            inner.save_arrays(**arrays(fitted))
    history = read_metrics(folder)
    precision = {key: value for key, value in history[-1].items() if key.startswith("precision_")}
    return {"name": name, "accuracy": final_score(history), **precision}


def folder_name(name: str) -> str:
    return name.replace(", ", "-").lower()


def arrays(fitted: Fitted) -> dict[str, np.ndarray]:
    """The warm-up ensemble and the last selection, where there are any."""
    if not isinstance(fitted.method, OOC) or fitted.selection is None:
        return {}
    groups = dict(zip(KINDS, fitted.selection, strict=True))
    return {"ensemble": fitted.method.average.cpu().numpy(), **groups}


def draw(run: Run, problem: Problem, warmup: int) -> None:
    """losses.png: the ensemble at the end of warm-up; precision.png: the selection, epoch by epoch."""
    ensemble = read_arrays(run.folder / "ooc").get("ensemble")
    if ensemble is None:  # too few epochs, or settings without a selection
        return
    histograms = loss_histograms(ensemble, problem.candidates.dense(), problem.truth.kinds)
    losses_figure(histograms).savefig(run.folder / "losses.png", dpi=150)
    histories = {
        name: read_metrics(run.folder / folder_name(name)) for name in ("ooc", "ooc, robust")
    }
    keys = [f"precision_{kind}" for kind in KINDS]
    curves = {
        name: {key: [row.get(key) for row in rows] for key in keys}
        for name, rows in histories.items()
    }
    precision_figure(curves, warmup).savefig(run.folder / "precision.png", dpi=150)


def render(results: dict[str, Any]) -> str:
    """The results as a table for the terminal."""
    data, out = results["data"], results["out"]
    closed, opened = data["counts"]["closed"], data["counts"]["open"]
    lines = [
        f"Handwritten digits 0-5 with candidate labels (q = {data['q']:g}), {data['n']} training examples: the truth",
        f"of {closed} is outside their candidates (closed); {opened} are digits 6-9 of no known class (open).",
        "",
        f"{'':12}  {'accuracy':>8}   precision of the selected   normal  closed    open",
    ]
    for row in results["methods"]:
        found = [row.get(f"precision_{kind}") for kind in KINDS]
        cells = "".join(f"{'-' if value is None else f'{value:.2f}':>8}" for value in found)
        lines.append(f"{row['name']:12}  {100 * row['accuracy']:7.1f}%   {'':25} {cells}")
    files = {
        "proden/, ooc/, ...": "metrics.jsonl, model/, run.json of each",
        "losses.png": "losses of the three kinds, mean and wooden",
        "precision.png": "precision of the selection, epoch by epoch",
    }
    if not (Path(out) / "losses.png").exists():
        files = dict(list(files.items())[:1])
    lines += ["", "ooc is given the true numbers of closed and open examples, not which they are;"]
    lines += ["the other methods are given nothing.", ""]
    lines += [f"Written to {out}/ in {results['seconds']:.0f} s:"]
    lines += [f"  {name:20} {what}" for name, what in files.items()]
    return "\n".join(
        [*lines, "", "Next: candidly methods    candidly demo --q 0.5    candidly demo --help"]
    )
