"""Scales: the same experiments at sizes from a second to a GPU week. Only what is here differs between them."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from candidly.bench.problems import Source, digits
from candidly.bench.sources.catalogue import load_set, require
from candidly.errors import InputError

CIFAR_MEAN, CIFAR_STD = (0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)
CIFAR_CLASSES = (
    "airplane",
    "automobile",
    "bird",
    "cat",
    "deer",
    "dog",
    "frog",
    "horse",
    "ship",
    "truck",
)
PIXELS = {
    "lr": 0.05,
    "weight_decay": 2e-3,
}  # of convolutional nets: the best for `ooc` in a given time, on validation rows


@dataclass(frozen=True)
class Encoding:
    """Frozen features instead of pixels, reduced by a PCA that is fitted on the training rows."""

    encoder: str = "lite0"
    resolution: int = 96
    copies: int = 2  # weak, and as many strong ones
    components: int = 256

    def of(self, images: np.ndarray, *, versions: bool) -> np.ndarray:
        from candidly.data.encoders import encode, encode_versions

        if versions:
            return encode_versions(
                images, self.encoder, copies=self.copies, resolution=self.resolution
            )
        return encode(images, self.encoder, resolution=self.resolution)


@dataclass(frozen=True)
class Scale:
    """How large an experiment is. `warmup` and `window` are settings of `ooc`; their second value is for q >= 0.5."""

    name: str
    about: str
    known: str  # "cifar10", "fashion-mnist" or "digits"
    opens: tuple[str, ...]  # sources of open examples
    net: str
    scheme: str
    changes: dict[str, Any] = field(default_factory=dict)  # of the scheme
    net_settings: dict[str, Any] = field(default_factory=dict)
    n_known: int | None = None  # training examples of known classes; None: all
    n_test: int | None = None
    warmup: tuple[float, float] = (0.3, 0.4)
    window: tuple[int, int] = (5, 5)
    seeds: int = 1
    encoding: Encoding | None = None
    lr: dict[str, dict[float, float]] = field(
        default_factory=dict
    )  # by method and q, where another one is better
    alpha: dict[tuple[str, float], float] = field(
        default_factory=dict
    )  # of `ooc`, by open set and q

    def plan(self, method: str, q: float) -> dict[str, Any]:
        """What the training differs in from the scheme."""
        better = self.lr.get(method, {}).get(q)
        return self.changes if better is None else {**self.changes, "lr": better}

    def ooc_settings(self, open_set: str, q: float) -> dict[str, Any]:
        wide, alpha = q >= 0.5, self.alpha.get((open_set, q))
        given = {"warmup": self.warmup[wide], "window": self.window[wide]}
        return given if alpha is None else {**given, "alpha": alpha}


SCALES = {
    scale.name: scale
    for scale in (
        Scale(
            "paper",
            "the paper's own: ResNet-18, 300 epochs, five trials; for GPUs (ten days a run on two CPU cores)",
            "cifar10",
            ("svhn", "cifar100", "imagenet32"),
            "resnet18",
            "paper",
            warmup=(30, 50),
            window=(5, 20),
            seeds=5,
            alpha={("svhn", 0.5): 0.1, ("imagenet32", 0.5): 0.1},  # as the authors' scripts have it
        ),
        Scale(
            "features",
            "all images of CIFAR-10 as frozen ImageNet features (no Tiny-ImageNet: they overlap), MLP: a minute a run",
            "cifar10",
            ("svhn", "cifar100"),
            "mlp",
            "fast",
            {"epochs": 30, "batch_size": 512, "lr": 0.2},
            {"width": 256, "depth": 2},
            warmup=(0.4, 0.6),
            encoding=Encoding(),
            lr={  # the best of 0.01, 0.05 and 0.2; PiCO, which takes ten times as long, has PRODEN's
                "cc": {0.0: 0.05, 0.1: 0.01, 0.3: 0.01, 0.5: 0.05},  # 0.0: supervised
                "proden": {0.1: 0.01, 0.3: 0.05},
                "lws": {0.1: 0.05, 0.3: 0.05},
                "cavl": {0.1: 0.01},
                "pico": {0.1: 0.01, 0.3: 0.05},
                "crdpll": {0.1: 0.01, 0.3: 0.05, 0.5: 0.05},
            },
        ),
        Scale(
            "cpu",
            "all images of CIFAR-10 as pixels, a small convolutional net: 40 minutes a run",
            "cifar10",
            ("svhn", "cifar100", "imagenet32"),
            "fastconv",
            "fast",
            {"epochs": 24, **PIXELS},
            {"widths": [32, 64, 128]},
        ),
        Scale(
            "mini",
            "3,000 images of CIFAR-10 as pixels, a small convolutional net: a minute a run",
            "cifar10",
            ("svhn", "cifar100", "imagenet32"),
            "fastconv",
            "fast",
            {"epochs": 20, "batch_size": 64, **PIXELS},
            {"widths": [16, 32, 64]},
            n_known=3_000,
            n_test=2_000,
            warmup=(0.5, 0.5),
            seeds=3,
        ),
        Scale(
            "fashion",
            "10,000 images of Fashion-MNIST, MNIST as the open world, a small convolutional net: two minutes a run",
            "fashion-mnist",
            ("mnist",),
            "fastconv",
            "fast",
            {"epochs": 15},
            {"widths": [16, 32, 64]},
            n_known=10_000,
        ),
        Scale(
            "digits",
            "scikit-learn's digits, 0-5 known and 6-9 open, an MLP: a second a run",
            "digits",
            ("digits",),
            "mlp",
            "fast",
            {"epochs": 60},
            seeds=5,
        ),
    )
}


@lru_cache(maxsize=1)
def load_source(
    known: str,
    n_known: int | None,
    n_test: int | None,
    open_set: str,
    seed: int,
    data_dir: Path | None,
    encoding: Encoding | None = None,
) -> Source:
    """Clean data; the seed draws the known examples where not all are used. The last source is kept."""
    if known == "digits":
        return digits(seed)
    X, y = load_set(known, "train", data_dir)
    X_test, y_test = load_set(known, "test", data_dir)
    pool, _ = load_set(open_set, "train", data_dir)
    rng = np.random.default_rng(seed)
    read = {known: len(X), open_set: len(pool)}
    train, test = (
        _some(rng, len(X), n_known, known),
        _some(rng, len(X_test), n_test, f"{known}'s test part"),
    )
    classes = CIFAR_CLASSES if known == "cifar10" else tuple(map(str, range(10)))
    if encoding is not None:
        X, pool = encoding.of(X, versions=True), encoding.of(pool, versions=True)
        X_test = encoding.of(X_test, versions=False)
    return Source(X[train], y[train], pool, X_test[test], y_test[test], classes, read)


def require_data(scale: Scale, opened: str, data_dir: Path | None) -> None:
    """An error if a set is missing that this scale needs."""
    if scale.known != "digits":
        for name, part in ((scale.known, "train"), (scale.known, "test"), (opened, "train")):
            require(name, part, data_dir)


def moments(scale: Scale) -> dict[str, Any]:
    """Normalisation that is prescribed rather than measured."""
    pixels = scale.known == "cifar10" and scale.encoding is None
    return {"mean": CIFAR_MEAN, "std": CIFAR_STD} if pixels else {}


def _some(rng: np.random.Generator, n: int, count: int | None, what: str) -> Any:
    if count is not None and count > n:
        raise InputError(f"{what} has {n} images; this scale needs {count}. Is the set whole?")
    return slice(None) if count is None else rng.choice(n, count, replace=False)
