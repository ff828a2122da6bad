"""How time and memory grow with the rows: corruption, audit and report at 10^4, 10^5 and 10^6 rows of 10 classes.

    python benchmarks/growth.py [--sizes 10000 100000 1000000] [--jobs corrupt audit report]

Every measurement is a process of its own, so that its peak memory is its own. `exponent` is the slope of log(seconds)
against log(rows) between the two largest sizes: 1 is linear.
"""

from __future__ import annotations

import argparse
import json
import math
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

CLASSES = 10
SIZES = (10_000, 100_000, 1_000_000)


def corrupted(n: int) -> Any:
    from candidly import corrupt

    known = int(n / 1.4)
    labels = np.random.default_rng(0).integers(CLASSES, size=known)
    return corrupt(labels, CLASSES, q=0.3, tau1=0.2, tau2=0.4, seed=0, pool=n)


def outputs(n: int) -> tuple[Any, np.ndarray]:
    """Candidate sets, and logits that know the truth of known examples four times in five."""
    sets, truth = corrupted(n)
    rng = np.random.default_rng(1)
    logits = rng.normal(size=(len(sets), CLASSES)).astype(np.float32)
    told = np.flatnonzero((truth.labels >= 0) & (rng.random(len(sets)) < 0.8))
    logits[told, truth.labels[told]] += 5
    return sets, logits


def corrupt_job(n: int) -> Callable[[], Any]:
    return lambda: corrupted(n)


def audit_job(n: int) -> Callable[[], Any]:
    from candidly import audit

    sets, logits = outputs(n)
    return lambda: audit(sets, logits=logits)


def report_job(n: int) -> Callable[[], Any]:
    """From an audit to the page; the scripts are bundled before, as on any machine that has made a report."""
    from candidly import audit, estimate_rates
    from candidly.evidence import Outputs
    from candidly.findings import gather
    from candidly.report.build import javascript, render

    sets, logits = outputs(n)
    estimate = estimate_rates(sets, logits=logits)
    table = audit(sets, logits=logits, rates=estimate)
    javascript()
    return lambda: render(gather(Outputs(sets, logits, logits=True), table, estimate))


JOBS = {"corrupt": corrupt_job, "audit": audit_job, "report": report_job}


def once(job: str, n: int) -> dict[str, float]:
    """Seconds and peak megabytes beyond what the inputs and libraries take, in this process."""
    run = JOBS[job](n)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    began = time.perf_counter()
    run()
    seconds = time.perf_counter() - began
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {"rows": n, "seconds": seconds, "inputs_mb": before / 1024, "peak_mb": peak / 1024}


def measure(job: str, sizes: Sequence[int] = SIZES, repeats: int = 3) -> dict[str, Any]:
    """The fastest of a few processes at each size, and the growth law."""
    points = []
    for n in sizes:
        command = [sys.executable, __file__, "--once", job, str(n)]
        found = [json.loads(subprocess.run(command, check=True, capture_output=True).stdout) for _ in range(repeats)]
        points.append(min(found, key=lambda point: point["seconds"]))
    (a, b) = points[-2:]
    exponent = math.log(b["seconds"] / a["seconds"]) / math.log(b["rows"] / a["rows"])
    return {"points": points, "exponent": exponent}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES)
    parser.add_argument("--jobs", nargs="+", default=list(JOBS), choices=list(JOBS))
    parser.add_argument("--once", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.once:
        print(json.dumps(once(options.once[0], int(options.once[1]))))
        return
    for job in options.jobs:
        print(job, json.dumps(measure(job, options.sizes)), flush=True)


if __name__ == "__main__":
    main()
