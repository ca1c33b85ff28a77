"""A convolutional network with the names of torchvision's ResNets that trains in milliseconds."""

from collections import OrderedDict

from torch import nn

WIDTH = 16
"""Number of features."""


def small_backbone() -> nn.Sequential:
    """Return a network that maps images (N, 3, H, W) to features (N, WIDTH, 1, 1)."""
    block = nn.Sequential(nn.Conv2d(8, WIDTH, 3, 2, 1), nn.BatchNorm2d(WIDTH), nn.ReLU())
    return nn.Sequential(
        OrderedDict(
            conv1=nn.Conv2d(3, 8, 7, 2, 3, bias=False),
            bn1=nn.BatchNorm2d(8),
            relu=nn.ReLU(),
            maxpool=nn.MaxPool2d(3, 2, 1),
            layer1=block,
            avgpool=nn.AdaptiveAvgPool2d(1),
        )
    )
