"""What an audit costs: time beside one pass of `probs.max(axis=1)`, memory beside its inputs.

    python benchmarks/audit_speed.py [--rows 1000000] [--classes 100] [--out FILE.json]

Time: nine interleaved pairs, median. The rates are fitted on a sample, at a cost that does not
depend on the rows: it is part of the audit, and also measured apart. Memory: the peak of a process
that audits memory-mapped probabilities, mapped pages included, above its memory after the imports,
as a multiple of the inputs (Linux only).
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

from candidly import CandidateSets, audit, estimate_rates
from pairs import paired_ratio

CHILD = """
import sys
import numpy as np, pandas
import candidly.auditing.verdicts
from candidly import CandidateSets, audit
probs, mask = (np.load(path, mmap_mode="r") for path in sys.argv[1:3])
def peak():
    lines = open("/proc/self/status")
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) * 1024
before = peak()
audit(mask, probs)
print(peak() - before)
"""


def make(rows: int, classes: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Make (probs, mask): sure outputs, and sets of about three classes.

    Nine of ten sets hold the best class.
    """
    rng = np.random.default_rng(seed)
    probs = np.empty((rows, classes), dtype=np.float32)
    mask = np.empty((rows, classes), dtype=bool)
    for start in range(0, rows, 10_000):
        part = slice(start, min(start + 10_000, rows))
        shape = probs[part].shape
        p = rng.standard_exponential(shape, dtype=np.float32) ** 3
        probs[part] = p / p.sum(axis=1, keepdims=True)
        mask[part] = rng.random(shape, dtype=np.float32) < 2 / classes
        best = probs[part].argmax(axis=1)
        is_best = rng.random(shape[0]) < 0.9
        top = np.where(is_best, best, rng.integers(classes, size=shape[0]))
        mask[part][np.arange(shape[0]), top] = True
    return probs, mask


def peak_memory(probs: np.ndarray, mask: np.ndarray) -> float:
    """Return the peak of an audit in a process of its own, as a multiple of its inputs."""
    with tempfile.TemporaryDirectory() as folder:
        paths = [str(Path(folder) / name) for name in ("probs.npy", "mask.npy")]
        np.save(paths[0], probs)
        np.save(paths[1], mask)
        done = subprocess.run(
            [sys.executable, "-c", CHILD, *paths], capture_output=True, text=True, check=True
        )
    return float(done.stdout) / (probs.nbytes + mask.nbytes)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--classes", type=int, default=100)
    parser.add_argument("--pairs", type=int, default=9)
    parser.add_argument("--out", type=Path)
    chosen = parser.parse_args()
    probs, mask = make(chosen.rows, chosen.classes)
    sets = CandidateSets(mask)
    few = slice(0, min(chosen.rows, 5000))
    results: dict[str, object] = {"rows": chosen.rows, "classes": chosen.classes}
    bare = lambda: probs.max(axis=1)  # noqa: E731
    results["sets"] = paired_ratio(lambda: audit(sets, probs), bare, chosen.pairs)
    results["matrix"] = paired_ratio(lambda: audit(mask, probs), bare, 3)
    results["rates"] = paired_ratio(lambda: estimate_rates(sets[few], probs[few]), bare, 3)
    results["memory"] = peak_memory(probs, mask)
    for name in ("sets", "matrix", "rates"):
        r = results[name]
        ratio = f"{r['ratio']:.2f} [{r['low']:.2f}, {r['high']:.2f}]"
        print(f"{name:8} {ratio} x one pass ({r['bare_seconds']:.3f} s)")
    print(f"memory   {results['memory']:.2f} x the inputs")
    if chosen.out:
        chosen.out.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
