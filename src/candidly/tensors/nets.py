"""Networks. Methods train any `nn.Module` that maps a batch of inputs to logits (n, c).

A net may also have `features(x)` and `head` (an `nn.Linear`), with
`forward(x) == head(features(x))`: methods that embed examples then use the features, otherwise the
logits. And it may have `prepare(x)`, which the trainer calls with some examples before the training
starts.
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
    """A net of features and a linear head.

    Attributes
    ----------
    features : nn.Module
        Maps inputs (b, ...) to features (b, d).
    head : nn.Linear
        Maps features to logits (b, c).
    """

    features: nn.Module
    head: nn.Linear

    def forward(self, x: Tensor) -> Tensor:
        """Compute the logits of a batch.

        Parameters
        ----------
        x : tensor (b, ...)

        Returns
        -------
        tensor (b, c)
        """
        return self.head(self.features(x))


def embed(model: nn.Module, x: Tensor) -> tuple[Tensor, Tensor]:
    """Compute features and logits of a batch in one forward pass.

    Parameters
    ----------
    model : nn.Module
    x : tensor (b, ...)

    Returns
    -------
    features : tensor (b, d)
        The logits, if the model has no features.
    logits : tensor (b, c)

    Examples
    --------
    >>> features, logits = embed(MLP((4,), 3, width=8), torch.zeros(2, 4))
    >>> features.shape, logits.shape
    (torch.Size([2, 8]), torch.Size([2, 3]))
    """
    if has_features(model):
        features = model.features(x)
        return features, model.head(features)
    logits = model(x)
    return logits, logits


def feature_width(model: nn.Module, n_classes: int) -> int:
    """Give the width of the features that `embed` computes.

    Parameters
    ----------
    model : nn.Module
    n_classes : int

    Returns
    -------
    int

    Examples
    --------
    >>> feature_width(MLP((4,), 3, width=8), 3), feature_width(nn.Linear(4, 3), 3)
    (8, 3)
    """
    return model.head.in_features if has_features(model) else n_classes


def has_features(model: nn.Module) -> TypeGuard[Net]:
    """Check whether a model has `features` and a linear `head`.

    Parameters
    ----------
    model : nn.Module

    Returns
    -------
    bool
    """
    return hasattr(model, "features") and isinstance(getattr(model, "head", None), nn.Linear)


def channels_last(model: nn.Module, shape: Sequence[int]) -> nn.Module:
    """Store the weights of a net for images with channels last.

    This is faster and rounds differently, so that a loaded net needs it, too.

    Parameters
    ----------
    model : nn.Module
    shape : sequence of int
        Shape of one input. Nets for tables are not changed.

    Returns
    -------
    nn.Module
        The same model.
    """
    if len(shape) != 3:
        return model
    return model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]


class Linear(Net):
    """A linear model on flattened inputs.

    Parameters
    ----------
    shape : sequence of int
        Shape of one input.
    n_classes : int

    Examples
    --------
    >>> Linear((4, 4), 3)(torch.zeros(2, 4, 4)).shape
    torch.Size([2, 3])
    """

    def __init__(self, shape: Sequence[int], n_classes: int) -> None:
        super().__init__()
        self.features = nn.Flatten()
        self.head = nn.Linear(math.prod(shape), n_classes)


class MLP(Net):
    """Hidden layers with ReLU on flattened inputs, without batch norm.

    Parameters
    ----------
    shape : sequence of int
        Shape of one input.
    n_classes : int
    width, depth : int
        Width and number of the hidden layers.

    Examples
    --------
    >>> MLP((64,), 10, width=32)(torch.zeros(2, 64)).shape
    torch.Size([2, 10])
    """

    def __init__(
        self, shape: Sequence[int], n_classes: int, *, width: int = 256, depth: int = 2
    ) -> None:
        super().__init__()
        widths = [math.prod(shape), *[width] * depth]
        layers: list[nn.Module] = []
        for a, b in itertools.pairwise(widths):
            layers += [nn.Linear(a, b), nn.ReLU()]
        self.features = nn.Sequential(nn.Flatten(), *layers)
        self.head = nn.Linear(widths[-1], n_classes)


class FastConv(Net):
    """Whitened 2x2 patches, then three stages of two 3x3 convolutions, each halving the size.

    One image of 32 x 32 pixels costs 47 MFLOP. The design follows airbench (Jordan, 2024): batch
    norm after pooling has a quarter of the work. It learns fastest at high rates: lr=0.1 and
    weight_decay=0.005 on clean labels, 0.05 and 0.002 where some sets are wrong.

    Parameters
    ----------
    shape : sequence of int
        (channels, height, width) of one image.
    n_classes : int
    widths : sequence of int
        Channels of the stages.

    Examples
    --------
    >>> FastConv((1, 8, 8), 10)(torch.zeros(2, 1, 8, 8)).shape
    torch.Size([2, 10])
    """

    # Whether the first layer is fixed
    prepared: Tensor

    def __init__(
        self, shape: Sequence[int], n_classes: int, *, widths: Sequence[int] = (32, 64, 128)
    ) -> None:
        super().__init__()
        if min(shape[1:]) < 2:
            size = f"{shape[1]} x {shape[2]}"
            raise InputError(
                f"net 'fastconv' takes images of at least 2 x 2 pixels, not {size}. Use 'mlp'."
            )
        patches = 4 * shape[0]
        self.patches = nn.Conv2d(shape[0], 2 * patches, 2)
        stages: list[nn.Module] = []
        for a, b in itertools.pairwise([2 * patches, *widths]):
            stages += [*_pooled_conv(a, b), nn.ReLU(), *_conv_norm(b, b), nn.ReLU()]
        ends = (nn.AdaptiveMaxPool2d(1), nn.Flatten())
        self.features = nn.Sequential(self.patches, nn.ReLU(), *stages, *ends)
        self.head = nn.Linear(widths[-1], n_classes)
        kaiming(self)
        self.register_buffer("prepared", torch.tensor(False))
        identity = torch.eye(patches)
        self._set_patches(torch.cat([identity, -identity]).view_as(self.patches.weight))

    def prepare(self, x: Tensor) -> None:
        """Fix the first layer to the whitening filters of some images, unless it is fixed already.

        Parameters
        ----------
        x : tensor (b, c, h, w)
        """
        if not self.prepared:
            self._set_patches(whitening_filters(x))
            self.prepared.fill_(True)

    @torch.no_grad()
    def _set_patches(self, filters: Tensor) -> None:
        # Without a gradient: a bias to learn would take a fifth of a step.
        self.patches.requires_grad_(False).weight.copy_(filters)
        nn.init.zeros_(self.patches.bias)  # type: ignore[arg-type]


@torch.no_grad()
def whitening_filters(x: Tensor) -> Tensor:
    """Compute filters that whiten 2x2 patches, and their opposites.

    Parameters
    ----------
    x : tensor (b, c, h, w)

    Returns
    -------
    tensor (8 c, c, 2, 2)
        Principal components, divided by their standard deviations.
    """
    patches = nn.functional.unfold(x.contiguous(), 2).transpose(0, 1).flatten(1).double()
    variances, components = torch.linalg.eigh(patches @ patches.T / patches.shape[1])
    filters = components.T / (variances.clamp_min(0) + 5e-4).sqrt()[:, None]
    return torch.cat([filters, -filters]).view(-1, x.shape[1], 2, 2).to(x.dtype)


class Residual(nn.Module):
    """Two 3x3 convolutions around a shortcut.

    Parameters
    ----------
    a, b : int
        Channels before and after.
    stride : int
        Of the first convolution.
    """

    def __init__(self, a: int, b: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(*_conv_norm(a, b, stride=stride), nn.ReLU(), *_conv_norm(b, b))
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or a != b:
            self.shortcut = nn.Sequential(*_conv_norm(a, b, stride=stride, size=1))

    def forward(self, x: Tensor) -> Tensor:
        """Compute the outputs of a batch.

        Parameters
        ----------
        x : tensor (n, a, h, w)

        Returns
        -------
        tensor (n, b, ceil(h / stride), ceil(w / stride))
        """
        return torch.relu(self.body(x) + self.shortcut(x))


class ResNet18(Net):
    """The paper's network: ResNet-18 for 32 px, with a 3x3 stem of stride 1 and no max-pool.

    Parameters
    ----------
    shape : sequence of int
        (channels, height, width) of one image.
    n_classes : int

    Examples
    --------
    >>> sum(p.numel() for p in ResNet18((3, 32, 32), 10).parameters())
    11173962
    """

    def __init__(self, shape: Sequence[int], n_classes: int) -> None:
        super().__init__()
        plan = [(64, 64, 1), (64, 64, 1), (64, 128, 2), (128, 128, 1)]
        plan += [(128, 256, 2), (256, 256, 1), (256, 512, 2), (512, 512, 1)]
        stem = (*_conv_norm(shape[0], 64), nn.ReLU())
        blocks = (Residual(*p) for p in plan)
        self.features = nn.Sequential(*stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten())
        self.head = nn.Linear(512, n_classes)
        kaiming(self)


def _conv_norm(a: int, b: int, *, stride: int = 1, size: int = 3) -> tuple[nn.Module, nn.Module]:
    """Make a convolution from a to b channels, and its batch norm."""
    return nn.Conv2d(a, b, size, stride, padding=size // 2, bias=False), nn.BatchNorm2d(b)


def _pooled_conv(a: int, b: int) -> tuple[nn.Module, nn.Module, nn.Module]:
    """Make a convolution from a to b channels, a max-pool, and a batch norm."""
    convolution, norm = _conv_norm(a, b)
    return convolution, nn.MaxPool2d(2, ceil_mode=True), norm


def kaiming(net: nn.Module) -> None:
    """Initialise all convolutions by Kaiming's law, fan-out.

    Parameters
    ----------
    net : nn.Module
        Changed in place.
    """
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
    """Build a net by name.

    Parameters
    ----------
    name : str
        A name in `NETS`.
    shape : sequence of int
        Shape of one input: (channels, height, width) or (d,).
    n_classes : int
    seed : int
        Decides the weights.
    **settings
        Further arguments of the net.

    Returns
    -------
    nn.Module

    Raises
    ------
    InputError
        If the name is unknown or the net does not take inputs of this shape.

    Examples
    --------
    >>> import torch
    >>> net = build_net("mlp", (64,), 10, width=32)
    >>> net(torch.zeros(2, 64)).shape
    torch.Size([2, 10])
    """
    one_of(name, NETS, "net")
    if name in ("resnet18", "fastconv") and len(shape) != 3:
        raise InputError(
            f"net {name!r} takes images (channels, height, width), not inputs of shape "
            f"{tuple(shape)}. Use 'mlp' or 'linear' for tables."
        )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return NETS[name](shape, n_classes, **settings)
