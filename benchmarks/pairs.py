"""Ratios of times, measured side by side: interleaved pairs, median, and an interval that needs no assumption."""

from __future__ import annotations

import platform
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import binom


def seconds(run: Callable[[], object]) -> float:
    began = time.perf_counter()
    run()
    return time.perf_counter() - began


def processor() -> str:
    """What times depend on."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    return next(
        (line.split(":")[1].strip() for line in lines if "model name" in line), platform.machine()
    )


def paired_ratio(
    ours: Callable[[], object], bare: Callable[[], object], pairs: int = 9
) -> dict[str, float]:
    """Median of ours / bare over interleaved pairs, each pair in alternating order, after one unmeasured pair."""
    bare()
    ours()
    times = []
    for k in range(pairs):
        first, second = (ours, bare) if k % 2 else (bare, ours)
        a, b = seconds(first), seconds(second)
        times.append((a, b) if k % 2 else (b, a))
    mine, theirs = np.array(times).T
    middle, low, high = median_interval(mine / theirs)
    took = {"seconds": float(np.median(mine)), "bare_seconds": float(np.median(theirs))}
    return {"ratio": middle, "low": low, "high": high, **took, "pairs": pairs}


def median_interval(values: Any) -> tuple[float, float, float]:
    """(median, low, high), without any assumption on the distribution.

    The interval reaches between two ordered values, such that it covers the median with a probability of at least 95 %:
    of nine values, from the second smallest to the second largest.
    """
    ordered = np.sort(values)
    outside = max(
        1, int(binom.ppf(0.025, len(ordered), 0.5))
    )  # values beyond each end, the end included
    return float(np.median(ordered)), float(ordered[outside - 1]), float(ordered[-outside])
