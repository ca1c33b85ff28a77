"""ResNets for small images, in any width."""

from typing import Literal

from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils import skip_init
from torchvision.models.resnet import BasicBlock, Bottleneck, ResNet

Stem = Literal["small", "imagenet"]
Depth = Literal[18, 34, 50, 101]

MOST_PARAMETERS = 2**30
"""Of a backbone or a head, 4 GiB in float32; the largest ResNet of the SimCLR paper has 3.8e8."""

_LAYERS: dict[int, tuple[type[BasicBlock | Bottleneck], tuple[int, int, int, int]]] = {
    18: (BasicBlock, (2, 2, 2, 2)),
    34: (BasicBlock, (3, 4, 6, 3)),
    50: (Bottleneck, (3, 4, 6, 3)),
    101: (Bottleneck, (3, 4, 23, 3)),
}


_OVER_SQUARED_WIDTH = {18: 2727, 34: 5194, 50: 5739, 101: 10376}
"""Parameters of a backbone by its depth, divided by the square of its width."""


class _Pointwise(nn.Conv2d):
    """A strided 1×1 convolution that skips the pixels first.

    libtorch 2.15's own, on a CPU in channels_last with fewer than 16 input channels, writes past its memory
    in the backward pass.
    """

    def forward(self, x: Tensor) -> Tensor:
        rows, columns = self.stride
        return functional.conv2d(x[..., ::rows, ::columns], self.weight)


class Backbone(ResNet):
    """A torchvision ResNet without its classifier: images (N, 3, H, W) to pooled features (N, ``dim``).

    Parameters carry torchvision's names, so at width 64 a state dict loads into torchvision's own ResNet
    with the same stem.

    Args:
        depth: 18, 34, 50 or 101 layers.
        width: channels of the first stage; the stages have width, 2, 4 and 8 times width.
        stem: ``"small"`` has a 3×3 first convolution of stride 1 and no max-pool, for images up to about
            96 px; ``"imagenet"`` has the 7×7 convolution of stride 2 and the max-pool.

    Raises:
        ValueError: for an unknown depth or stem, or a width below 1 or with more than 2³⁰ parameters.
    """

    def __init__(self, *, depth: Depth = 18, width: int = 64, stem: Stem = "small") -> None:
        if depth not in _LAYERS:
            raise ValueError(f"depth must be one of {sorted(_LAYERS)}, got {depth}")
        if width < 1:
            raise ValueError(f"width must be at least 1, got {width}")
        if (count := _OVER_SQUARED_WIDTH[depth] * width**2) > MOST_PARAMETERS:
            raise ValueError(
                f"width {width} and depth {depth} make {count:.1e} parameters, over {MOST_PARAMETERS:.1e}"
            )
        block, layers = _LAYERS[depth]
        # torchvision's constructor knows one width only: take its blocks and leave its constructor out.
        nn.Module.__init__(self)
        self._norm_layer = nn.BatchNorm2d
        self.inplanes, self.dilation, self.groups, self.base_width = width, 1, 1, 64
        if stem == "small":
            self.conv1 = nn.Conv2d(3, width, 3, stride=1, padding=1, bias=False)
            self.maxpool: nn.Module = nn.Identity()
        elif stem == "imagenet":
            self.conv1 = nn.Conv2d(3, width, 7, stride=2, padding=3, bias=False)
            self.maxpool = nn.MaxPool2d(3, stride=2, padding=1)
        else:
            raise ValueError(f"stem must be 'small' or 'imagenet', got {stem!r}")
        self.bn1 = nn.BatchNorm2d(width)
        self.relu = nn.ReLU(inplace=True)
        self.layer1 = self._make_layer(block, width, layers[0])
        self.layer2 = self._make_layer(block, 2 * width, layers[1], stride=2)
        self.layer3 = self._make_layer(block, 4 * width, layers[2], stride=2)
        self.layer4 = self._make_layer(block, 8 * width, layers[3], stride=2)
        for layer in (self.layer2, self.layer3, self.layer4):
            plain = layer[0].downsample[0]
            if plain.in_channels < 16:
                layer[0].downsample[0] = skip_init(  # type: ignore[no-untyped-call]
                    _Pointwise, plain.in_channels, plain.out_channels, 1, stride=2, bias=False,
                    device=plain.weight.device,
                )  # fmt: skip
        self.avgpool = nn.AdaptiveAvgPool2d((1, 1))
        self.fc: nn.Module = nn.Identity()
        self.dim = 8 * width * block.expansion
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x: Tensor) -> Tensor:
        """Pooled features of the last stage, (N, ``dim``)."""
        features: Tensor = super().forward(x)
        return features
