"""Run jobs of the grid. Each becomes a RUN folder named by its key, with `result.json` in it."""

from __future__ import annotations

import dataclasses
import platform
import time
import traceback
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

from candidly.bench.figures import loss_histograms, typical_examples
from candidly.bench.grid import Cell, Job, distinct
from candidly.bench.oracle import Oracle
from candidly.bench.problems import (
    Problem,
    make_problem,
    reduced,
    supervised_problem,
    true_selection,
)
from candidly.bench.results import Results, require_folder
from candidly.bench.scales import load_source, moments, require_data
from candidly.console.progress import bar
from candidly.errors import InputError, MissingExtraError, RunBusyError
from candidly.kinds import KINDS, Rates
from candidly.methods import Method
from candidly.methods.settings import make_method
from candidly.metrics import final_score
from candidly.storage.store import Run, is_locked, read_json, versions, write_json, writing
from candidly.tensors.nets import build_net
from candidly.tensors.views import make_views
from candidly.training.trainer import Fitted, find_device, fit

RESULT = "result.json"
CURVES = ("precision_", "recall_", "auroc_")


def run_jobs(
    jobs: list[Job], out: Path, data_dir: Path | None, *, retry: bool = False, device: str = "auto"
) -> dict[str, str]:
    """Run the jobs that are not finished.

    Parameters
    ----------
    jobs : list of Job
        See `table_jobs`. Jobs with the same key are run once.
    out : Path
        Folder of the RUN folders.
    data_dir : Path or None
        Folder of the image sets; None: the environment variable CANDIDLY_DATA names it.
    retry : bool
        Try failed jobs again.
    device : str
        Such as "cpu" or "cuda:1".

    Returns
    -------
    dict
        The errors of failed jobs, by the name of the job.
    """
    require_folder(out)
    out.mkdir(parents=True, exist_ok=True)
    jobs = distinct(jobs)
    waiting = []
    for job in jobs:
        if state(job, out) != "done" and (retry or not _failure(job, out).exists()):
            waiting.append(job)
    require_sets(waiting, data_dir)
    with bar(len(jobs), "runs", done=len(jobs) - len(waiting)) as advance:
        for job in waiting:
            advance(job.name, 0)
            if state(job, out) != "done":  # another process may have finished it meanwhile
                _attempt(job, out, data_dir, device)
            advance(job.name)
    failed = [job for job in jobs if state(job, out) == "failed"]
    return {job.name: read_json(_failure(job, out))["error"] for job in failed}


def require_sets(jobs: Iterable[Job], data_dir: Path | None) -> None:
    """Raise an error if an image set is missing, before hours of work."""
    for job in {(job.scale.name, job.data.open_set): job for job in jobs}.values():
        require_data(job.scale, job.data.open_set, data_dir)


def _attempt(job: Job, out: Path, data_dir: Path | None, device: str) -> None:
    """Run a job; record a failure, so that the other jobs still run.

    Data that the user has to repair stop everything.
    """
    has_data = False
    try:
        problem_of(job, data_dir)
        has_data = True
        run_job(job, out / job.key, data_dir, device)
        _failure(job, out).unlink(missing_ok=True)
    except RunBusyError:
        return
    except Exception as error:
        if isinstance(error, InputError | MissingExtraError) and not has_data:
            raise
        if (out / job.key).exists():  # another process has just finished it
            return
        failure = {
            "name": job.name,
            "error": f"{type(error).__name__}: {error}",
            "traceback": traceback.format_exc(),
            "config": job.config,
        }
        write_json(_failure(job, out), failure)


def _failure(job: Job, out: Path) -> Path:
    return out / f"{job.key}.failed.json"


def state(job: Job, out: Path) -> str:
    """Return "done", "running", "failed", "unfinished" or "to do"."""
    if (out / job.key).exists():
        return "done"
    if is_locked(out / job.key):
        return "running"
    if _failure(job, out).exists():
        return "failed"
    return "unfinished" if (out / f"{job.key}.partial").exists() else "to do"


def plan(jobs: list[Job], out: Path, found: Results) -> list[dict[str, Any]]:
    """List each job with its state and an estimate of its seconds from the results so far."""
    return [
        {
            "name": job.name,
            "key": job.key,
            "state": state(job, out),
            "seconds": _estimate(job, found),
        }
        for job in jobs
    ]


def _estimate(job: Job, found: Results) -> float | None:
    """Take the median of the same row at the same scale, else of the scale."""
    of_scale = [result for result in found.values() if result["scale"] == job.scale.name]
    of_row = [result for result in of_scale if result["row"] == job.row.name]
    seconds = [result["seconds"] for result in of_row or of_scale]
    return float(np.median(seconds)) if seconds else None


def run_job(
    job: Job, folder: Path, data_dir: Path | None, device: str = "auto", *, keep_model: bool = False
) -> dict[str, Any]:
    """Train one job into a RUN folder.

    Parameters
    ----------
    job : Job
        What to train.
    folder : Path
        The RUN folder; it must not exist.
    data_dir : Path or None
        Folder of the image sets.
    device : str
        Such as "cpu" or "cuda:1".
    keep_model : bool
        Also save `model/`, and in `arrays.npz` the ensemble and the selected groups, if the method
        has both.

    Returns
    -------
    dict
        The content of `result.json`; see `summarise`.
    """
    scale = job.scale
    problem = problem_of(job, data_dir)
    method = method_of(job, problem)
    data = supervised_problem(problem) if job.row.reference == "supervised" else problem
    has_versions = scale.encoding is not None
    views = make_views(data.X, versions=has_versions, **moments(scale), device=find_device(device))
    net: dict[str, Any] = {
        "name": scale.net,
        "shape": list(views.shape),
        "n_classes": data.candidates.n_classes,
    }
    net |= scale.net_settings
    model = build_net(**net, seed=job.seed)
    options = {"scheme": scale.scheme, "seed": job.seed, **job.plan}
    with writing(folder, job.config) as run:
        fitted = fit(
            model,
            views,
            data.candidates,
            method,
            test=data.test,
            truth=data.truth,
            run=run,
            label=job.row.name,
            **options,
        )
        result = summarise(job, fitted, data) | {"data": run.note["training"]["data"]}
        write_json(run.folder / RESULT, result)
        if keep_model:
            _save_model(run, fitted, net)
    return result


def _save_model(run: Run, fitted: Fitted, net: dict[str, Any]) -> None:
    run.save_model(fitted.predictor, net)
    ensemble = fitted.method.ensemble_logits
    if ensemble is not None and fitted.selection is not None:
        groups = dict(zip(KINDS, fitted.selection, strict=True))
        run.save_arrays(ensemble=ensemble.cpu().numpy(), **groups)


def problem_of(job: Job, data_dir: Path | None) -> Problem:
    """Make the corrupted data of a job. The last data are cached: the rows of a cell share them."""
    scale = job.scale
    cell = job.data
    source = (scale.known, scale.n_known, scale.n_test, cell.open_set, job.seed, data_dir)
    return _problem((*source, scale.encoding), cell)


@lru_cache(maxsize=1)
def _problem(source: tuple[Any, ...], cell: Cell) -> Problem:
    *_, seed, _, encoding = source
    clean = load_source(*source)
    problem = make_problem(clean, q=cell.q, tau1=cell.tau1, tau2=cell.tau2, seed=seed)
    return problem if encoding is None else reduced(problem, encoding.components)


def method_of(job: Job, problem: Problem) -> Method:
    """Make the method of a job. Only the oracle gets the kinds."""
    settings = dict(job.settings)
    if "rates" in settings:
        settings["rates"] = _shares(settings["rates"], problem.rates)
    if job.row.reference == "oracle":
        return Oracle(true_selection(problem.truth), **settings)
    return make_method(job.row.method, job.row.preset, settings)


def _shares(wanted: Any, true: Rates) -> Any:
    """Turn "true", or a multiple of the true shares, into shares of at most 1 together."""
    if wanted == "auto" or isinstance(wanted, Rates):
        return wanted
    factor = 1 if wanted == "true" else wanted
    shares = (factor * true.closed, factor * true.open)
    return Rates(*(share / max(1, sum(shares)) for share in shares))


def summarise(job: Job, fitted: Fitted, data: Problem) -> dict[str, Any]:
    """Collect what tables and figures need of a finished training."""
    history = fitted.history
    labels = data.test[1]
    predicted = fitted.predictor.logits(data.test[0]).argmax(-1)
    names = ["accuracy", *(name for name in history[-1] if name.startswith(CURVES))]
    result = {
        "key": job.key,
        "scale": job.scale.name,
        "cell": dataclasses.asdict(job.data),
        "row": job.row.name,
        "seed": job.seed,
        "score": 100 * final_score(history),
        "per_class": [float((predicted[labels == k] == k).mean()) for k in np.unique(labels)],
        "seconds": sum(row["seconds"] for row in history),
        "flops": history[-1]["flops"],
        "curves": {name: [_rounded(row.get(name)) for row in history] for name in names},
        "images": data.truth.manifest["images"],
        "time": time.time(),
        "versions": versions(),
        "machine": machine(),
    }
    ensemble = fitted.method.ensemble_logits
    if ensemble is not None and fitted.selection is not None:
        result["figures"] = _figures(ensemble.cpu().numpy(), fitted, data)
    return result


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 4)


def _figures(ensemble: np.ndarray, fitted: Fitted, data: Problem) -> dict[str, Any]:
    """Collect the losses under the warm-up ensemble, and examples with the final probabilities."""
    masks = data.candidates.dense()
    examples = typical_examples(data.truth, masks, fitted.selection)
    inputs = data.X[[example["row"] for example in examples]]
    if inputs.ndim == 3 and inputs.dtype != np.uint8:  # versions of features: take the plain one
        inputs = inputs[:, 0]
    probs = fitted.predictor.predict_proba(inputs)
    for example, p in zip(examples, probs.tolist(), strict=True):
        example["probs"] = [round(value, 4) for value in p]
    return {"losses": loss_histograms(ensemble, masks, data.truth.kinds), "examples": examples}


def machine() -> dict[str, Any]:
    """Describe what decides how sums are rounded. It is not part of a job's key."""
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
