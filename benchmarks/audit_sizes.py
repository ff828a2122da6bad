"""Do sets that are wide in doubtful rows, though these are not open, mislead the estimated shares?

    python benchmarks/audit_sizes.py

Outputs are drawn at random, truths from the outputs, wrong labels blindly, and more of them in more
doubtful rows. One line per way to do so: the true open share; the share that is found if sizes
always count, and as it is, mean and largest over the seeds; and how many of the 90 % intervals hold
the truth.
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
    """A way to draw sets.

    `wrong` maps doubt (1 - max p) to the share of wrong labels that are candidates. The lower the
    `concentration`, the surer the outputs. The sets of a share `open` of the rows have nothing to
    do with the outputs.
    """

    name: str
    wrong: Callable[[Floats], Floats]
    n: int = 2000
    c: int = 6
    concentration: float = 0.25
    open: float = 0.0


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
    """Draw (mask, probs)."""
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
    """Return (open share if sizes always count, open share, whether its interval holds)."""
    mask, probs = draw(way, seed)
    found = study(read_outputs(mask, probs, None, None))
    low, high = found.estimate.open_interval
    always = shares(fit_mixture(found.seen, way.c), found.seen)[2]
    return float(always), found.estimate.open, low <= way.open <= high


def main() -> None:
    print("| sets | true | sizes always count | as it is | intervals that hold |")
    print("|---|---|---|---|---|")
    for way in WAYS:
        always, found, holds = zip(*(measure(way, seed) for seed in range(SEEDS)), strict=True)
        shown = [f"{np.mean(values):.3f}, at most {max(values):.3f}" for values in (always, found)]
        cells = [way.name, way.open, *shown, f"{sum(holds)} of {SEEDS}"]
        print(f"| {' | '.join(map(str, cells))} |", flush=True)


if __name__ == "__main__":
    main()
