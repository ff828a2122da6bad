"""`candidly demo`: a few jobs of scale `digits`, a table of their results, and two pictures."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from candidly.auditing.verdicts import Audit
from candidly.bench.figures import losses_figure, precision_figure
from candidly.bench.grid import Cell, Job, Row
from candidly.bench.problems import Problem
from candidly.bench.runner import RESULT, method_of, problem_of, run_job
from candidly.bench.scales import SCALES
from candidly.checks import one_of
from candidly.kinds import CLOSED, KINDS, OPEN
from candidly.methods.settings import parse_settings
from candidly.methods.twins import warmup_epochs
from candidly.storage.store import Run, read_arrays, read_json, write_json, writing

SHOWN = ("proden", "ooc", "candid")
SELECTING = ("ooc", "candid")


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
    """Train PRODEN, `ooc`, `candid` and `also` on scikit-learn's digits, and audit them.

    Parameters
    ----------
    out : Path
        The RUN folder of the demo: a RUN folder for each method, `results.json`, and two pictures.
        An earlier demo gives way.
    q, tau1, tau2 : float
        How the labels are corrupted; see `candidly.corrupt`.
    seed : int
        Decides the data and the training.
    epochs : int
        Length of each training.
    settings : list of str
        `name=value` for `ooc`, or `method.name=value`.
    also : list of str
        Other methods to train.

    Returns
    -------
    dict
        The content of `results.json`; `demo_text` prints it.
    """
    began = time.perf_counter()
    scale = replace(SCALES["digits"], changes={"epochs": epochs})
    cell = Cell("digits", q, tau1, tau2)
    jobs = [Job(scale, cell, row, seed) for row in demo_rows(settings, also)]
    problem = problem_of(jobs[0], None)
    methods = {job.row.name: method_of(job, problem) for job in jobs}
    configs = {job.row.name: job.config for job in jobs}
    with writing(out, {"demo": "digits", "methods": configs}, replace=True) as run:
        found = {job.row.name: _result(job, run.folder / folder_name(job.row.name)) for job in jobs}
        _draw(run, found, warmup_epochs(methods["ooc"].settings["warmup"], epochs))
        results = {
            "out": str(out),
            "data": problem.truth.manifest,
            "methods": [_summary(job.row, found[job.row.name]) for job in jobs],
            "audit": _audit(problem, run.folder / "candid"),
            "seconds": round(time.perf_counter() - began, 1),
        }
        write_json(run.folder / "results.json", results)
    return results


def demo_rows(settings: list[str], also: list[str]) -> list[Row]:
    """Make the rows of the demo from `--set` and `--also`."""
    given: dict[str, list[str]] = {name: [] for name in (*SHOWN, *also)}
    for assignment in settings:
        owner, dot, _ = assignment.partition("=")[0].partition(".")
        name = one_of(owner, given, "method of this demo") if dot else "ooc"
        given[name].append(assignment.removeprefix(f"{owner}.") if dot else assignment)
    parsed = {name: parse_settings(name, assignments) for name, assignments in given.items()}
    others = [name for name in parsed if name not in SHOWN]
    return [
        Row("PRODEN", "proden", settings=parsed["proden"]),
        Row("ooc", "ooc", settings=parsed["ooc"]),
        Row("candid", "candid", settings=parsed["candid"]),
        *(Row(name, name, settings=parsed[name]) for name in others),
    ]


def _audit_lines(found: dict[str, Any] | None) -> list[str]:
    """Write the audit of the demo."""
    if found is None:
        return []
    lines = [
        "",
        "The audit of the training examples, from what candid's nets said of unseen ones:",
        f"{'':12}  {'true':>8}  {'estimate':>8}  {'90 % interval':>16}  {'called so':>9}   right",
    ]
    for name in ("closed", "open"):
        kind = found[name]
        low, high = kind["interval"]
        interval = f"{100 * low:.1f} to {100 * high:.1f}%"
        right = "-" if kind["precision"] is None else f"{100 * kind['precision']:.0f}%"
        lines.append(
            f"{name:12}  {100 * kind['true']:7.1f}%  {100 * kind['estimate']:7.1f}%  "
            f"{interval:>16}  {kind['called']:>9}  {right:>6}"
        )
    return lines


def folder_name(row: str) -> str:
    return row.replace(", ", "-").lower()


def _result(job: Job, folder: Path) -> dict[str, Any]:
    """Train a job, unless an interrupted demo has finished it."""
    if folder.exists():
        return read_json(folder / RESULT)
    return run_job(job, folder, None, keep_model=True)


def _summary(row: Row, result: dict[str, Any]) -> dict[str, Any]:
    """Make a line of the printed table."""
    curves = result["curves"]
    precision = {name: curve[-1] for name, curve in curves.items() if name.startswith("precision_")}
    return {"name": row.name, "given": row.given, "accuracy": result["score"] / 100, **precision}


def _audit(problem: Problem, folder: Path) -> dict[str, Any] | None:
    """Audit the training rows by what `candid` said of unseen rows; None after few epochs."""
    if not (folder / "arrays.npz").exists():
        return None
    audit = Audit(problem.candidates, logits=read_arrays(folder)["ensemble"])
    verdicts = audit.table["verdict"].to_numpy()
    found: dict[str, Any] = {"notes": list(audit.estimate.notes)}
    for kind, name in ((CLOSED, "closed"), (OPEN, "open")):
        true = problem.truth.kinds == kind
        called = verdicts == name
        found[name] = {
            "true": float(true.mean()),
            "estimate": getattr(audit.estimate, name),
            "interval": getattr(audit.estimate, f"{name}_interval"),
            "called": int(called.sum()),
            "precision": float(true[called].mean()) if called.any() else None,
        }
    return found


def _draw(run: Run, found: dict[str, Any], warmup: int) -> None:
    """Draw the losses at the end of the warm-up, and the precision of the selection per epoch."""
    if "figures" not in found["ooc"]:  # too few epochs, or settings without a selection
        return
    losses = losses_figure(found["ooc"]["figures"]["losses"])
    losses.savefig(run.folder / "losses.png", dpi=150)
    curves = {name: found[name]["curves"] for name in SELECTING}
    precision_figure(curves, {"ooc": warmup}).savefig(run.folder / "precision.png", dpi=150)


def demo_text(results: dict[str, Any]) -> str:
    """Write the results as a table for the terminal."""
    data = results["data"]
    counts = data["counts"]
    out = results["out"]
    lines = [
        f"Handwritten digits 0-5 with candidate labels (q = {data['q']:g}), {data['n']} "
        "training examples: the truth",
        f"of {counts['closed']} is outside their candidates (closed); {counts['open']} are "
        "digits 6-9 of no known class (open).",
        "",
        f"{'':12}  {'accuracy':>8}   precision of the selected   normal  closed    open",
    ]
    for row in results["methods"]:
        precision = [row.get(f"precision_{kind}") for kind in KINDS]
        cells = "".join(f"{'-' if value is None else f'{value:.2f}':>8}" for value in precision)
        lines.append(f"{row['name']:12}  {100 * row['accuracy']:7.1f}%   {'':25} {cells}")
    if any(row["given"] == "true shares" for row in results["methods"]):
        lines += [
            "",
            "ooc is given the true numbers of closed and open examples, not which they are;",
            "the other methods are given nothing.",
        ]
    lines += _audit_lines(results["audit"])
    lines += [
        "",
        f"Written to {out}/ in {results['seconds']:.0f} s:",
        f"  {'proden/, ooc/, ...':20} metrics.jsonl, model/, run.json of each",
    ]
    if (Path(out) / "losses.png").exists():
        lines += [
            f"  {'losses.png':20} losses of the three kinds, mean and wooden",
            f"  {'precision.png':20} precision of the selection, epoch by epoch",
        ]
    return "\n".join(
        [*lines, "", "Next: candidly methods    candidly demo --q 0.5    candidly demo --help"]
    )
