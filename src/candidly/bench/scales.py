"""Scales: the same experiments at sizes from a second to a GPU week."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from candidly.bench.problems import Source, digits
from candidly.bench.sources.catalogue import load_set, require
from candidly.errors import InputError

CIFAR_MEAN = (0.4914, 0.4822, 0.4465)
CIFAR_STD = (0.2023, 0.1994, 0.2010)
CIFAR_CLASSES = (
    *("airplane", "automobile", "bird", "cat", "deer"),
    *("dog", "frog", "horse", "ship", "truck"),
)
# For convolutional nets: the best for `ooc` in a given time, on validation rows.
PIXELS = {"lr": 0.05, "weight_decay": 2e-3}
# The authors' scripts for q = 0.5 have another alpha with these open sets.
AUTHORS_ALPHA = {"svhn": 0.1, "imagenet32": 0.1}


@dataclass(frozen=True)
class Encoding:
    """Frozen features instead of pixels, reduced by a PCA that is fitted on the training rows.

    Parameters
    ----------
    encoder : str
        See `candidly.data.encoders`.
    resolution : int
        Side of the images that the encoder sees.
    copies : int
        Number of weakly augmented versions, and of strongly augmented ones.
    components : int
        Features that the PCA keeps.
    """

    encoder: str = "lite0"
    resolution: int = 96
    copies: int = 2
    components: int = 256

    def of(self, images: np.ndarray, *, versions: bool) -> np.ndarray:
        """Encode images, with or without augmented versions."""
        from candidly.data.encoders import encode, encode_versions

        if versions:
            return encode_versions(
                images, self.encoder, copies=self.copies, resolution=self.resolution
            )
        return encode(images, self.encoder, resolution=self.resolution)


@dataclass(frozen=True)
class Scale:
    """How large an experiment is.

    Parameters
    ----------
    name, about : str
        What `candidly bench scales` lists.
    known : str
        The set of the known classes: "cifar10", "fashion-mnist" or "digits".
    opens : tuple of str
        Sets of open examples.
    net, net_settings : str, dict
        See `candidly.tensors.nets.build_net`.
    scheme, changes : str, dict
        The training scheme, and what differs from it.
    n_known, n_test : int, optional
        Number of training examples of known classes, and of test examples; all by default.
    warmup, window : tuple
        Settings of `ooc`; the second value is for q >= 0.5.
    seeds : int
        Number of seeds.
    encoding : Encoding, optional
        Train on frozen features.
    lr : dict
        Learning rates by method and q, where another one than the scheme's is better.
    """

    name: str
    about: str
    known: str
    opens: tuple[str, ...]
    net: str
    scheme: str
    changes: dict[str, Any] = field(default_factory=dict)
    net_settings: dict[str, Any] = field(default_factory=dict)
    n_known: int | None = None
    n_test: int | None = None
    warmup: tuple[float, float] = (0.3, 0.4)
    window: tuple[int, int] = (5, 5)
    seeds: int = 1
    encoding: Encoding | None = None
    lr: dict[str, dict[float, float]] = field(default_factory=dict)

    @property
    def tabular(self) -> bool:
        """Whether methods see rows of a table, whose strong views do not depend on the recipe."""
        return self.known == "digits" or self.encoding is not None

    def plan(self, method: str, q: float) -> dict[str, Any]:
        """Return what the training of a method changes in the scheme."""
        better = self.lr.get(method, {}).get(q)
        return self.changes if better is None else {**self.changes, "lr": better}

    def ooc_settings(self, q: float) -> dict[str, Any]:
        """Return the settings of `ooc` in a cell."""
        wide = q >= 0.5
        return {"warmup": self.warmup[wide], "window": self.window[wide]}


def authors_settings(open_set: str, q: float) -> dict[str, Any]:
    """Return what the authors' program changes in a cell: at q = 0.5, window and alpha."""
    return {"window": 20, "alpha": AUTHORS_ALPHA.get(open_set, 1.0)} if q >= 0.5 else {}


SCALES = {
    scale.name: scale
    for scale in (
        Scale(
            "paper",
            "the paper's own: ResNet-18, 300 epochs, five trials; for GPUs "
            "(ten days per run on two CPU cores)",
            "cifar10",
            ("svhn", "cifar100", "imagenet32"),
            "resnet18",
            "paper",
            warmup=(30, 50),
            window=(5, 20),
            seeds=5,
        ),
        Scale(
            "features",
            "all images of CIFAR-10 as frozen ImageNet features (no Tiny-ImageNet: they overlap), "
            "MLP: a minute per run",
            "cifar10",
            ("svhn", "cifar100"),
            "mlp",
            "fast",
            {"epochs": 30, "batch_size": 512, "lr": 0.2},
            {"width": 256, "depth": 2},
            warmup=(0.4, 0.6),
            encoding=Encoding(),
            # The best of 0.01, 0.05 and 0.2; PiCO, which takes ten times as long, uses PRODEN's.
            # q = 0 is supervised learning.
            lr={
                "cc": {0.0: 0.05, 0.1: 0.01, 0.3: 0.01, 0.5: 0.05},
                "proden": {0.1: 0.01, 0.3: 0.05},
                "lws": {0.1: 0.05, 0.3: 0.05},
                "cavl": {0.1: 0.01},
                "pico": {0.1: 0.01, 0.3: 0.05},
                "crdpll": {0.1: 0.01, 0.3: 0.05, 0.5: 0.05},
            },
        ),
        Scale(
            "cpu",
            "all images of CIFAR-10 as pixels, a small convolutional net: 40 minutes per run",
            "cifar10",
            ("svhn", "cifar100", "imagenet32"),
            "fastconv",
            "fast",
            {"epochs": 24, **PIXELS},
            {"widths": [32, 64, 128]},
        ),
        Scale(
            "mini",
            "3,000 images of CIFAR-10 as pixels, a small convolutional net: a minute per run",
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
            "10,000 images of Fashion-MNIST, MNIST as the open world, a small convolutional net: "
            "two minutes per run",
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
            "scikit-learn's digits, 0-5 known and 6-9 open, an MLP: a second per run",
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
    """Load clean data; the last source is cached.

    Parameters
    ----------
    known, open_set : str
        Names of the sets; see `Scale`.
    n_known, n_test : int or None
        How many known and test examples to draw with the seed; None: all.
    seed : int
        Decides which examples are drawn.
    data_dir : Path or None
        Folder of the image sets.
    encoding : Encoding, optional
        Encode the images.
    """
    if known == "digits":
        return digits(seed)
    X, y = load_set(known, "train", data_dir)
    X_test, y_test = load_set(known, "test", data_dir)
    pool, _ = load_set(open_set, "train", data_dir)
    rng = np.random.default_rng(seed)
    read = {known: len(X), open_set: len(pool)}
    train = _some(rng, len(X), n_known, known)
    test = _some(rng, len(X_test), n_test, f"{known}'s test part")
    classes = CIFAR_CLASSES if known == "cifar10" else tuple(map(str, range(10)))
    if encoding is not None:
        X = encoding.of(X, versions=True)
        pool = encoding.of(pool, versions=True)
        X_test = encoding.of(X_test, versions=False)
    return Source(X[train], y[train], pool, X_test[test], y_test[test], classes, read)


def require_data(scale: Scale, opened: str, data_dir: Path | None) -> None:
    """Raise an error if a set is missing that this scale needs."""
    if scale.known != "digits":
        for name, part in ((scale.known, "train"), (scale.known, "test"), (opened, "train")):
            require(name, part, data_dir)


def moments(scale: Scale) -> dict[str, Any]:
    """Return the mean and standard deviation of CIFAR's pixels; others are measured."""
    pixels = scale.known == "cifar10" and scale.encoding is None
    return {"mean": CIFAR_MEAN, "std": CIFAR_STD} if pixels else {}


def _some(rng: np.random.Generator, n: int, count: int | None, what: str) -> Any:
    if count is not None and count > n:
        raise InputError(f"{what} has {n} images; this scale needs {count}. Is the set complete?")
    return slice(None) if count is None else rng.choice(n, count, replace=False)
