"""The selection step beside one memory pass over its arrays, and at the size of ImageNet: time and peak memory.

    python benchmarks/selection.py               # 1,000,000 x 100, interleaved pairs
    python benchmarks/selection.py --imagenet    # 1,280,000 x 1,000: what `ooc` keeps of every example, and one selection

A pass reads every logit and every candidate once (`logits.amax(1)`, `candidates.any(1)`). The step is what `ooc` does
before a main epoch: move the ensemble, score all rows, divide them.
"""

from __future__ import annotations

import argparse
import json
import resource
import time

import torch
from pairs import paired_ratio

from candidly.selection import Rates, score, select


def arrays(n: int, c: int) -> tuple[torch.Tensor, torch.Tensor]:
    rng = torch.Generator().manual_seed(0)
    return torch.randn(n, c, generator=rng), torch.rand(n, c, generator=rng) < 0.1


def beside_a_pass(n: int = 1_000_000, c: int = 100, pairs: int = 9) -> dict[str, float]:
    logits, candidates = arrays(n, c)

    def step() -> None:
        select(*score(logits, candidates, openness="confidence"), Rates(0.14, 0.28))

    return paired_ratio(step, lambda: (logits.amax(1), candidates.any(1)), pairs)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--imagenet", action="store_true")
    if not parser.parse_args().imagenet:
        print(json.dumps(beside_a_pass()))
