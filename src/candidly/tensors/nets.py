"""Networks. Any `nn.Module` that turns a batch of inputs into logits will do.

A net may also offer `features(x)` and `head` (an `nn.Linear`), with `forward(x) == head(features(x))`; methods that
embed examples then use the features, and fall back to the logits otherwise. And it may offer `prepare(x)`, which sees
some examples before the training starts.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any, TypeGuard

import torch
from torch import Tensor, nn

from candidly.checks import one_of
from candidly.errors import InputError


class Net(nn.Module):
    """Features, then a linear head."""

    features: nn.Module
    head: nn.Linear

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.features(x))


def embed(model: nn.Module, x: Tensor) -> tuple[Tensor, Tensor]:
    """(features, logits) of a batch by one forward pass; the logits stand in for missing features."""
    if has_features(model):
        features = model.features(x)
        return features, model.head(features)
    logits = model(x)
    return logits, logits


def feature_width(model: nn.Module, n_classes: int) -> int:
    """Width of what `embed` gives."""
    return model.head.in_features if has_features(model) else n_classes


def has_features(model: nn.Module) -> TypeGuard[Net]:
    return hasattr(model, "features") and isinstance(getattr(model, "head", None), nn.Linear)


def laid_out(model: nn.Module, shape: Sequence[int]) -> nn.Module:
    """Channels last for images: faster, and rounds differently, so that a saved net must have it too."""
    return model.to(memory_format=torch.channels_last) if len(shape) == 3 else model  # type: ignore[call-overload]


class Linear(Net):
    """A linear model on flattened inputs."""

    def __init__(self, shape: Sequence[int], n_classes: int) -> None:
        super().__init__()
        self.features = nn.Flatten()
        self.head = nn.Linear(math.prod(shape), n_classes)


class MLP(Net):
    """Hidden layers with ReLU on flattened inputs, without batch norm."""

    def __init__(
        self, shape: Sequence[int], n_classes: int, *, width: int = 256, depth: int = 2
    ) -> None:
        super().__init__()
        widths = [math.prod(shape), *[width] * depth]
        layers = [
            layer for a, b in itertools.pairwise(widths) for layer in (nn.Linear(a, b), nn.ReLU())
        ]
        self.features = nn.Sequential(nn.Flatten(), *layers)
        self.head = nn.Linear(widths[-1], n_classes)


class FastConv(Net):
    """Whitened 2x2 patches, then three stages of two 3x3 convolutions, each halving the size: 47 MFLOP at 32 px.

    After airbench (Jordan, 2024): batch norm after pooling has a quarter of the work. It learns fastest at high rates:
    lr=0.1 and weight_decay=0.005 on clean labels, 0.05 and 0.002 where some sets are wrong.
    """

    prepared: Tensor  # has it seen examples?

    def __init__(
        self, shape: Sequence[int], n_classes: int, *, widths: Sequence[int] = (32, 64, 128)
    ) -> None:
        super().__init__()
        if min(shape[1:]) < 2:
            raise InputError(
                f"net 'fastconv' takes images of at least 2 x 2 pixels, not {shape[1]} x {shape[2]}."
            )
        patches = 4 * shape[0]
        self.patches = nn.Conv2d(shape[0], 2 * patches, 2)
        stages = [
            layer
            for a, b in itertools.pairwise([2 * patches, *widths])
            for layer in (*pooled_conv(a, b), nn.ReLU(), *conv_norm(b, b), nn.ReLU())
        ]
        self.features = nn.Sequential(
            self.patches, nn.ReLU(), *stages, nn.AdaptiveMaxPool2d(1), nn.Flatten()
        )
        self.head = nn.Linear(widths[-1], n_classes)
        kaiming(self)
        self.register_buffer("prepared", torch.tensor(False))
        identity = torch.eye(patches)
        self._set_patches(torch.cat([identity, -identity]).view_as(self.patches.weight))

    def prepare(self, x: Tensor) -> None:
        """Fix the first layer, once."""
        if not self.prepared:
            self._set_patches(whitening_filters(x))
            self.prepared.fill_(True)

    @torch.no_grad()
    def _set_patches(self, filters: Tensor) -> None:
        self.patches.requires_grad_(False).weight.copy_(
            filters
        )  # a bias to learn would take a fifth of a step
        nn.init.zeros_(self.patches.bias)  # type: ignore[arg-type]


@torch.no_grad()
def whitening_filters(x: Tensor) -> Tensor:
    """(8 channels, channels, 2, 2): principal components of 2x2 patches over their sizes, and their opposites."""
    patches = nn.functional.unfold(x.contiguous(), 2).transpose(0, 1).flatten(1).double()
    variances, components = torch.linalg.eigh(patches @ patches.T / patches.shape[1])
    filters = components.T / (variances.clamp_min(0) + 5e-4).sqrt()[:, None]
    return torch.cat([filters, -filters]).view(-1, x.shape[1], 2, 2).to(x.dtype)


class Residual(nn.Module):
    """Two 3x3 convolutions around a shortcut."""

    def __init__(self, a: int, b: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(*conv_norm(a, b, stride=stride), nn.ReLU(), *conv_norm(b, b))
        same = stride == 1 and a == b
        self.shortcut = (
            nn.Identity() if same else nn.Sequential(*conv_norm(a, b, stride=stride, size=1))
        )

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.body(x) + self.shortcut(x))


class ResNet18(Net):
    """The paper's network: ResNet-18 for 32 px, 3x3 stem of stride 1, no max-pool; 11.17 M parameters at 10 classes."""

    def __init__(self, shape: Sequence[int], n_classes: int) -> None:
        super().__init__()
        plan = [(64, 64, 1), (64, 64, 1), (64, 128, 2), (128, 128, 1)]
        plan += [(128, 256, 2), (256, 256, 1), (256, 512, 2), (512, 512, 1)]
        stem = (*conv_norm(shape[0], 64), nn.ReLU())
        self.features = nn.Sequential(
            *stem, *(Residual(*p) for p in plan), nn.AdaptiveAvgPool2d(1), nn.Flatten()
        )
        self.head = nn.Linear(512, n_classes)
        kaiming(self)


def conv_norm(a: int, b: int, *, stride: int = 1, size: int = 3) -> tuple[nn.Module, nn.Module]:
    return nn.Conv2d(a, b, size, stride, padding=size // 2, bias=False), nn.BatchNorm2d(b)


def pooled_conv(a: int, b: int) -> tuple[nn.Module, nn.Module, nn.Module]:
    convolution, norm = conv_norm(a, b)
    return convolution, nn.MaxPool2d(2, ceil_mode=True), norm


def kaiming(net: nn.Module) -> None:
    """Kaiming initialisation, fan-out, of all convolutions."""
    for module in net.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")


NETS: dict[str, Callable[..., nn.Module]] = {
    "resnet18": ResNet18,
    "fastconv": FastConv,
    "mlp": MLP,
    "linear": Linear,
}


def build_net(
    name: str, shape: Sequence[int], n_classes: int, *, seed: int = 0, **settings: Any
) -> nn.Module:
    """A fresh net of `NETS` for inputs of `shape`, its weights drawn from `seed` alone."""
    one_of(name, NETS, "net")
    if name in ("resnet18", "fastconv") and len(shape) != 3:
        raise InputError(
            f"net {name!r} takes images (channels, height, width), not inputs of shape {tuple(shape)}."
        )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return NETS[name](shape, n_classes, **settings)
