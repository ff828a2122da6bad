"""Ratios of times, measured side by side: interleaved pairs, median, and an interval that needs no assumption."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
from scipy.stats import binom


def seconds(run: Callable[[], object]) -> float:
    began = time.perf_counter()
    run()
    return time.perf_counter() - began


def paired_ratio(ours: Callable[[], object], bare: Callable[[], object], pairs: int = 9) -> dict[str, float]:
    """Median of ours / bare over interleaved pairs, each pair in alternating order, after one unmeasured pair.

    The interval reaches between two ordered ratios, such that it covers the median with a probability of at least 95 %
    whatever the distribution: of nine pairs, from the second smallest to the second largest.
    """
    bare()
    ours()
    times = []
    for k in range(pairs):
        first, second = (ours, bare) if k % 2 else (bare, ours)
        a, b = seconds(first), seconds(second)
        times.append((a, b) if k % 2 else (b, a))
    mine, theirs = np.array(times).T
    ratios = np.sort(mine / theirs)
    outside = max(1, int(binom.ppf(0.025, pairs, 0.5)))  # ratios beyond each end, the end included
    return {
        "ratio": float(np.median(ratios)),
        "low": float(ratios[outside - 1]),
        "high": float(ratios[-outside]),
        "seconds": float(np.median(mine)),
        "bare_seconds": float(np.median(theirs)),
        "pairs": pairs,
    }
