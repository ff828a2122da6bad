"""What else might make a training step of the quick net faster? Each variant beside the step as it is.

    python benchmarks/variants.py [--out FILE.json]

As it is: channels last, float32, eager. A ratio above 1 is slower. For `compiled`, the seconds of compilation too, and
after how many epochs of 50,000 images they would be paid back.
"""

from __future__ import annotations

import argparse
import copy
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from candidly.nets import build_net
from pairs import paired_ratio

BATCH, EPOCH = 128, 50_000


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


def measure(pairs: int = 15) -> dict[str, dict[str, float]]:
    net, x = build_net("fastconv", (3, 32, 32), 10), torch.randn(BATCH, 3, 32, 32)
    last = copy.deepcopy(net).to(memory_format=torch.channels_last)
    x_last = x.to(memory_format=torch.channels_last)
    bare, found = stepper(last, x_last), {}
    found["channels first"] = paired_ratio(stepper(copy.deepcopy(net), x), bare, pairs)
    half = stepper(copy.deepcopy(last), x_last, enabled=True, dtype=torch.bfloat16)
    found["bfloat16"] = paired_ratio(half, bare, pairs)
    compiled, began = stepper(torch.compile(copy.deepcopy(last)), x_last), time.perf_counter()
    compiled()
    compiling = time.perf_counter() - began
    found["compiled"] = paired_ratio(compiled, bare, pairs)
    gain = (found["compiled"]["bare_seconds"] - found["compiled"]["seconds"]) * EPOCH / BATCH
    found["compiled"] |= {"compiling": compiling, "epochs": compiling / gain if gain > 0 else float("inf")}
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=15)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    results = measure(options.pairs)
    for name, r in results.items():
        print(f"{name:16} {r['ratio']:.2f} [{r['low']:.2f}, {r['high']:.2f}] x the step as it is")
    print(
        f"compilation: {results['compiled']['compiling']:.0f} s, {results['compiled']['epochs']:.1f} epochs to pay back"
    )
    if options.out:
        options.out.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
