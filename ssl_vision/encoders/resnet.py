"""ResNets for small images, in any width."""

from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils import skip_init
from torchvision.models import resnet as torchvision_resnet
from torchvision.models.resnet import BasicBlock, Bottleneck

from ssl_vision.encoders.encoder import Encoder
from ssl_vision.errors import check, check_choice

Stem = Literal["small", "imagenet"]
Depth = Literal[18, 34, 50, 101]

_LAYERS: dict[int, tuple[type[BasicBlock | Bottleneck], tuple[int, int, int, int]]] = {
    18: (BasicBlock, (2, 2, 2, 2)),
    34: (BasicBlock, (3, 4, 6, 3)),
    50: (Bottleneck, (3, 4, 6, 3)),
    101: (Bottleneck, (3, 4, 23, 3)),
}


class _Pointwise(nn.Conv2d):
    """A strided 1×1 convolution that skips the pixels first.

    libtorch 2.15's own, on a CPU in channels_last with fewer than 16 input channels, writes past its memory
    in the backward pass.
    """

    def forward(self, x: Tensor) -> Tensor:
        rows, columns = self.stride
        return functional.conv2d(x[..., ::rows, ::columns], self.weight)


class ResNet(torchvision_resnet.ResNet, Encoder):
    """ResNet without a classifier: images (N, C, H, W) to pooled features (N, ``num_features``).

    Parameter names are those of torchvision. At width 64 a state dict loads into torchvision's ResNet with
    the same stem.

    Args:
        depth: number of layers: 18, 34, 50 or 101.
        width: number of channels of the first stage; the four stages have width, 2, 4 and 8 times width.
        stem: first layers: ``"small"``, for images up to about 96 pixels, or ``"imagenet"``. The former is a
            3×3 convolution with stride 1, the latter a 7×7 convolution with stride 2 and max-pooling.
        in_channels: number of channels of the images.

    Raises:
        ValueError: the depth or stem is unknown, or in_channels or the width is below 1.

    Example:
        >>> ResNet(depth=18, width=8).num_features
        64
    """

    def __init__(
        self, *, depth: Depth = 18, width: int = 64, stem: Stem = "small", in_channels: int = 3
    ) -> None:
        check_choice("depth", depth, _LAYERS)
        check("width", width, at_least=1)
        check("in_channels", in_channels, at_least=1)
        block, layers = _LAYERS[depth]
        # torchvision's constructor supports only one width, so its blocks are used without its constructor.
        nn.Module.__init__(self)
        self._norm_layer = nn.BatchNorm2d
        self.inplanes, self.dilation, self.groups, self.base_width = width, 1, 1, 64
        if stem == "small":
            self.conv1 = nn.Conv2d(in_channels, width, 3, stride=1, padding=1, bias=False)
            self.maxpool: nn.Module = nn.Identity()
        elif stem == "imagenet":
            self.conv1 = nn.Conv2d(in_channels, width, 7, stride=2, padding=3, bias=False)
            self.maxpool = nn.MaxPool2d(3, stride=2, padding=1)
        else:
            raise ValueError(f"stem must be 'small' or 'imagenet', got {stem!r}")
        self.bn1 = nn.BatchNorm2d(width)
        self.relu = nn.ReLU(inplace=True)
        make: Any = self._make_layer
        self.layer1 = make(block, width, layers[0])
        self.layer2 = make(block, 2 * width, layers[1], stride=2)
        self.layer3 = make(block, 4 * width, layers[2], stride=2)
        self.layer4 = make(block, 8 * width, layers[3], stride=2)
        for layer in (self.layer2, self.layer3, self.layer4):
            plain = layer[0].downsample[0]
            if plain.in_channels < 16:
                layer[0].downsample[0] = skip_init(
                    _Pointwise, plain.in_channels, plain.out_channels, 1, stride=2, bias=False,
                    device=plain.weight.device,
                )  # fmt: skip
        self.avgpool = nn.AdaptiveAvgPool2d((1, 1))
        self.fc: nn.Module = nn.Identity()
        self.num_features = 8 * width * block.expansion
        self.depth, self.width, self.stem, self.in_channels = depth, width, stem, in_channels
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, images: Tensor) -> Tensor:
        """Map normalised images (N, C, H, W) to pooled features of the last stage, (N, ``num_features``)."""
        features: Tensor = super().forward(images)
        return features

    def forward_intermediates(self, images: Tensor) -> tuple[Tensor, list[Tensor]]:
        """Return the features and the feature maps of the four stages."""
        x = self.maxpool(self.relu(self.bn1(self.conv1(images))))
        maps: list[Tensor] = []
        for stage in (self.layer1, self.layer2, self.layer3, self.layer4):
            x = stage(x)
            maps.append(x)
        return self.fc(torch.flatten(self.avgpool(x), 1)), maps

    def layers_to_head(self) -> dict[str, int]:
        """Return the number of layers from each parameter to the projection head; a residual block is one."""
        stages = (self.layer1, self.layer2, self.layer3, self.layer4)
        blocks = [block for stage in stages for block in stage]
        distances = {
            id(parameter): distance
            for distance, block in enumerate(reversed(blocks), start=1)
            for parameter in block.parameters()
        }
        stem = len(blocks) + 1
        return {name: distances.get(id(parameter), stem) for name, parameter in self.named_parameters()}
