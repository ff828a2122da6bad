"""The selection step beside one memory pass over its arrays; at ImageNet's size, time and memory.

    python benchmarks/selection.py               # 1,000,000 x 100, interleaved pairs
    python benchmarks/selection.py --parts       # its parts, one after the other, in milliseconds
    python benchmarks/selection.py --imagenet    # 1,280,000 x 1,000: state of `ooc`, and selections

`scores`: from logits and candidates to three groups, beside a pass that reads their bytes once, as
fast as memory allows. `rows`: beside torch's largest entry of each row, which is slow for bytes.
`training`: what `ooc` does between two epochs, which also moves the ensemble and keeps candidates
as bits, beside reading the bytes of all three. All within `heap.keeping_freed_memory`, as in a
training.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Callable

import numpy as np
import torch
from torch import nn

import growth
from candidly.blocks import row_blocks
from candidly.cli import heap
from candidly.kinds import Rates
from candidly.methods.ooc import OOC
from candidly.scores import wooden_losses
from candidly.selection import score, select
from pairs import paired_ratio, seconds


def beside_a_pass(n: int = 1_000_000, c: int = 100, pairs: int = 9) -> dict[str, dict[str, float]]:
    rng = torch.Generator().manual_seed(0)
    logits, candidates = torch.randn(n, c, generator=rng), torch.rand(n, c, generator=rng) < 0.1

    def step() -> None:
        select(*score(logits, candidates, open_score="doubt"), Rates(0.14, 0.28))

    method = made_method(candidates, rng)
    arrays, epochs = (logits, method.average, method.candidates.packed), iter(range(1, 1000))
    with heap.keeping_freed_memory():
        return {
            "scores": paired_ratio(step, lambda: read(logits, candidates), pairs),
            "rows": paired_ratio(
                step, lambda: (logits.amax(1), candidates.view(torch.uint8).amax(1)), pairs
            ),
            "training": paired_ratio(
                lambda: method.epoch_start(next(epochs), lambda: logits),
                lambda: read(*arrays),
                pairs,
            ),
        }


def parts(n: int = 1_000_000, c: int = 100, turns: int = 9) -> dict[str, float]:
    """Median milliseconds of the whole, of its parts, and of reading the bytes, in turn."""
    rng = torch.Generator().manual_seed(0)
    logits, candidates = torch.randn(n, c, generator=rng), torch.rand(n, c, generator=rng) < 0.1
    log_probs, rates = logits.log_softmax(1), Rates(0.14, 0.28)

    def scored() -> tuple[torch.Tensor, torch.Tensor]:
        return score(logits, candidates, open_score="doubt")

    scores = scored()
    jobs: dict[str, Callable[[], object]] = {
        "reading": lambda: read(logits, candidates),
        "selection": lambda: select(*scored(), rates),
        "scores": scored,
        "rankings": lambda: select(*scores, rates),
        "log-softmax": lambda: [
            logits[rows].log_softmax(1) is None for rows in row_blocks(n, c)
        ],  # nothing is kept
        "wooden losses": lambda: [
            wooden_losses(log_probs[rows], candidates[rows]) for rows in row_blocks(n, c)
        ],
    }
    with heap.keeping_freed_memory():
        times = [[seconds(job) for job in jobs.values()] for _ in range(turns + 1)][1:]
    return dict(zip(jobs, [round(1e3 * t, 1) for t in np.median(times, axis=0)], strict=True))


def read(*arrays: torch.Tensor) -> list[torch.Tensor]:
    return [array.flatten().view(torch.uint8).view(torch.int64).sum() for array in arrays]


def made_method(candidates: torch.Tensor, rng: torch.Generator) -> OOC:
    method = OOC(rates=Rates(0.14, 0.28), warmup=1, open_score="doubt", overlap=False)
    method.epochs = 3
    method.setup(nn.Identity(), candidates, rng)
    return method


def imagenet(n: int = 1_280_000, c: int = 1_000) -> dict[str, float]:
    """Hold the per-example state of `ooc` and of a recorded pass; select in and after warm-up."""
    rng = torch.Generator().manual_seed(0)
    candidates = torch.zeros(n, c, dtype=torch.bool)
    for block in candidates.split(1 << 14):
        block.copy_(torch.rand(block.shape, generator=rng) < 0.1)
    candidates[torch.arange(n), torch.randint(0, c, (n,), generator=rng)] = True
    method = made_method(candidates, rng)
    del candidates
    recorded = torch.empty(n, c, dtype=torch.float16)
    for block in recorded.split(1 << 14):
        block.copy_(torch.randn(block.shape, generator=rng))
    with heap.keeping_freed_memory():
        took = [
            seconds(lambda epoch=epoch: method.epoch_start(epoch, lambda: recorded))
            for epoch in (1, 2)
        ]
    state = (
        sum(buffer.nbytes for buffer in method.buffers())
        + method.candidates.packed.nbytes
        + recorded.nbytes
    )
    peak = growth.memory("VmHWM") * 2**20
    return {
        "rows": n,
        "classes": c,
        "seconds": max(took),
        "state_gb": state / 1e9,
        "peak_gb": peak / 1e9,
    }


def imagenet_apart() -> dict[str, float]:
    """In a process of its own, so that its peak memory is its own."""
    return json.loads(
        subprocess.run(
            [sys.executable, __file__, "--imagenet"], check=True, capture_output=True
        ).stdout
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--imagenet", action="store_true")
    parser.add_argument("--parts", action="store_true")
    options = parser.parse_args()
    print(
        json.dumps(
            imagenet() if options.imagenet else parts() if options.parts else beside_a_pass()
        )
    )
