"""Do sets that are wide in doubtful rows, for another reason than that these are open, mislead the estimated shares?

    python benchmarks/audit_sizes.py

Outputs are drawn at random, truths from the outputs, wrong labels blindly, and the more of them the more doubtful a
row is. A line for each way to do so: the true open share; what is found if sizes always count, and as it is, the mean
and the largest over the seeds; and how many of the 90 % intervals hold the truth.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from candidly.auditing.evidence import read_outputs
from candidly.auditing.mixture import fit_mixture, shares
from candidly.auditing.rates import study

SEEDS = 6
Floats = np.ndarray


@dataclass(frozen=True)
class Way:
    name: str
    wrong: Callable[
        [Floats], Floats
    ]  # doubt (1 - max p) to the share of the wrong labels that are candidates
    n: int = 2000
    c: int = 6
    concentration: float = 0.25  # of the outputs: the less, the surer
    open: float = 0.0  # share of the rows whose sets have nothing to do with the outputs


WAYS = [
    Way("q = doubt", lambda d: d),
    Way("the same, 10 classes", lambda d: d, c=10),
    Way("the same, surer model", lambda d: d, concentration=0.1),
    Way("the same, 500 rows", lambda d: d, n=500),
    Way("q = 0.1 + doubt / 4", lambda d: 0.1 + d / 4),
    Way("q = 0.1 + doubt / 3, 500 rows", lambda d: 0.1 + d / 3, n=500),
    Way("q = 0.2 + doubt / 2, surer model", lambda d: 0.2 + d / 2, concentration=0.1),
    Way("q = 0.3 + doubt / 2", lambda d: 0.3 + d / 2),
    Way("q = 0.5 + doubt / 2", lambda d: 0.5 + d / 2),
    Way("q = 0.5 where doubt > 0.4, else 0", lambda d: 0.5 * (d > 0.4)),
    Way("q = 0.7 where doubt > 0.5, else 0.2", lambda d: 0.2 + 0.5 * (d > 0.5)),
    Way("q = 0.9 where doubt > 0.5, else 0.4", lambda d: 0.4 + 0.5 * (d > 0.5)),
    Way("q = 0.6 - doubt: narrow", lambda d: 0.6 - d),
    Way("q = doubt, and a fifth open", lambda d: d, open=0.2),
]


def draw(way: Way, seed: int) -> tuple[Floats, Floats]:
    """(mask, probs)."""
    rng = np.random.default_rng(seed)
    probs = rng.dirichlet(np.full(way.c, way.concentration), size=way.n)
    truth = (rng.random(way.n)[:, None] < probs.cumsum(axis=1)).argmax(axis=1)
    mask = rng.random(probs.shape) < way.wrong(1 - probs.max(axis=1))[:, None]
    mask[np.arange(way.n), truth] = True
    opened = np.flatnonzero(rng.random(way.n) < way.open)
    mask[opened] = rng.random((len(opened), way.c)) < 0.3
    mask[opened, rng.integers(way.c, size=len(opened))] = True
    return mask, probs


def measure(way: Way, seed: int) -> tuple[float, float, bool]:
    """(open share if sizes always count, open share, does the interval hold the truth?)."""
    mask, probs = draw(way, seed)
    found = study(read_outputs(mask, probs, None, None))
    low, high = found.estimate.open_interval
    always = shares(fit_mixture(found.seen, way.c), found.seen)[2]
    return float(always), found.estimate.open, low <= way.open <= high


def main() -> None:
    print(
        "| sets | true | sizes always count | as it is | intervals that hold |\n|---|---|---|---|---|"
    )
    for way in WAYS:
        always, found, held = zip(*(measure(way, seed) for seed in range(SEEDS)), strict=True)
        shown = [f"{np.mean(values):.3f}, at most {max(values):.3f}" for values in (always, found)]
        print(
            f"| {way.name} | {way.open} | {shown[0]} | {shown[1]} | {sum(held)} of {SEEDS} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
