"""Tests of the ResNet: agreement with torchvision at width 64, other widths, and both stems."""

import pytest
import torch
import torchvision
from forked import forked

from ssl_vision.encoders import ResNet

X = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))


def backward_of_narrow_networks():
    for width, count, size in [(4, 16, 96), (8, 16, 96), (12, 9, 96), (8, 39, 16)]:
        network = ResNet(width=width).to(memory_format=torch.channels_last)
        images = torch.randn(count, 3, size, size).to(memory_format=torch.channels_last)
        network(images).sum().backward()


def test_backward_of_narrow_networks_does_not_crash():
    process = forked(backward_of_narrow_networks)
    process.join(120)
    assert process.exitcode == 0


def test_shortcuts_of_narrow_networks_match_strided_convolutions():
    narrow = ResNet(width=4)
    image = torch.randn(2, 4, 7, 9, generator=torch.Generator().manual_seed(0), requires_grad=True)
    convolution = narrow.layer2[0].downsample[0]
    plain = torch.nn.Conv2d(4, 8, 1, stride=2, bias=False)
    plain.load_state_dict(convolution.state_dict())
    torch.testing.assert_close(convolution(image), plain(image))
    grads = [torch.autograd.grad(c(image).square().sum(), [image, c.weight]) for c in (convolution, plain)]
    torch.testing.assert_close(*grads)


@pytest.mark.parametrize("depth", [18, 34, 50, 101])
def test_imagenet_stem_at_width_64_matches_torchvision(depth):
    reference = getattr(torchvision.models, f"resnet{depth}")(weights=None)
    reference.fc = torch.nn.Identity()
    network = ResNet(depth=depth, stem="imagenet")
    network.load_state_dict(reference.state_dict())
    torch.testing.assert_close(network.eval()(X), reference.eval()(X))


def test_small_stem_matches_modified_torchvision_resnet():
    reference = torchvision.models.resnet18(weights=None)
    reference.conv1 = torch.nn.Conv2d(3, 64, 3, padding=1, bias=False)
    reference.maxpool, reference.fc = torch.nn.Identity(), torch.nn.Identity()
    network = ResNet()
    reference.load_state_dict(network.state_dict())
    torch.testing.assert_close(network.eval()(X), reference.eval()(X))


@pytest.mark.parametrize(("depth", "width", "num_features"), [(18, 4, 32), (18, 64, 512), (50, 8, 256)])
def test_depth_and_width_set_num_features(depth, width, num_features):
    backbone = ResNet(depth=depth, width=width)
    assert backbone.num_features == num_features
    assert backbone(X).shape == (2, num_features)


def test_stems_keep_or_quarter_the_resolution():
    assert ResNet(width=4).conv1(X).shape[-1] == 32
    imagenet = ResNet(width=4, stem="imagenet")
    assert imagenet.maxpool(imagenet.conv1(X)).shape[-1] == 8


@pytest.mark.parametrize(
    ("options", "word"), [({"depth": 19}, "depth"), ({"width": 0}, "width"), ({"stem": "x"}, "stem")]
)
def test_invalid_options_raise_value_error(options, word):
    with pytest.raises(ValueError, match=word):
        ResNet(**options)


@pytest.mark.parametrize("stem", ["small", "imagenet"])
def test_in_channels_change_the_first_convolution_only(stem):
    rgb, bands = ResNet(width=4, stem=stem), ResNet(width=4, stem=stem, in_channels=13)
    shapes = [{name: tensor.shape for name, tensor in net.state_dict().items()} for net in (rgb, bands)]
    assert {name for name in shapes[0] if shapes[0][name] != shapes[1][name]} == {"conv1.weight"}
    assert shapes[1]["conv1.weight"][1] == bands.in_channels == 13
    assert bands(torch.zeros(2, 13, 32, 32)).shape == (2, 32)
    assert bands.shallow_features() == 16
    with pytest.raises(ValueError, match="in_channels must be at least 1, got 0"):
        ResNet(in_channels=0)
