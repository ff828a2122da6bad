"""Images per second of the views, beside kornia's.

    python benchmarks/augmentation.py [--out FILE]

All programs take turns on the same batch within one run, so that a slow moment of the machine hits
them all. kornia's policies draw their operations once for a whole batch, ours for every image:
"distinct" counts the different results of the random operations (without crop, flip and Cutout) on
64 copies of one image, a mean over 20 batches. "image by image" is kornia with a draw for every
image, measured on a few images. Other work on the machine disturbs many threads more than one:
compare with `--threads 1` when it is busy.
"""

from __future__ import annotations

import argparse
import json
import platform
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from candidly.bench.scales import SCALES
from candidly.cli import heap
from candidly.tensors.nets import build_net, channels_last
from candidly.tensors.recipes import rand_augment, warp
from candidly.tensors.views import VIEWS, make_views
from candidly.training.trainer import TOGETHER
from pairs import paired_ratio


class Case(NamedTuple):
    """A program that makes views; `policy` makes the random operations alone."""

    run: Callable[[], Any]
    images: int
    policy: Callable[[Tensor], Tensor] | None = None


def our_cases(images: Tensor) -> dict[str, Case]:
    views = make_views(images)
    index = torch.arange(len(images))
    rng = torch.Generator().manual_seed(0)

    def policy(x: Tensor) -> Tensor:
        return warp(*rand_augment(x, torch.rand(len(x), 4, generator=rng)))

    def case(kind: str) -> Case:
        random = policy if kind.endswith("strong") else None
        return Case(lambda: views(index, kind, rng), len(images), random)

    return {f"ours: {kind}": case(kind) for kind in VIEWS}


def kornia_cases(images: Tensor) -> dict[str, Case]:
    """Make the same recipes of kornia's parts, from uint8 to normalised float.

    There are none when kornia is not installed.
    """
    try:
        import kornia.augmentation as K
        from kornia.augmentation.auto import AutoAugment, RandAugment
    except ImportError:
        print("kornia is not installed: only our own views are measured (pip install kornia).")
        return {}
    size = tuple(images.shape[1:3])
    flip = K.RandomHorizontalFlip()
    normalise = K.Normalize(torch.full((3,), 0.5), torch.full((3,), 0.25))
    black = K.RandomCrop(size, padding=size[0] // 8)
    mirrored = K.RandomCrop(size, padding=size[0] // 8, padding_mode="reflect")
    cutout = K.RandomErasing(scale=(0.25, 0.25), ratio=(1.0, 1.0), p=1.0)

    def chain(*steps: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
        def run(x: Tensor) -> Tensor:
            x = x.permute(0, 3, 1, 2).float() / 255
            for step in steps:
                x = step(x)
            return normalise(x).contiguous(memory_format=torch.channels_last)

        return run

    rand_policy = RandAugment(n=2, m=10)
    auto_policy = AutoAugment("cifar10")
    weak = chain(black, flip)
    rand = chain(mirrored, flip, rand_policy, cutout)
    auto = chain(mirrored, flip, auto_policy, cutout)
    few = images[:16]
    return {
        "kornia: weak": Case(lambda: weak(images), len(images)),
        "kornia: strong, RandAugment": Case(lambda: rand(images), len(images), chain(rand_policy)),
        "kornia: strong, AutoAugment": Case(lambda: auto(images), len(images), chain(auto_policy)),
        "kornia: strong, image by image": Case(lambda: [rand(x[None]) for x in few], len(few)),
    }


def measure(cases: dict[str, Case], repeats: int) -> list[dict[str, Any]]:
    """Return quartiles of images per second; cases take turns, the first of which is dropped."""
    seconds: dict[str, list[float]] = {name: [] for name in cases}
    for _ in range(repeats + 1):
        for name, case in cases.items():
            start = time.perf_counter()
            case.run()
            seconds[name].append(time.perf_counter() - start)
    rows = []
    for name, case in cases.items():
        rates = case.images / np.array(seconds[name][1:])
        low, median, high = np.quantile(rates, [0.25, 0.5, 0.75]).round().tolist()
        different = distinct(case.policy) if case.policy else None
        rows.append(
            {"program": name, "median": median, "low": low, "high": high, "distinct": different}
        )
    return rows


def distinct(policy: Callable[[Tensor], Tensor], copies: int = 64, batches: int = 20) -> float:
    """Count the different images that the random operations make of copies of one, in a batch."""
    rng = torch.Generator().manual_seed(1)
    image = torch.randint(0, 256, (1, 32, 32, 3), dtype=torch.uint8, generator=rng)
    results = [policy(image.repeat(copies, 1, 1, 1)) for _ in range(batches)]
    return float(np.mean([len(result.flatten(1).unique(dim=0)) for result in results]))


def throughput(batch: int = 512, size: int = 32, repeats: int = 15) -> list[dict[str, Any]]:
    rng = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (batch, size, size, 3), dtype=torch.uint8, generator=rng)
    with torch.no_grad():
        return measure(our_cases(images) | kornia_cases(images), repeats)


def share_of_a_step(
    kind: str = "weak", together: int | None = None, batch: int = 128, pairs: int = 15
) -> Any:
    """Divide the time of making views of some batches by that of as many training steps.

    The net is that of the scale `cpu`. As in a training, views are made of as many batches
    `together` as the trainer takes, and freed memory stays in the process.
    """
    rng = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (4096, 32, 32, 3), dtype=torch.uint8, generator=rng)
    views, net = (
        make_views(images),
        channels_last(
            build_net(SCALES["cpu"].net, (3, 32, 32), 10, **SCALES["cpu"].net_settings), (3, 32, 32)
        ),
    )
    labels, optimizer = torch.randint(0, 10, (batch,)), torch.optim.SGD(net.parameters(), 0.01, 0.9)
    x = views(torch.arange(batch), "weak", rng)

    count = together or max(1, TOGETHER // x.numel())

    def steps() -> None:
        for _ in range(count):
            optimizer.zero_grad()
            F.cross_entropy(net(x), labels).backward()
            optimizer.step()

    def make() -> None:
        views(torch.randint(0, 4096, (count * batch,), generator=rng), kind, rng)

    with heap.keeping_freed_memory():
        return {**paired_ratio(make, steps, pairs), "together": count}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--batch", type=int, default=512, help="images in a batch")
    parser.add_argument("--size", type=int, default=32, help="height and width of an image")
    parser.add_argument("--repeats", type=int, default=15, help="turns of each program")
    parser.add_argument("--out", type=Path, help="write the table as JSON to this file")
    parser.add_argument("--threads", type=int, help="processor threads (default: all)")
    args = parser.parse_args()
    if args.threads:
        torch.set_num_threads(args.threads)
    rows = throughput(args.batch, args.size, args.repeats)
    print(f"{'images per second':32} {'median':>10} {'quartiles':>21} {'distinct of 64':>15}")
    for row in rows:
        spread = f"{row['low']:,.0f} - {row['high']:,.0f}"
        different = "" if row["distinct"] is None else f"{row['distinct']:.1f}"
        print(f"{row['program']:32} {row['median']:>10,.0f} {spread:>21} {different:>15}")
    if args.out:
        machine = {
            "torch": torch.__version__,
            "threads": torch.get_num_threads(),
            "machine": platform.machine(),
        }
        settings = {"batch": args.batch, "size": args.size, "repeats": args.repeats}
        args.out.write_text(json.dumps({**settings, **machine, "rows": rows}, indent=2) + "\n")


if __name__ == "__main__":
    main()
