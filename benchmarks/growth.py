"""How time and memory grow with the rows: corruption, audit and report of 10 classes.

    python benchmarks/growth.py [--sizes 10000 100000 1000000] [--jobs corrupt audit report]

Nine rounds, each in a process of its own that does all sizes in turn, after a small one that is not
measured. `exponent` is the slope of log(seconds) against log(rows) between the two largest sizes: 1
is linear. Memory is what a job takes at its peak beyond its inputs (Linux).
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from pairs import median_interval

CLASSES = 10
SIZES = (10_000, 100_000, 1_000_000)


def corrupted(n: int) -> Any:
    from candidly import corrupt

    known = int(n / 1.4)
    labels = np.random.default_rng(0).integers(CLASSES, size=known)
    return corrupt(labels, CLASSES, q=0.3, tau1=0.2, tau2=0.4, seed=0, pool=n)


def outputs(n: int) -> tuple[Any, np.ndarray]:
    """Make candidate sets, and logits that are right on four of five known examples."""
    sets, truth = corrupted(n)
    rng = np.random.default_rng(1)
    logits = rng.normal(size=(len(sets), CLASSES)).astype(np.float32)
    right = np.flatnonzero((truth.labels >= 0) & (rng.random(len(sets)) < 0.8))
    logits[right, truth.labels[right]] += 5
    return sets, logits


def corrupt_job(n: int) -> Callable[[], Any]:
    return lambda: corrupted(n)


def audit_job(n: int) -> Callable[[], Any]:
    from candidly import audit

    sets, logits = outputs(n)
    return lambda: audit(sets, logits=logits)


def report_job(n: int) -> Callable[[], Any]:
    """Make the page of an audit; scripts are bundled before, as if it were not the first report."""
    from candidly import Audit
    from candidly.auditing.findings import collect_findings
    from candidly.report.build import javascript, render_page

    sets, logits = outputs(n)
    found = Audit(sets, logits=logits)
    assert len(found.table) == len(sets)  # computed before, as only the page is measured
    javascript()
    return lambda: render_page(collect_findings(found))


JOBS = {"corrupt": corrupt_job, "audit": audit_job, "report": report_job}


def once(job: str, sizes: Sequence[int]) -> list[dict[str, float]]:
    """Measure seconds, and megabytes at the peak beyond the inputs, in this process."""
    JOBS[job](1000)()
    points = []
    for n in sizes:
        run = JOBS[job](n)
        Path("/proc/self/clear_refs").write_text("5")  # the peak is now what is in use
        inputs = memory("VmRSS")
        began = time.perf_counter()
        run()
        spent = time.perf_counter() - began
        points.append({"seconds": spent, "megabytes": memory("VmHWM") - inputs})
    return points


def memory(name: str) -> float:
    """Return the megabytes of this process: VmRSS now, VmHWM at the peak."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith(name))


def measure(job: str, sizes: Sequence[int] = SIZES, rounds: int = 9) -> dict[str, Any]:
    """Return medians over the rounds, and the growth law, with the 95 % intervals of medians."""
    command = [sys.executable, __file__, "--once", job, "--sizes", *map(str, sizes)]
    found = [
        json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
        for _ in range(rounds)
    ]
    points = []
    for k, n in enumerate(sizes):
        seconds, low, high = median_interval([points[k]["seconds"] for points in found])
        megabytes = float(np.median([points[k]["megabytes"] for points in found]))
        points.append(
            {"rows": n, "seconds": seconds, "low": low, "high": high, "megabytes": megabytes}
        )
    step = math.log(sizes[-1] / sizes[-2])
    slopes = [math.log(points[-1]["seconds"] / points[-2]["seconds"]) / step for points in found]
    exponent, low, high = median_interval(slopes)
    return {"points": points, "exponent": exponent, "exponent_low": low, "exponent_high": high}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES)
    parser.add_argument("--jobs", nargs="+", default=list(JOBS), choices=list(JOBS))
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--once", choices=list(JOBS), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.once:
        print(json.dumps(once(options.once, options.sizes)))
        return
    for job in options.jobs:
        print(job, json.dumps(measure(job, options.sizes, options.rounds)), flush=True)


if __name__ == "__main__":
    main()
