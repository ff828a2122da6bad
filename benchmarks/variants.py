"""What might make a training step of the quick net faster? Each variant beside the step as it is.

    python benchmarks/variants.py

As it is: channels last, float32, eager, and freed memory stays in the process. A ratio above 1 is
slower. For `compiled`, the seconds of compilation too, and after how many epochs of 50,000 images
they would be paid back (-1: never).
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from candidly.cli import heap
from candidly.tensors.nets import build_net, channels_last
from pairs import median_interval, paired_ratio, seconds

BATCH = 128
EPOCH = 50_000  # images
NAMES = ("channels first", "bfloat16", "compiled")


def stepper(net: nn.Module, x: torch.Tensor, **autocast: Any) -> Callable[[], None]:
    optimizer = torch.optim.SGD(net.parameters(), 0.01, 0.9, nesterov=True)
    labels = torch.arange(len(x)) % 10

    def step() -> None:
        optimizer.zero_grad()
        with torch.autocast("cpu", **{"enabled": False, **autocast}):
            logits = net(x)
        F.cross_entropy(logits.float(), labels).backward()
        optimizer.step()

    return step


def fresh(kept: bool) -> float:
    """Time 25 steps in a new process; freed memory stays in it, as in `fit`, or is given back."""
    command = [sys.executable, __file__, "--steps", "kept" if kept else "given back"]
    return float(subprocess.run(command, check=True, capture_output=True).stdout)


def steps(kept: str, count: int = 25) -> float:
    step = stepper(
        channels_last(build_net("fastconv", (3, 32, 32), 10), (3, 32, 32)),
        torch.randn(BATCH, 3, 32, 32).to(memory_format=torch.channels_last),
    )
    with heap.keeping_freed_memory() if kept == "kept" else nullcontext():
        for _ in range(5):
            step()
        return seconds(lambda: [step() for _ in range(count)])


def memory(pairs: int = 9) -> dict[str, float]:
    """Compare processes in pairs: a process cannot change back how it handles memory."""
    times = []
    for k in range(pairs):
        spent = {kept: fresh(kept) for kept in ((True, False) if k % 2 else (False, True))}
        times.append((spent[True], spent[False]))
    bare, given_back = np.array(times).T
    ratio, low, high = median_interval(given_back / bare)
    took = {"seconds": float(np.median(given_back)), "bare_seconds": float(np.median(bare))}
    return {"ratio": ratio, "low": low, "high": high, **took, "pairs": pairs}


def once(name: str, pairs: int) -> dict[str, float]:
    """One variant in this process."""
    net, x = build_net("fastconv", (3, 32, 32), 10), torch.randn(BATCH, 3, 32, 32)
    last, x_last = (
        channels_last(copy.deepcopy(net), x.shape[1:]),
        x.to(memory_format=torch.channels_last),
    )
    bare = stepper(last, x_last)
    with heap.keeping_freed_memory():
        if name == "channels first":
            return paired_ratio(stepper(net, x), bare, pairs)
        if name == "bfloat16":
            return paired_ratio(
                stepper(copy.deepcopy(last), x_last, enabled=True, dtype=torch.bfloat16),
                bare,
                pairs,
            )
        compiled, began = stepper(torch.compile(copy.deepcopy(last)), x_last), time.perf_counter()
        compiled()
        compiling = time.perf_counter() - began
        found = paired_ratio(compiled, bare, pairs)
    gain = (found["bare_seconds"] - found["seconds"]) * EPOCH / BATCH
    return found | {"compiling": compiling, "epochs": compiling / gain if gain > 0 else -1.0}


def measure(pairs: int = 15) -> dict[str, dict[str, Any]]:
    """Measure each in a process of its own: processors may lack instructions that torch tries."""
    found: dict[str, dict[str, Any]] = {}
    for name in NAMES:
        command = [sys.executable, __file__, "--once", name, "--pairs", str(pairs)]
        uncached = os.environ | {"TORCHINDUCTOR_FORCE_DISABLE_CACHES": "1"}  # compiling counts
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=uncached)
        if done.returncode == 0:
            found[name] = json.loads(done.stdout)
        else:
            error = f"the process ended with code {done.returncode}: {done.stderr[-300:]}"
            found[name] = {"error": error.rstrip(": ")}
    return found | {"memory given back": memory()}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pairs", type=int, default=15)
    parser.add_argument("--once", choices=NAMES, help=argparse.SUPPRESS)
    parser.add_argument("--steps", choices=("kept", "given back"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.steps:
        print(steps(options.steps))
        return
    print(json.dumps(once(options.once, options.pairs) if options.once else measure(options.pairs)))


if __name__ == "__main__":
    main()
