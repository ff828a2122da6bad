"""Which net and scheme learn most in a given time? Clean CIFAR-10, validation rows.

    python benchmarks/search.py --data-dir DIR --out FILE.jsonl '{"lr": 0.2}' '{"whiten": false}'
    python benchmarks/search.py --show results/search.jsonl

Each argument is a trial: what differs from TRIAL. A trial trains for `budget` seconds of one core.
To find the number of its steps, they are timed in turn with those of a reference net, which takes
REFERENCE on a quiet machine: trials can be compared though the machine may be busy.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from candidly.bench.scales import CIFAR_MEAN, CIFAR_STD
from candidly.bench.sources.catalogue import load_set
from candidly.tensors.nets import kaiming, whitening_filters
from candidly.tensors.views import Views, make_views
from pairs import processor

# Seconds per image, forward and backward, of `reference_net` on a quiet core (AMD EPYC).
REFERENCE = 2.0e-3
VALIDATION = 5000
TRIAL: dict[str, Any] = {
    "widths": [32, 64, 128],
    "layers": 2,  # convolutions of a stage
    "whiten": True,  # the first layer: fixed whitened patches
    "components": 12,  # of the patches, the largest first
    "shift": False,  # whose bias is learnt
    "act": "relu",
    "dirac": False,  # convolutions start as the identity
    "head": 1.0,  # factor of the logits
    "bnmom": 0.1,  # momentum of batch norm
    "bs": 128,
    "lr": 0.1,
    "wd": 0.005,
    "momentum": 0.9,
    "bias": 1,  # factor of the learning rate of batch norm's biases
    "peak": 0.25,  # of the learning rate, as a share of the training
    "ema": 0.0,  # of the weights, every fifth step; 0: none
    "smooth": 0.0,  # label smoothing
    "precision": "float32",  # or "bfloat16", in the passes of training steps
    "budget": 240,
    "seed": 0,
}
ACTIVATIONS = {"relu": nn.ReLU, "gelu": nn.GELU, "silu": nn.SiLU}


class Factor(nn.Module):
    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor

    def forward(self, x: Tensor) -> Tensor:
        return self.factor * x


def build(trial: dict[str, Any], views: Views) -> nn.Module:
    activation = ACTIVATIONS[trial["act"]]
    layers: list[nn.Module] = []
    a = 3
    if trial["whiten"]:
        a = 2 * trial["components"]
        first = nn.Conv2d(3, a, 2)
        layers += [first, activation()]
    for b in trial["widths"]:
        norms = [nn.BatchNorm2d(b, momentum=trial["bnmom"]) for _ in range(trial["layers"])]
        layers += [
            nn.Conv2d(a, b, 3, padding=1, bias=False),
            nn.MaxPool2d(2, ceil_mode=True),
            norms[0],
            activation(),
        ]
        for norm in norms[1:]:
            layers += [nn.Conv2d(b, b, 3, padding=1, bias=False), norm, activation()]
        a = b
    net = nn.Sequential(
        *layers, nn.AdaptiveMaxPool2d(1), nn.Flatten(), nn.Linear(a, 10, bias=False)
    )
    net.append(Factor(trial["head"]))
    kaiming(net)
    convolutions = [module for module in net.modules() if isinstance(module, nn.Conv2d)]
    for module in convolutions if trial["dirac"] else []:
        if module.out_channels >= module.in_channels:
            nn.init.kaiming_uniform_(module.weight, a=5**0.5)
            nn.init.dirac_(module.weight.data[: module.in_channels])
    if trial["whiten"]:
        filters = whitening_filters(views(torch.arange(2000), "plain")).unflatten(0, (2, -1))
        first.weight.data = filters[:, -trial["components"] :].flatten(0, 1)
        first.weight.requires_grad_(False)
        nn.init.zeros_(first.bias).requires_grad_(trial["shift"])
    return net.to(memory_format=torch.channels_last)


def reference_net() -> nn.Module:
    net = nn.Sequential(
        *(nn.Conv2d(3, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(32, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU()),
        *(nn.Conv2d(64, 128, 3, padding=1), nn.ReLU()),
        *(nn.AdaptiveMaxPool2d(1), nn.Flatten(), nn.Linear(128, 10)),
    )
    return net.to(memory_format=torch.channels_last)


def rate(trial: dict[str, Any], done: float) -> float:
    peak = trial["peak"]
    return trial["lr"] * (max(done / peak, 0.02) if done < peak else (1 - done) / (1 - peak))


class Training:
    """A trial: `step(rows, lr)` learns from a batch."""

    def __init__(self, trial: dict[str, Any], views: Views, labels: Tensor) -> None:
        torch.manual_seed(trial["seed"])
        self.views = views
        self.labels = labels
        self.rng = torch.Generator().manual_seed(trial["seed"])
        self.net = build(trial, views)
        self.is_low_precision = trial["precision"] == "bfloat16"
        self.smooth = trial["smooth"]
        biases = [m.bias for m in self.net.modules() if isinstance(m, nn.BatchNorm2d)]
        named = {id(p) for p in biases}
        others = [p for p in self.net.parameters() if p.requires_grad and id(p) not in named]
        decay = trial["wd"] / trial["bias"]
        groups = [
            {"params": others, "factor": 1, "weight_decay": trial["wd"]},
            {"params": biases, "factor": trial["bias"], "weight_decay": decay},
        ]
        self.optimizer = torch.optim.SGD(
            groups, lr=trial["lr"], momentum=trial["momentum"], nesterov=True
        )

    def step(self, rows: Tensor, lr: float) -> None:
        for group in self.optimizer.param_groups:
            group["lr"] = lr * group["factor"]
        with torch.autocast("cpu", torch.bfloat16, enabled=self.is_low_precision):
            logits = self.net(self.views(rows, "weak", self.rng))
        loss = F.cross_entropy(logits.float(), self.labels[rows], label_smoothing=self.smooth)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()


def seconds_of_an_image(
    trial: dict[str, Any], views: Views, labels: Tensor, pairs: int = 9
) -> float:
    training = Training(trial, views, labels)
    reference = reference_net()
    rows = torch.arange(256)
    jobs = [
        (lambda: training.step(torch.arange(trial["bs"]), 0.0), trial["bs"]),
        (lambda: F.cross_entropy(reference(views(rows, "weak")), labels[rows]).backward(), 256),
    ]
    times = []
    for _ in range(pairs + 1):
        pair = []
        for job, n in jobs:
            began = time.process_time()
            job()
            pair.append((time.process_time() - began) / n)
        times.append(pair)
    return REFERENCE * float(np.median([a / b for a, b in times[1:]]))


def run(
    trial: dict[str, Any], views: Views, labels: Tensor, held: Views, truth: Tensor
) -> dict[str, Any]:
    n = len(views)
    per_image = seconds_of_an_image(trial, views, labels)
    steps = int(trial["budget"] / per_image / trial["bs"])
    training = Training(trial, views, labels)
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        training.net.eval()(held(torch.arange(1), "plain"))
    mean = {k: v.clone() for k, v in training.net.state_dict().items()}
    order = torch.empty(0, dtype=torch.long)
    net = training.net.train()
    for k in range(steps):
        order = order if len(order) >= trial["bs"] else torch.randperm(n, generator=training.rng)
        training.step(order[: trial["bs"]], rate(trial, k / steps))
        order = order[trial["bs"] :]
        if trial["ema"] and k % 5 == 4:
            for name, value in net.state_dict().items():
                if value.is_floating_point():
                    mean[name] = mean[name].lerp(value, 1 - trial["ema"] ** 5)
                else:
                    mean[name] = value
    flop = counter.get_total_flops()
    images = steps * trial["bs"]
    found = {
        "accuracy": accuracy(net, held, truth),
        "epochs": round(images / n, 2),
        "ms": round(per_image * 1e3, 3),
    }
    if trial["ema"]:
        net.load_state_dict(mean)
        found["accuracy_ema"] = accuracy(net, held, truth)
    return {**found, "mflop": round(flop / 1e6, 1), "pflop": round(3 * flop * images / 1e15, 4)}


@torch.no_grad()
def accuracy(net: nn.Module, held: Views, truth: Tensor) -> float:
    net.eval()
    parts = torch.arange(len(held)).split(500)
    hits = sum(int((net(held(p, "plain")).argmax(1) == truth[p]).sum()) for p in parts)
    return round(100 * hits / len(held), 2)


def show(path: Path) -> None:
    """Print the trials of each processor and budget, the best first."""
    lines = list(map(json.loads, path.read_text().splitlines()))
    places = sorted({(line["processor"], line["trial"]["budget"]) for line in lines})
    for place in places:
        there = [line for line in lines if (line["processor"], line["trial"]["budget"]) == place]
        print(f"\n{place[0]}, {place[1]} s of one core\n")
        print("| accuracy | epochs | ms per image | MFLOP | PFLOP in all | what differs |")
        print("|---|---|---|---|---|---|")
        for line in sorted(there, key=lambda line: -line["accuracy"]):
            differs = {
                k: v for k, v in (TRIAL | line["trial"]).items() if v != TRIAL[k] and k != "budget"
            }
            shown = ", ".join(f"{k} {v}" for k, v in differs.items()) or "nothing"
            ema = f" ({line['accuracy_ema']} averaged)" if "accuracy_ema" in line else ""
            cells = [line["epochs"], line["ms"], line["mflop"], line["pflop"], shown]
            print(f"| {line['accuracy']}{ema} | {' | '.join(map(str, cells))} |")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("trials", nargs="*", type=json.loads)
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--out", type=Path, default=Path("search.jsonl"))
    parser.add_argument("--show", type=Path)
    options = parser.parse_args()
    if options.show:
        show(options.show)
        return
    torch.set_num_threads(1)
    X, y = load_set("cifar10", "train", options.data_dir)
    order = np.random.default_rng(123).permutation(len(X))
    rows, held = order[:-VALIDATION], order[-VALIDATION:]
    views = make_views(X[rows], mean=CIFAR_MEAN, std=CIFAR_STD)
    labels = torch.as_tensor(y[rows]).long()
    for differs in options.trials:
        trial = {**TRIAL, **differs}
        found = run(trial, views, labels, views.like(X[held]), torch.as_tensor(y[held]).long())
        with options.out.open("a") as file:
            file.write(json.dumps({"trial": trial, **found, "processor": processor()}) + "\n")
        print(json.dumps({**differs, **found}), flush=True)


if __name__ == "__main__":
    main()
