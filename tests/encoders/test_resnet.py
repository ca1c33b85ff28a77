"""The ResNet: torchvision's own at width 64, in any other width, with both stems."""

import subprocess
import sys

import pytest
import torch
import torchvision

from ssl_vision.encoders import ResNet, resnet

X = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))


BACKWARD = """
import torch
from ssl_vision.encoders import ResNet
for width, count, size in [(4, 16, 96), (8, 16, 96), (12, 9, 96), (8, 39, 16)]:
    network = ResNet(width=width).to(memory_format=torch.channels_last)
    images = torch.randn(count, 3, size, size).to(memory_format=torch.channels_last)
    network(images).sum().backward()
"""


def test_narrow_networks_do_not_end_the_process():
    assert subprocess.run([sys.executable, "-c", BACKWARD], check=False).returncode == 0


def test_the_shortcuts_of_narrow_networks_are_strided_convolutions():
    narrow = ResNet(width=4)
    image = torch.randn(2, 4, 7, 9, generator=torch.Generator().manual_seed(0), requires_grad=True)
    convolution = narrow.layer2[0].downsample[0]
    plain = torch.nn.Conv2d(4, 8, 1, stride=2, bias=False)
    plain.load_state_dict(convolution.state_dict())
    torch.testing.assert_close(convolution(image), plain(image))
    grads = [torch.autograd.grad(c(image).square().sum(), [image, c.weight]) for c in (convolution, plain)]
    torch.testing.assert_close(*grads)


@pytest.mark.parametrize("depth", [18, 34, 50, 101])
def test_at_width_64_with_the_imagenet_stem_it_is_torchvisions_resnet(depth):
    theirs = getattr(torchvision.models, f"resnet{depth}")(weights=None)
    theirs.fc = torch.nn.Identity()
    ours = ResNet(depth=depth, stem="imagenet")
    ours.load_state_dict(theirs.state_dict())
    torch.testing.assert_close(ours.eval()(X), theirs.eval()(X))


def test_the_small_stem_is_the_modified_torchvision_resnet():
    theirs = torchvision.models.resnet18(weights=None)
    theirs.conv1 = torch.nn.Conv2d(3, 64, 3, padding=1, bias=False)
    theirs.maxpool, theirs.fc = torch.nn.Identity(), torch.nn.Identity()
    ours = ResNet()
    theirs.load_state_dict(ours.state_dict())
    torch.testing.assert_close(ours.eval()(X), theirs.eval()(X))


@pytest.mark.parametrize(("depth", "width", "num_features"), [(18, 4, 32), (18, 64, 512), (50, 8, 256)])
def test_width_sets_the_feature_num_featuresension(depth, width, num_features):
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
def test_what_does_not_exist_is_refused_by_name(options, word):
    with pytest.raises(ValueError, match=word):
        ResNet(**options)


@pytest.mark.parametrize("depth", [18, 34, 50, 101])
def test_the_estimate_of_parameters_is_that_of_the_network(depth):
    with torch.device("meta"):
        count = sum(parameter.numel() for parameter in ResNet(depth=depth, width=256).parameters())
    assert resnet._OVER_SQUARED_WIDTH[depth] * 256**2 == pytest.approx(count, rel=5e-3)


@pytest.mark.parametrize("width", [700, 10**8, 10**30])
def test_a_network_that_is_too_large_is_refused_before_it_takes_memory(width):
    with pytest.raises(ValueError, match=f"width {width} and depth 18 make .* parameters, over"):
        ResNet(width=width)


@pytest.mark.parametrize("stem", ["small", "imagenet"])
def test_in_channels_change_the_first_convolution_only(stem):
    rgb, bands = ResNet(width=4, stem=stem), ResNet(width=4, stem=stem, in_channels=13)
    shapes = [{name: each.shape for name, each in net.state_dict().items()} for net in (rgb, bands)]
    assert {name for name in shapes[0] if shapes[0][name] != shapes[1][name]} == {"conv1.weight"}
    assert shapes[1]["conv1.weight"][1] == bands.in_channels == 13
    assert bands(torch.zeros(2, 13, 32, 32)).shape == (2, 32)
    assert bands.shallow_features() == 16
    with pytest.raises(ValueError, match="in_channels must be at least 1, got 0"):
        ResNet(in_channels=0)
