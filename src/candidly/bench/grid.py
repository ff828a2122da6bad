"""The grid: the runs that make up a table, and running them. A run is a RUN folder named by the hash of its config."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import time
import traceback
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from fnmatch import fnmatch
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from candidly.bench.data import Problem, make_problem, supervised_problem, true_selection
from candidly.bench.oracle import Oracle
from candidly.bench.scales import Scale, load_source, moments
from candidly.errors import InputError, RunBusyError
from candidly.methods import METHODS, Method
from candidly.methods.base import defaults
from candidly.methods.ooc import OOC
from candidly.methods.settings import make_method
from candidly.metrics import final_score
from candidly.nets import build_net
from candidly.progress import bar
from candidly.store import lock_of, read_json, versions, write_json, writing
from candidly.train import Fitted, find_device, fit, make_scheme
from candidly.views import make_views

QS, TAUS = (0.1, 0.3, 0.5), ((0.2, 0.4), (0.3, 0.6))


@dataclass(frozen=True)
class Row:
    """A row of a table: a method with settings, or a reference that no real data offer."""

    name: str
    method: str
    preset: str | None = None
    settings: dict[str, Any] = field(default_factory=dict)
    reference: str | None = None  # "supervised" or "oracle"


COMPARED = ("CC", "PRODEN", "LWS", "CAVL", "PiCO", "CRDPLL")
ROWS = (
    Row("supervised", "cc", reference="supervised"),
    Row("oracle", "ooc", reference="oracle"),
    *(Row(name, name.lower()) for name in COMPARED),
    Row("ooc", "ooc"),
    Row("ooc, paper", "ooc", "paper"),
    Row("ooc, robust", "ooc", "robust"),
)
ON_TRUE_LABELS = tuple(Row(f"{name}, true labels", name.lower(), reference="supervised") for name in COMPARED)
ABLATIONS = (Row("full", "ooc"), *(Row(name, "ooc", settings=values) for name, values in OOC.ABLATIONS.items()))


@dataclass(frozen=True)
class Cell:
    """A column of a table: where the open examples come from, and how much is corrupted."""

    open_set: str
    q: float
    tau1: float
    tau2: float

    @property
    def name(self) -> str:
        return f"{self.open_set} q={self.q:g} tau={self.tau1:g},{self.tau2:g}"


@dataclass(frozen=True)
class Job:
    """One run."""

    scale: Scale
    cell: Cell
    row: Row
    seed: int

    @property
    def data(self) -> Cell:
        """The cell that is trained on: supervised learning knows no ambiguity, so that one run serves all cells."""
        return Cell(self.scale.opens[0], 0.0, 0.0, 0.0) if self.row.reference == "supervised" else self.cell

    @property
    def config(self) -> dict[str, Any]:
        """All that decides the result, defaults spelt out, as JSON has it; names of rows and scales decide nothing."""
        scale, row, cls = self.scale, self.row, METHODS[self.row.method]
        settings = {**defaults(cls), **cls.PRESETS.get(row.preset or "", {}), **self.settings}
        sizes = {"known": scale.known, "n_known": scale.n_known, "n_test": scale.n_test}
        nets = {"net": scale.net, "net_settings": scale.net_settings}
        scheme = dataclasses.asdict(make_scheme(scale.scheme, **scale.changes))
        method = {"method": row.method, "settings": settings, "reference": row.reference}
        whole = {**sizes, **nets, "scheme": scheme, "cell": dataclasses.asdict(self.data), **method, "seed": self.seed}
        return json.loads(json.dumps(whole, default=str))

    @property
    def settings(self) -> dict[str, Any]:
        """Settings of the row; `ooc` has those of the scale too, and is told the true shares, as in the paper."""
        if self.row.method != "ooc":
            return self.row.settings
        return {"rates": "true", **self.scale.ooc_settings(self.cell.q), **self.row.settings}

    @property
    def key(self) -> str:
        return hashlib.sha256(json.dumps(self.config, sort_keys=True).encode()).hexdigest()[:16]

    @property
    def name(self) -> str:
        return f"{self.cell.name} {self.row.name} seed {self.seed}"


def table_jobs(
    table: str,
    scale: Scale,
    *,
    cells: Iterable[str] = ("*",),
    rows: Collection[str] | None = None,
    seeds: int | None = None,
    tau: tuple[float, float] | None = None,
) -> list[Job]:
    """The runs of "table1" or "table2" at a scale; `cells` and `rows` are names or patterns such as "svhn*".

    By its whole name, a row of Table 1 may also be "LWS, true labels" and the like: what a method reaches without any
    ambiguity.
    """
    taus = TAUS if tau is None else (tau,)
    if table == "table1":
        columns = [Cell(o, q, *t) for o, q, t in product(scale.opens, QS, taus)]
        lines: tuple[Row, ...] = ROWS
    else:
        columns, lines = [Cell(scale.opens[0], 0.1, *t) for t in taus], ABLATIONS
    chosen_cells = _matching(columns, cells, "cell")
    named = {name.lower() for name in rows or ()}
    more = [row for row in ON_TRUE_LABELS if table == "table1" and row.name.lower() in named]
    chosen_rows = lines if rows is None else _matching((*lines, *more), rows, "row")
    count = scale.seeds if seeds is None else seeds
    return [Job(scale, c, r, s) for s, c, r in product(range(count), chosen_cells, chosen_rows)]


def _matching(items: Iterable[Any], patterns: Iterable[str], what: str) -> list[Any]:
    items, patterns = list(items), list(patterns)
    for pattern in patterns:
        if not any(fnmatch(item.name.lower(), pattern.lower()) for item in items):
            names = "; ".join(item.name for item in items)
            raise InputError(f"no {what} matches {pattern!r}. There are: {names}.")
    return [item for item in items if any(fnmatch(item.name.lower(), p.lower()) for p in patterns)]


def run_jobs(
    jobs: list[Job], out: Path, data_dir: Path | None, *, retry: bool = False, device: str = "auto"
) -> dict[str, str]:
    """Run what is not finished yet; returns the errors of failed runs by name. Failed ones wait for `retry`."""
    failures = {}
    if out.exists() and not out.is_dir():
        raise InputError(f"{out} is not a folder: choose another place for the runs.")
    out.mkdir(parents=True, exist_ok=True)
    with bar(len(jobs), "runs") as advance:
        for job in jobs:
            failed = out / f"{job.key}.failed.json"
            if not (out / job.key).exists() and (retry or not failed.exists()):
                _attempt(job, out, data_dir, failed, device)
            if failed.exists() and not (out / job.key).exists():
                failures[job.name] = read_json(failed)["error"]
            advance(job.name)
    return failures


def _attempt(job: Job, out: Path, data_dir: Path | None, failed: Path, device: str) -> None:
    """A failure is written down, so that the others go on; what the user can mend at once stops everything."""
    try:
        run_job(job, out, data_dir, device)
        failed.unlink(missing_ok=True)
    except RunBusyError:
        return  # another process is at it
    except InputError:
        raise
    except Exception as error:
        told = {"name": job.name, "error": f"{type(error).__name__}: {error}", "traceback": traceback.format_exc()}
        write_json(failed, {**told, "config": job.config})


def run_job(job: Job, out: Path, data_dir: Path | None, device: str = "auto") -> None:
    """Train one run and leave its RUN folder with `result.json`."""
    scale, cell = job.scale, job.data
    source = load_source(scale.known, scale.n_known, scale.n_test, cell.open_set, job.seed, data_dir)
    problem = make_problem(source, q=cell.q, tau1=cell.tau1, tau2=cell.tau2, seed=job.seed)
    method = method_of(job, problem)
    data = supervised_problem(problem) if job.row.reference == "supervised" else problem
    views = make_views(data.X, **moments(scale), device=find_device(device))
    model = build_net(scale.net, views.shape, len(source.classes), seed=job.seed, **scale.net_settings)
    plan = {"scheme": scale.scheme, "seed": job.seed, **scale.changes}
    with writing(out / job.key, job.config) as run:
        fitted = fit(
            model, views, data.candidates, method, test=data.test, truth=data.truth, run=run, progress=False, **plan
        )
        write_json(run.folder / "result.json", result(job, fitted, data))


def method_of(job: Job, problem: Problem) -> Method:
    """The method of a row. Only the oracle is told the kinds."""
    row, settings = job.row, job.settings
    if "rates" in settings:
        settings = {**settings, "rates": problem.rates}
    if row.reference == "oracle":
        return Oracle(true_selection(problem.truth), **settings)
    return make_method(row.method, row.preset, settings)


def result(job: Job, fitted: Fitted, data: Problem) -> dict[str, Any]:
    """What tables and figures need of a run."""
    history = fitted.history
    predicted, labels = fitted.predictor.logits(data.test[0]).argmax(-1), data.test[1]
    kept = ("accuracy", *(k for k in history[-1] if k.startswith(("precision_", "recall_", "auroc_"))))
    return {
        "key": job.key,
        "scale": job.scale.name,
        "cell": dataclasses.asdict(job.data),
        "row": job.row.name,
        "seed": job.seed,
        "score": 100 * final_score(history),
        "per_class": [float((predicted[labels == k] == k).mean()) for k in np.unique(labels)],
        "seconds": sum(row["seconds"] for row in history),
        "flops": history[-1]["flops"],
        "curves": {k: [None if (v := row.get(k)) is None else round(v, 4) for row in history] for k in kept},
        "time": time.time(),
        "versions": versions(),
    }


def results(out: Path) -> Iterator[dict[str, Any]]:
    """The results of all finished runs in a folder."""
    for path in sorted(out.glob("*/result.json")):
        if not path.parent.name.endswith(".partial"):
            yield read_json(path)


def plan(jobs: list[Job], out: Path) -> list[dict[str, Any]]:
    """Each run with its state and an estimate of its seconds from those already done; None if nothing is known."""
    done = list(results(out))
    return [
        {"name": job.name, "key": job.key, "state": _state(job, out), "seconds": _estimate(job, done)} for job in jobs
    ]


def _state(job: Job, out: Path) -> str:
    if (out / job.key).exists():
        return "done"
    if lock_of(out / job.key).exists():
        return "running"
    if (out / f"{job.key}.partial").exists():
        return "unfinished"
    return "failed" if (out / f"{job.key}.failed.json").exists() else "to do"


def _estimate(job: Job, done: list[dict[str, Any]]) -> float | None:
    """The median of the same row at the same scale, else of the scale."""
    scale = [r for r in done if r["scale"] == job.scale.name]
    same = [r["seconds"] for r in scale if r["row"] == job.row.name] or [r["seconds"] for r in scale]
    return float(np.median(same)) if same else None
