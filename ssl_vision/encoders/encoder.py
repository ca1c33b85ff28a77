"""The encoder contract: what a network provides to be trained, evaluated and exported."""

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn


class Encoder(nn.Module):
    """Base class of networks that map images (N, C, H, W) to feature vectors (N, ``num_features``).

    A subclass defines ``forward`` and sets ``num_features``. `ModuleEncoder` does both for any other module.

    Attributes:
        num_features: width of the feature vectors.
        image_size: side in pixels, or height and width, of an image that the encoder accepts.
        in_channels: number of channels of the images, 3 by default.
        memory_format: memory format of weights and images in training, channels_last by default.

    Example:
        >>> class MeanColour(Encoder):
        ...     num_features = 3
        ...
        ...     def forward(self, images):
        ...         return images.mean(dim=(2, 3))
        >>> MeanColour()(torch.zeros(2, 3, 8, 8)).shape
        torch.Size([2, 3])
    """

    num_features: int
    image_size: int | tuple[int, int] = 32
    in_channels: int = 3
    memory_format: torch.memory_format = torch.channels_last

    @property
    def undecayed(self) -> frozenset[str]:
        """Names of parameters without weight decay if ``exclude_bias_and_norm`` is set; by default empty."""
        return frozenset()

    def forward(self, images: Tensor) -> Tensor:
        """Map normalised images (N, 3, H, W) to features (N, ``num_features``)."""
        raise NotImplementedError

    def forward_intermediates(self, images: Tensor) -> tuple[Tensor, list[Tensor]]:
        """Return the features and the feature maps (N, C, H, W) of the stages, from first to last.

        Encoders without feature maps do not define this method, and objectives that use them are refused.

        Raises:
            NotImplementedError: the encoder has no feature maps.
        """
        raise NotImplementedError(f"{type(self).__name__} has no feature maps")

    def convert_weights(self, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Convert a state dict of other names or shapes to this encoder; by default it is not changed.

        Args:
            state: tensors by name. In a `ModuleEncoder` the names are those of the wrapped network.
        """
        return dict(state)

    def layers_to_head(self) -> dict[str, int]:
        """Return the number of layers from each parameter, by its name, to the projection head.

        Parameters of the last layer have 1, and those above it, such as a final normalisation, 0.

        Raises:
            NotImplementedError: the encoder does not state it.
        """
        raise NotImplementedError(f"{type(self).__name__} does not state the order of its layers")

    def forward_shallow(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Return the features and the pooled feature map at three quarters of the depth, (N, C).

        With four stages this is the third stage.

        Raises:
            NotImplementedError: the encoder has no feature maps.
        """
        features, maps = self.forward_intermediates(images)
        return features, maps[(3 * len(maps) + 3) // 4 - 1].mean(dim=(2, 3))

    def shallow_features(self) -> int:
        """Measure the width of the pooled feature map of `forward_shallow`.

        Raises:
            NotImplementedError: the encoder has no feature maps.
        """
        with _undisturbed(self):
            image = _image(self, self.image_size, self.in_channels)
            return int(self.forward_shallow(image)[1].shape[1])


class ModuleEncoder(Encoder):
    """Encoder made of any module that maps images to feature vectors (N, F), or to pooled maps (N, F, 1, 1).

    One evaluation-mode forward pass measures ``num_features``. It draws no random numbers, and it changes
    neither BatchNorm statistics nor the training mode. Another pass finds out whether the module works in
    channels_last format; one that reshapes feature maps with ``Tensor.view`` does not, and is trained in
    contiguous format. Parameter names start with ``network.``.

    Args:
        network: the module, or a function without arguments that builds it.
        image_size: side in pixels, or height and width, of the image that the module is measured with. A
            module that accepts one size only needs that size here.
        in_channels: number of channels of the images.

    Raises:
        ValueError: the module does not map an image of this size to one feature vector.

    Example:
        >>> layers = nn.Sequential(nn.Conv2d(3, 8, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten())
        >>> ModuleEncoder(layers).num_features
        8
    """

    def __init__(
        self,
        network: Callable[[], Encoder] | Callable[[], nn.Module],
        image_size: int | tuple[int, int] = 64,
        in_channels: int = 3,
    ) -> None:
        super().__init__()
        self.network = build(network)
        self.image_size, self.in_channels = image_size, in_channels
        try:
            self.num_features = measure_num_features(self.network, image_size, in_channels)
        except ValueError as error:
            hint = "; image_size of ModuleEncoder sets another size" if type(self) is ModuleEncoder else ""
            raise ValueError(f"{error}{hint}") from error
        if not _accepts_channels_last(self.network, image_size, in_channels):
            self.memory_format = torch.contiguous_format

    def forward(self, images: Tensor) -> Tensor:
        """Map normalised images (N, 3, H, W) to features (N, ``num_features``)."""
        features: Tensor = flattened(self.network(images))
        return features


def flattened(features: Any) -> Any:
    """Return pooled feature maps (N, F, 1, 1) as (N, F), and any other output of an encoder as it is."""
    pooled = isinstance(features, Tensor) and features.ndim > 2 and features.shape[2:].numel() == 1
    return features.flatten(1) if pooled else features


def build(network: Callable[[], nn.Module]) -> nn.Module:
    """Return a module as it is, or the module that a function without arguments builds.

    Example:
        >>> build(nn.Identity), build(nn.Identity())
        (Identity(), Identity())
    """
    return network if isinstance(network, nn.Module) else network()


def as_encoder(network: nn.Module) -> Encoder:
    """Return an encoder as it is, and any other module as a `ModuleEncoder`.

    Raises:
        ValueError: the module does not map images to feature vectors.

    Example:
        >>> as_encoder(nn.Flatten()).num_features == 3 * 64 * 64
        True
    """
    return network if isinstance(network, Encoder) else ModuleEncoder(network)


def measure_num_features(network: nn.Module, image_size: int | tuple[int, int], in_channels: int = 3) -> int:
    """Measure the width of a network's features with one evaluation-mode forward pass of one image.

    Random number generators, BatchNorm statistics and the training mode stay as they are.

    Args:
        network: module that maps images to feature vectors.
        image_size: side of the image in pixels, or its height and width.
        in_channels: number of its channels.

    Raises:
        ValueError: the network does not map the image to one feature vector.

    Example:
        >>> measure_num_features(nn.Flatten(), 8)
        192
    """
    image = _image(network, image_size, in_channels)
    name, shape = type(network).__name__, tuple(image.shape)
    try:
        with _undisturbed(network):
            features = flattened(network(image))
    except Exception as error:  # of any class, because the network may be the user's own
        reason = " ".join(str(error).split()) or type(error).__name__
        raise ValueError(f"{name} cannot encode images {shape}, {reason}") from error
    if not isinstance(features, Tensor) or features.ndim != 2 or len(features) != 1:
        returned: Sequence[int] | str = (
            tuple(features.shape) if isinstance(features, Tensor) else type(features).__name__
        )
        raise ValueError(f"{name} must map images {shape} to features (1, F), but returns {returned}")
    return int(features.shape[1])


def _accepts_channels_last(network: nn.Module, image_size: int | tuple[int, int], in_channels: int) -> bool:
    weights = {
        name: parameter.to(memory_format=torch.channels_last)
        for name, parameter in network.named_parameters()
        if parameter.ndim == 4
    }
    image = _image(network, image_size, in_channels).to(memory_format=torch.channels_last)
    try:
        with _undisturbed(network):
            # tied weights would swap a layer with two names twice, and restore it once
            torch.func.functional_call(network, weights, (image,), tie_weights=False)
    except Exception:  # of any class, because the network may be the user's own
        return False
    return True


def floating_dtype(network: nn.Module, default: torch.dtype) -> torch.dtype:
    """Return the dtype of a network's first floating-point parameter, or the default if it has none.

    Example:
        >>> floating_dtype(nn.Linear(2, 2).double(), torch.float32)
        torch.float64
    """
    return next((each.dtype for each in network.parameters() if each.is_floating_point()), default)


def _image(network: nn.Module, size: int | tuple[int, int], channels: int) -> Tensor:
    """Return a black image with the dtype and on the device of a network."""
    height, width = (size, size) if isinstance(size, int) else size
    dtype = floating_dtype(network, torch.get_default_dtype())
    return torch.zeros(1, channels, height, width, dtype=dtype, device=device_of(network))


@contextmanager
def evaluation_mode(module: nn.Module) -> Iterator[None]:
    """Put a module into evaluation mode; afterwards each of its submodules has its own mode again.

    Example:
        >>> layer = nn.Dropout()
        >>> with evaluation_mode(layer):
        ...     layer.training
        False
        >>> layer.training
        True
    """
    modes = {each: each.training for each in module.modules()}
    module.eval()
    try:
        yield
    finally:
        for each, training in modes.items():
            each.training = training


def device_of(module: nn.Module) -> torch.device:
    """Return the device of a module's first parameter or buffer, or the CPU if it has none.

    Example:
        >>> device_of(nn.Flatten())
        device(type='cpu')
    """
    tensors = itertools.chain(module.parameters(), module.buffers())
    return next((tensor.device for tensor in tensors), torch.device("cpu"))


@contextmanager
def _undisturbed(network: nn.Module) -> Iterator[None]:
    """Disable training mode, gradients and changes of the random number generator."""
    with torch.no_grad(), torch.random.fork_rng(devices=[]), evaluation_mode(network):
        yield
