"""Ratios of times, measured side by side: interleaved pairs, their median, and an interval."""

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
    """Name the processor."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    models = (line.split(":")[1].strip() for line in lines if "model name" in line)
    return next(models, platform.machine())


def paired_ratio(
    ours: Callable[[], object], bare: Callable[[], object], pairs: int = 9
) -> dict[str, float]:
    """Return the median of ours / bare over interleaved pairs, with its interval.

    The order within the pairs alternates; a first pair is not measured.
    """
    bare()
    ours()
    times = []
    for k in range(pairs):
        first, second = (ours, bare) if k % 2 else (bare, ours)
        a = seconds(first)
        b = seconds(second)
        times.append((a, b) if k % 2 else (b, a))
    mine, theirs = np.array(times).T
    middle, low, high = median_interval(mine / theirs)
    took = {"seconds": float(np.median(mine)), "bare_seconds": float(np.median(theirs))}
    return {"ratio": middle, "low": low, "high": high, **took, "pairs": pairs}


def median_interval(values: Any) -> tuple[float, float, float]:
    """Return (median, low, high), without any assumption on the distribution.

    The interval reaches between two ordered values, such that it covers the median with a
    probability of at least 95 %: of nine values, from the second smallest to the second largest.
    """
    ordered = np.sort(values)
    rank = max(1, int(binom.ppf(0.025, len(ordered), 0.5)))
    return float(np.median(ordered)), float(ordered[rank - 1]), float(ordered[-rank])
