"""What a method costs beside the network's own arithmetic: an epoch of each against a bare loop.

    python benchmarks/overhead.py --out FILE.json

The net is that of the scale `cpu`. The bare loop has the same net, the same batches and as many
forward and backward passes, plain cross-entropy, and its data already as one float tensor in
memory. For `ooc` with the extra pass, one inference pass is added to it.
"""

from __future__ import annotations

import argparse
import copy
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F

from candidly.bench.scales import SCALES
from candidly.cli import heap
from candidly.corruption import corrupt
from candidly.kinds import Rates
from candidly.methods.pico import PiCO
from candidly.methods.settings import make_method
from candidly.tensors.nets import build_net
from candidly.tensors.views import make_views
from candidly.training.trainer import Trainer, batches, make_scheme
from pairs import paired_ratio

# name: (method, settings, scheme, passes with gradient, passes without, inference pass over all?)
CASES = {
    "cc": ("cc", {}, "fast", 1, 0, False),
    "proden": ("proden", {}, "fast", 1, 0, False),
    "lws": ("lws", {}, "fast", 1, 0, False),
    "cavl": ("cavl", {}, "fast", 1, 0, False),
    "ooc, recorded": ("ooc", {"rates": Rates(0.14, 0.28), "warmup": 0}, "fast", 1, 0, False),
    "ooc, extra pass": ("ooc", {"rates": Rates(0.14, 0.28), "warmup": 0}, "paper", 2, 0, True),
    "pico": ("pico", {"prototype_start": 0}, "fast", 1, 1, False),
    "crdpll": ("crdpll", {}, "fast", 3, 0, False),
}
LIMITS = {
    **dict.fromkeys(("cc", "proden", "lws", "cavl"), 1.08),
    **dict.fromkeys(("ooc, recorded", "ooc, extra pass"), 1.10),
    **dict.fromkeys(("pico", "crdpll"), 1.15),
}


def bare_epoch(model, X, y, order, batch_size, with_grad, without, inference) -> Callable[[], None]:
    optimizer = torch.optim.SGD(
        model.parameters(), lr=0.01, momentum=0.9, weight_decay=1e-3, nesterov=True
    )

    def run() -> None:
        model.train()
        for index, _ in batches(order, batch_size):
            x, target = X[index], y[index]
            with torch.no_grad():
                for _ in range(without):
                    model(x)
            loss = sum(F.cross_entropy(model(x), target) for _ in range(with_grad))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        if inference:
            model.eval()
            with torch.no_grad():
                for rows in torch.arange(len(X)).split(512):
                    model(X[rows])

    return run


def fill_queue(method: PiCO) -> None:
    """Fill the queue as the first steps of a training do."""
    method.queue = F.normalize(torch.randn(method.queue.shape), dim=-1)
    method.queue_labels = torch.arange(method.queue_size) % 10
    method.pointer.fill_(method.queue_size)


def measure(name: str, n: int = 512, batch_size: int = 128, pairs: int = 31) -> dict[str, float]:
    key, settings, scheme, with_grad, without, inference = CASES[name]
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (n, 32, 32, 3), dtype=np.uint8)
    labels = rng.integers(10, size=n)
    sets, truth = corrupt(labels, 10, q=0.1, seed=0)
    model = build_net(SCALES["cpu"].net, (3, 32, 32), 10, **SCALES["cpu"].net_settings)
    plan = make_scheme(scheme, epochs=10_000, batch_size=batch_size, lr=1e-4)
    method = make_method(key, None, settings)
    ours = Trainer(copy.deepcopy(model), make_views(images[truth.source]), sets, method, plan)
    X = ours.views(torch.arange(n), "plain")
    bare_model = model.to(memory_format=torch.channels_last)
    bare = bare_epoch(
        bare_model,
        X,
        torch.as_tensor(labels),
        torch.randperm(n),
        batch_size,
        with_grad,
        without,
        inference,
    )
    if isinstance(method, PiCO):
        fill_queue(method)
    epoch = iter(range(1, 10_000))
    with heap.keeping_freed_memory():  # as `fit` does it; the bare loop gains as much
        return paired_ratio(lambda: ours.epoch(next(epoch)), bare, pairs)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cases", nargs="+", default=list(CASES), choices=list(CASES))
    parser.add_argument("--n", type=int, default=512)
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--pairs", type=int, default=31)
    parser.add_argument("--out", type=Path)
    chosen = parser.parse_args()
    results = {}
    for name in chosen.cases:
        results[name] = measure(name, chosen.n, chosen.batch_size, chosen.pairs)
        r = results[name]
        verdict = "within" if r["high"] <= LIMITS[name] else "ABOVE"
        ratio = f"{r['ratio']:.3f} [{r['low']:.3f}, {r['high']:.3f}]"
        print(f"{name:16} {ratio} x bare, {verdict} {LIMITS[name]:.2f}", flush=True)
    if chosen.out:
        chosen.out.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
