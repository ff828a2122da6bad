"""The grid: the runs that make up a table, and running them. A run is a RUN folder named by the hash of its config."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import platform
import time
import traceback
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from fnmatch import fnmatch
from functools import lru_cache
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch

from candidly.bench.figures import loss_histograms, typical_examples
from candidly.bench.oracle import Oracle
from candidly.bench.problems import (
    Problem,
    make_problem,
    reduced,
    supervised_problem,
    true_selection,
)
from candidly.bench.scales import Scale, load_source, moments, require_data
from candidly.console.progress import bar
from candidly.errors import InputError, RunBusyError
from candidly.kinds import Rates
from candidly.methods import METHODS, Method
from candidly.methods.base import defaults
from candidly.methods.ooc import OOC, warmup_epochs
from candidly.methods.settings import make_method
from candidly.metrics import final_score
from candidly.storage.store import (
    is_locked,
    read_json,
    refuse_newer_format,
    versions,
    write_json,
    writing,
)
from candidly.tensors.nets import build_net
from candidly.tensors.views import make_views
from candidly.training.trainer import Fitted, find_device, fit, make_scheme

RESULT = {
    "key",
    "scale",
    "cell",
    "row",
    "seed",
    "score",
    "seconds",
    "curves",
}  # what a result holds at least
QS, TAUS = (0.1, 0.3, 0.5), ((0.2, 0.4), (0.3, 0.6))


@dataclass(frozen=True)
class Row:
    """A row of a table: a method with settings, or a reference that no real data offer."""

    name: str
    method: str
    preset: str | None = None
    settings: dict[str, Any] = field(default_factory=dict)
    reference: str | None = None  # "supervised" or "oracle"

    @property
    def given(self) -> str:
        """What the row receives beside the candidate sets, and users do not have."""
        if self.reference is not None:
            return {"supervised": "true labels", "oracle": "true kinds"}[self.reference]
        knows_shares = (
            "rates" in defaults(METHODS[self.method]) and self.settings.get("rates") != "auto"
        )
        return "true shares" if knows_shares else "nothing"


COMPARED = ("CC", "PRODEN", "LWS", "CAVL", "PiCO", "CRDPLL")
ROWS = (
    Row("supervised", "cc", reference="supervised"),
    Row("oracle", "ooc", reference="oracle"),
    *(Row(name, name.lower()) for name in COMPARED),
    Row("ooc", "ooc"),
    Row("ooc, paper", "ooc", "paper"),
    Row("ooc, robust", "ooc", "robust"),
    Row("ooc, gradual", "ooc", "gradual"),
)
ON_TRUE_LABELS = tuple(
    Row(f"{name}, true labels", name.lower(), reference="supervised") for name in COMPARED
)
ABLATIONS = (
    Row("full", "ooc"),
    *(Row(name, "ooc", settings=values) for name, values in OOC.ABLATIONS.items()),
)
SWEEPS: dict[str, tuple[float, ...]] = {  # of the paper's figure; phi as a share of the warm-up
    "alpha": (0.1, 0.5, 1.0, 3.0, 5.0),
    "beta": (0.1, 0.5, 1.0, 3.0, 5.0),
    "phi": (1 / 30, 1 / 6, 1 / 3, 2 / 3, 1),
    "eta": (0.0, 0.5, 0.9, 0.99, 1.0),
    "gamma": (0.25, 0.5, 1, 1.5, 2),  # as a multiple of the true shares
}


def sweep_rows(scale: Scale) -> dict[str, list[tuple[float, Row]]]:
    """For each letter of the paper's figure: (value, row) in ascending order; the default is among the values."""
    epochs = make_scheme(scale.scheme, **scale.changes).epochs
    warmup = warmup_epochs(scale.ooc_settings(scale.opens[0], 0.1)["warmup"], epochs)
    windows = {scale.window[0], *(max(1, round(share * warmup)) for share in SWEEPS["phi"])}
    settings: dict[str, list[tuple[float, dict[str, Any]]]] = {
        "alpha": [(v, {"alpha": v}) for v in SWEEPS["alpha"]],
        "beta": [(v, {"beta": v}) for v in SWEEPS["beta"]],
        "phi": [(v, {"window": v}) for v in sorted(windows) if v <= max(warmup, scale.window[0])],
        "eta": [(v, {"momentum": v}) for v in SWEEPS["eta"]],
        "gamma": [(v, {} if v == 1 else {"rates": v}) for v in SWEEPS["gamma"]],
    }
    return {
        letter: [
            (value, Row(f"{letter}={value:g}", "ooc", settings=given)) for value, given in entries
        ]
        for letter, entries in settings.items()
    }


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
        return (
            Cell(self.scale.opens[0], 0.0, 0.0, 0.0)
            if self.row.reference == "supervised"
            else self.cell
        )

    @property
    def plan(self) -> dict[str, Any]:
        return self.scale.plan(self.row.method, self.data.q)

    @property
    def config(self) -> dict[str, Any]:
        """All that decides the result, defaults spelt out, as JSON has it; names of rows and scales decide nothing."""
        scale, row, cls = self.scale, self.row, METHODS[self.row.method]
        settings = {**defaults(cls), **cls.PRESETS.get(row.preset or "", {}), **self.settings}
        sizes: dict[str, Any] = {
            "known": scale.known,
            "n_known": scale.n_known,
            "n_test": scale.n_test,
        }
        nets = {"net": scale.net, "net_settings": scale.net_settings}
        if scale.encoding is not None:
            sizes["encoding"] = dataclasses.asdict(scale.encoding)
        scheme = dataclasses.asdict(make_scheme(scale.scheme, **self.plan))
        if scheme["precision"] == "float32":  # as all runs had it before there was a choice
            del scheme["precision"]
        method = {"method": row.method, "settings": settings, "reference": row.reference}
        whole = {
            **sizes,
            **nets,
            "scheme": scheme,
            "cell": dataclasses.asdict(self.data),
            **method,
            "seed": self.seed,
        }
        return json.loads(json.dumps(whole, default=str))

    @property
    def settings(self) -> dict[str, Any]:
        """Settings of the row. A method that has `rates` is given the true shares, as in the paper, or a multiple of
        them; `ooc` has the settings of the scale too."""
        cls = METHODS[self.row.method]
        given = {"rates": "true"} if "rates" in defaults(cls) else {}
        of_scale = (
            self.scale.ooc_settings(self.cell.open_set, self.cell.q) if issubclass(cls, OOC) else {}
        )
        return {**given, **of_scale, **self.row.settings}

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
    """The runs of "table1", "table2" or "params" at a scale; `cells` and `rows` are names or patterns such as "svhn*".

    By its whole name, a row of Table 1 may also be any other method of `METHODS`; or "LWS, true labels" and the like:
    what a method reaches without any ambiguity.
    """
    if tau is not None and not all(0 <= share <= 1 for share in tau):
        raise InputError(f"tau {tau[0]:g} {tau[1]:g}: expected two numbers from 0 to 1.")
    taus = TAUS if tau is None else (tau,)
    if table == "table1":
        columns = [Cell(o, q, *t) for o, q, t in product(scale.opens, QS, taus)]
        lines: tuple[Row, ...] = ROWS
    elif table == "table2":
        columns, lines = [Cell(scale.opens[0], 0.1, *t) for t in taus], ABLATIONS
    else:
        lines = tuple(row for entries in sweep_rows(scale).values() for _, row in entries)
        columns = [Cell(scale.opens[0], 0.1, *taus[0])]
    chosen_cells = _matching(columns, cells, "cell")
    named = {name.lower() for name in rows or ()}
    others = [Row(name, name) for name in METHODS if name not in {row.method for row in ROWS}]
    more = [
        row for row in (*others, *ON_TRUE_LABELS) if table == "table1" and row.name.lower() in named
    ]
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
    _require_folder(out)
    out.mkdir(parents=True, exist_ok=True)
    jobs = distinct(jobs)
    waiting = [
        job
        for job in jobs
        if _state(job, out) != "done" and (retry or not _failed(job, out).exists())
    ]
    require_sets(waiting, data_dir)
    with bar(len(jobs), "runs", done=len(jobs) - len(waiting)) as advance:
        for job in waiting:
            advance(job.name, 0)
            if _state(job, out) != "done":  # by another process, meanwhile
                _attempt(job, out, data_dir, device)
            advance(job.name)
    failures = [job for job in jobs if _state(job, out) == "failed"]
    return {job.name: read_json(_failed(job, out))["error"] for job in failures}


def _require_folder(out: Path) -> None:
    if out.exists() and not out.is_dir():
        raise InputError(f"{out} is not a folder: choose another place for the runs.")


def distinct(jobs: list[Job]) -> list[Job]:
    """Each run once: supervised learning serves all cells, and the default all sweeps."""
    first: dict[str, Job] = {}
    for job in jobs:
        first.setdefault(job.key, job)
    return list(first.values())


def require_sets(jobs: list[Job], data_dir: Path | None) -> None:
    """Before hours of work: an error if a set is missing that one of the runs needs."""
    for job in {(job.scale.name, job.data.open_set): job for job in jobs}.values():
        require_data(job.scale, job.data.open_set, data_dir)


def _attempt(job: Job, out: Path, data_dir: Path | None, device: str) -> None:
    """A failure is written down, so that the others go on; data that the user must mend stop everything."""
    ready = False
    try:
        problem_of(job, data_dir)
        ready = True
        run_job(job, out, data_dir, device)
        _failed(job, out).unlink(missing_ok=True)
    except RunBusyError:
        return  # another process is at it
    except Exception as error:
        if isinstance(error, InputError) and not ready:
            raise
        if (out / job.key).exists():  # another process has just finished it
            return
        told = {
            "name": job.name,
            "error": f"{type(error).__name__}: {error}",
            "traceback": traceback.format_exc(),
        }
        write_json(_failed(job, out), {**told, "config": job.config})


def _failed(job: Job, out: Path) -> Path:
    return out / f"{job.key}.failed.json"


def run_job(job: Job, out: Path, data_dir: Path | None, device: str = "auto") -> None:
    """Train one run and leave its RUN folder with `result.json`."""
    scale = job.scale
    problem = problem_of(job, data_dir)
    method = method_of(job, problem)
    data = supervised_problem(problem) if job.row.reference == "supervised" else problem
    versions = scale.encoding is not None
    views = make_views(data.X, versions=versions, **moments(scale), device=find_device(device))
    model = build_net(
        scale.net, views.shape, data.candidates.n_classes, seed=job.seed, **scale.net_settings
    )
    plan = {"scheme": scale.scheme, "seed": job.seed, **job.plan}
    with writing(out / job.key, job.config) as run:
        known: dict[str, Any] = {"test": data.test, "truth": data.truth}
        fitted = fit(
            model, views, data.candidates, method, **known, run=run, label=job.row.name, **plan
        )
        found = result(job, fitted, data) | {"data": run.note["training"]["data"]}
        write_json(run.folder / "result.json", found)


def problem_of(job: Job, data_dir: Path | None) -> Problem:
    """The corrupted data of a run. The last ones are kept: the methods of a cell share them."""
    scale, cell = job.scale, job.data
    key = (
        scale.known,
        scale.n_known,
        scale.n_test,
        cell.open_set,
        job.seed,
        data_dir,
        scale.encoding,
    )
    return _problem(key, cell)


@lru_cache(maxsize=1)
def _problem(source_of: tuple[Any, ...], cell: Cell) -> Problem:
    *_, seed, _, encoding = source_of
    problem = make_problem(
        load_source(*source_of), q=cell.q, tau1=cell.tau1, tau2=cell.tau2, seed=seed
    )
    return problem if encoding is None else reduced(problem, encoding.components)


def method_of(job: Job, problem: Problem) -> Method:
    """The method of a row. Only the oracle is told the kinds."""
    row, settings = job.row, job.settings
    if settings.get("rates", "auto") != "auto":
        factor = 1 if settings["rates"] == "true" else settings["rates"]
        shares = (factor * problem.rates.closed, factor * problem.rates.open)
        settings = {**settings, "rates": Rates(*(share / max(1, sum(shares)) for share in shares))}
    if row.reference == "oracle":
        return Oracle(true_selection(problem.truth), **settings)
    return make_method(row.method, row.preset, settings)


def result(job: Job, fitted: Fitted, data: Problem) -> dict[str, Any]:
    """What tables and figures need of a run."""
    history = fitted.history
    predicted, labels = fitted.predictor.logits(data.test[0]).argmax(-1), data.test[1]
    kept = (
        "accuracy",
        *(k for k in history[-1] if k.startswith(("precision_", "recall_", "auroc_"))),
    )
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
        "curves": {
            k: [None if (v := row.get(k)) is None else round(v, 4) for row in history] for k in kept
        },
        "images": data.truth.manifest["images"],
        "time": time.time(),
        "versions": versions(),
        "machine": machine(),
        **(
            figures_of(fitted.method, fitted, data)
            if isinstance(fitted.method, OOC) and fitted.selection
            else {}
        ),
    }


def machine() -> dict[str, Any]:
    """Tell what decides how sums are rounded. It is not part of a run's key."""
    return {
        "processor": _processor(),
        "instructions": torch.backends.cpu.get_cpu_capability(),
        "threads": torch.get_num_threads(),
    }


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    models = (line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    return next(models, platform.processor() or platform.machine())


def figures_of(method: OOC, fitted: Fitted, data: Problem) -> dict[str, Any]:
    """What the figures of losses (under the warm-up ensemble) and examples (by the final model) need of a run."""
    masks, truth = data.candidates.dense(), data.truth
    examples = typical_examples(truth, masks, fitted.selection)
    inputs = data.X[[example["row"] for example in examples]]
    probs = fitted.predictor.predict_proba(
        inputs if inputs.ndim != 3 or inputs.dtype == np.uint8 else inputs[:, 0]
    )
    for example, p in zip(examples, probs.tolist(), strict=True):
        example["probs"] = [round(value, 4) for value in p]
    ensemble = method.average.cpu().numpy()
    return {
        "figures": {"losses": loss_histograms(ensemble, masks, truth.kinds), "examples": examples}
    }


def results(out: Path) -> Iterator[dict[str, Any]]:
    """The results of all finished runs in a folder; other files that are called so are none."""
    _require_folder(out)
    for path in sorted(out.glob("*/result.json")):
        refuse_newer_format(path.parent)
        if not path.parent.name.endswith(".partial") and is_result(found := read_json(path)):
            yield found


def is_result(found: Any) -> bool:
    return isinstance(found, dict) and found.keys() >= RESULT


def plan(jobs: list[Job], out: Path) -> list[dict[str, Any]]:
    """Each run with its state and an estimate of its seconds from those already done; None if nothing is known."""
    done = list(results(out))
    return [
        {
            "name": job.name,
            "key": job.key,
            "state": _state(job, out),
            "seconds": _estimate(job, done),
        }
        for job in jobs
    ]


def _state(job: Job, out: Path) -> str:
    if (out / job.key).exists():
        return "done"
    if is_locked(out / job.key):
        return "running"
    if _failed(job, out).exists():
        return "failed"
    return "unfinished" if (out / f"{job.key}.partial").exists() else "to do"


def _estimate(job: Job, done: list[dict[str, Any]]) -> float | None:
    """The median of the same row at the same scale, else of the scale."""
    scale = [r for r in done if r["scale"] == job.scale.name]
    same = [r["seconds"] for r in scale if r["row"] == job.row.name] or [
        r["seconds"] for r in scale
    ]
    return float(np.median(same)) if same else None
