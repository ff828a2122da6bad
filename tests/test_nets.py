"""Sizes, shapes and the optional features of the networks."""

import pytest
import torch
from torch import nn

from candidly.errors import InputError
from candidly.tensors.nets import NETS, build_net, embed, feature_width


def test_the_papers_resnet_has_its_size():
    net = build_net("resnet18", (3, 32, 32), 10)
    assert sum(p.numel() for p in net.parameters()) == 11_173_962
    assert net(torch.zeros(2, 3, 32, 32)).shape == (2, 10)
    stem = net.features[0]
    assert (stem.kernel_size, stem.stride, stem.bias) == ((3, 3), (1, 1), None)
    assert not any(isinstance(m, nn.MaxPool2d) for m in net.modules())


@pytest.mark.parametrize("name", NETS)
@pytest.mark.parametrize("shape", [(1, 8, 8), (3, 32, 32)])
def test_forward_is_head_of_features(name, shape):
    net = build_net(name, shape, 7).eval()
    x = torch.randn(2, *shape)
    features, logits = embed(net, x)
    assert features.shape == (2, feature_width(net, 7))
    torch.testing.assert_close(net(x), logits)


def test_a_module_without_features_is_embedded_by_its_logits():
    net = nn.Linear(4, 3)
    x = torch.randn(2, 4)
    features, logits = embed(net, x)
    assert torch.equal(features, logits)
    assert feature_width(net, 3) == 3


def test_weights_depend_on_the_seed_alone():
    first, again, other = (build_net("mlp", (4,), 3, seed=s).head.weight for s in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_kaiming_fan_out():
    weight = build_net("resnet18", (3, 32, 32), 10).features[9].body[3].weight
    assert weight.std().item() == pytest.approx((2 / (weight.shape[0] * 9)) ** 0.5, rel=0.02)


def test_the_first_layer_whitens_patches_once():
    """Filters applied to the patches they were made from are uncorrelated, with variance 1."""
    x = torch.randn(50, 3, 9, 9, generator=torch.Generator().manual_seed(0)).cumsum(-1)
    net = build_net("fastconv", (3, 9, 9), 4)
    net.prepare(x)
    out = net.patches(x)[:, :12].transpose(0, 1).flatten(1)
    torch.testing.assert_close(out @ out.T / out.shape[1], torch.eye(12), atol=2e-3, rtol=0)
    torch.testing.assert_close(net.patches.weight[12:], -net.patches.weight[:12])
    before = net.patches.weight.clone()
    net.prepare(2 * x)
    assert torch.equal(net.patches.weight, before), "a net that was trained keeps its first layer"
    assert not net.patches.weight.requires_grad


def test_wrong_names_and_shapes():
    with pytest.raises(InputError, match=r"net 'resnet' is unknown. Did you mean 'resnet18'"):
        build_net("resnet", (3, 32, 32), 10)
    with pytest.raises(InputError, match=r"takes images .* not inputs of shape \(64,\)"):
        build_net("fastconv", (64,), 10)


def test_fastconv_needs_two_pixels_each_way():
    assert build_net("fastconv", (3, 2, 5), 4)(torch.zeros(2, 3, 2, 5)).shape == (2, 4)
    with pytest.raises(InputError, match="at least 2 x 2 pixels, not 1 x 12"):
        build_net("fastconv", (3, 1, 12), 4)
