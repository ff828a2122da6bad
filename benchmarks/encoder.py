"""The frozen encoder: its speed beside plain eager PyTorch, and which resolution pays.

    python benchmarks/encoder.py speed                      # images/s as a ratio
    python benchmarks/encoder.py variants                   # the same of what else might be fast
    python benchmarks/encoder.py resolution --data-dir DIR  # a linear probe on CIFAR-10

The probe is measured on validation rows, cut from the training set.
"""

from __future__ import annotations

import argparse
import copy
import json
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

from candidly.bench.sources.catalogue import load_set
from candidly.data import encoders
from pairs import paired_ratio, seconds


class Layer(nn.Module):
    """Convolution with "same" padding, batch norm, ReLU6 unless linear: as published."""

    def __init__(
        self, a: int, b: int, size: int, stride: int = 1, *, groups: int = 1, linear: bool = False
    ) -> None:
        super().__init__()
        padding = size // 2 if stride == 1 else 0  # the same on both sides needs no copy
        self.conv = nn.Conv2d(a, b, size, stride, padding, groups=groups, bias=False)
        self.norm = nn.BatchNorm2d(b, eps=encoders.EPSILON)
        self.linear = linear

    def forward(self, x: Tensor) -> Tensor:
        size, stride = self.conv.kernel_size[0], self.conv.stride[0]
        if stride > 1:
            down, right = (max((-(-n // stride) - 1) * stride + size - n, 0) for n in x.shape[2:])
            x = F.pad(x, (right // 2, right - right // 2, down // 2, down - down // 2))
        x = self.norm(self.conv(x))
        return x if self.linear else F.relu6(x)


class Block(nn.Module):
    def __init__(self, a: int, b: int, size: int, stride: int, expansion: int) -> None:
        super().__init__()
        wide = a * expansion
        expand = [Layer(a, wide, 1)] if expansion > 1 else []
        self.body = nn.Sequential(
            *expand, Layer(wide, wide, size, stride, groups=wide), Layer(wide, b, 1, linear=True)
        )
        self.shortcut = stride == 1 and a == b

    def forward(self, x: Tensor) -> Tensor:
        return x + self.body(x) if self.shortcut else self.body(x)


def eager() -> nn.Module:
    """EfficientNet-Lite0 in plain PyTorch; its weights do not matter for its speed."""
    blocks = [
        Block(b if i else a, b, size, 1 if i else stride, expansion)
        for repeats, size, stride, expansion, a, b in encoders.LITE0
        for i in range(repeats)
    ]
    return nn.Sequential(
        Layer(3, 32, 3, 2), *blocks, Layer(320, 1280, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten()
    ).eval()


def folded(model: nn.Module) -> nn.Module:
    """Fold batch norm into the convolutions."""
    model = copy.deepcopy(model)
    for layer in [module for module in model.modules() if isinstance(module, Layer)]:
        layer.conv = fuse_conv_bn_eval(layer.conv, layer.norm)
        layer.norm = nn.Identity()
    return model


def runner(
    model: nn.Module, images: np.ndarray, resolution: int, layout: torch.memory_format
) -> Callable[[], None]:
    @torch.inference_mode()
    def run() -> None:
        for start in range(0, len(images), 64):
            batch = torch.from_numpy(encoders._resized(images[start : start + 64], resolution))
            model(batch.contiguous(memory_format=layout))

    return run


def some_images(n: int) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (n, 32, 32, 3), dtype=np.uint8)


def speed(resolution: int = 96, n: int = 256) -> dict[str, float]:
    """Divide the time of eager PyTorch by that of `encode`, resizing included in both."""
    images = some_images(n)
    run = encoders.load_lite0()
    plain = runner(eager(), images, resolution, torch.contiguous_format)
    return paired_ratio(plain, lambda: encoders._encode(run, images, resolution, "plain", 0, False))


def variants(resolution: int = 96, n: int = 256) -> dict[str, dict[str, float]]:
    """Divide the time of eager PyTorch by that of other ways to run it.

    Each way is added to those before; `compiling` is in seconds.
    """
    images = some_images(n)
    model = eager()
    last = torch.channels_last
    plain = runner(model, images, resolution, torch.contiguous_format)
    fused = runner(folded(model), images, resolution, torch.contiguous_format)
    quick = folded(model).to(memory_format=last)
    found = {
        "batch norm folded": paired_ratio(plain, fused),
        "channels last": paired_ratio(plain, runner(quick, images, resolution, last)),
    }
    compiled = runner(torch.compile(quick), images, resolution, last)
    compiling = seconds(compiled)
    return found | {"compiled": paired_ratio(plain, compiled) | {"compiling": compiling}}


def resolution(
    data_dir: Path | None, sizes: tuple[int, ...] = (32, 48, 64, 80, 96, 128, 160)
) -> list[dict[str, float]]:
    """Fit a linear probe on 8,000 rows and test it on 4,000 others, for several resolutions."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    X, y = load_set("cifar10", "train", data_dir)
    rows = np.random.default_rng(0).permutation(len(X))[:12_000]
    run = encoders.load_lite0()
    found = []
    for size in sizes:
        began = time.perf_counter()
        features = encoders._encode(run, X[rows], size, "plain", 0, None).astype(np.float32)
        rate = len(rows) / (time.perf_counter() - began)
        probe = make_pipeline(StandardScaler(), LogisticRegression(C=0.003, max_iter=200))
        probe.fit(features[:8_000], y[rows[:8_000]])
        score = probe.score(features[8_000:], y[rows[8_000:]])
        found.append({"resolution": size, "images_per_second": rate, "accuracy": score})
        print(f"{size:4} px  {rate:6.0f} images/s  {100 * score:.1f} %", flush=True)
    return found


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=("speed", "variants", "resolution"))
    parser.add_argument("--data-dir", type=Path)
    options = parser.parse_args()
    jobs = {
        "speed": speed,
        "variants": variants,
        "resolution": lambda: resolution(options.data_dir),
    }
    print(json.dumps(jobs[options.what]()))
