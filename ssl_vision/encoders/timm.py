"""Encoders from timm, by name. timm is imported when an encoder is built, because the import is slow."""

import difflib
import sys
from collections.abc import Iterator, Mapping
from typing import Any

from torch import Tensor, nn

from ssl_vision.encoders.encoder import ModuleEncoder


class Timm(ModuleEncoder):
    """Encoder from timm: ``timm.create_model(name, num_classes=0, …)``.

    ``num_features`` is measured, because timm's attribute of that name is not always the width of the output.
    ``forward_intermediates`` is available for models that have timm's method of this name.

    Args:
        name: name of the model, such as ``"vit_tiny_patch16_224"``; ``timm.list_models()`` lists them.
        img_size: side of the images, in pixels. Required for vision transformers if the views do not have the
            model's default size. Convolutional networks do not have this option.
        pretrained: start from timm's weights, which are downloaded if necessary. They are not loaded if
            weights of a checkpoint replace them.
        in_channels: number of channels of the images. timm adapts pretrained weights of the first layer.
        **kwargs: further options of the model, such as ``embed_dim``. On the command line they are
            ``--model.encoder.dict_kwargs.embed_dim 96``.

    Attributes:
        mean: mean of the colour channels by which images are normalised for timm's weights.
        std: standard deviation of each channel.

    Raises:
        ValueError: timm has no such model, the model does not take an option, or its pretrained
            weights do not exist or cannot be downloaded.

    Example:
        >>> Timm("convnext_atto").num_features
        320
        >>> Timm("vit_tiny_patch16_224", img_size=32, depth=2).num_features
        192
    """

    def __init__(
        self,
        name: str,
        img_size: int | None = None,
        pretrained: bool = False,
        in_channels: int = 3,
        **kwargs: Any,
    ) -> None:
        import timm

        if not timm.is_model(name):
            near = difflib.get_close_matches(name, timm.list_models(), n=1, cutoff=0.5)
            raise ValueError(f"timm has no model '{name}'" + (f", did you mean '{near[0]}'?" if near else ""))
        if "checkpoint_path" in kwargs:
            raise ValueError("use --initial_checkpoint instead of checkpoint_path")
        options = dict(kwargs) if img_size is None else {**kwargs, "img_size": img_size}
        if in_channels != 3:
            options["in_chans"] = in_channels
        try:
            network: Any = timm.create_model(name, pretrained=pretrained, num_classes=0, **options)
        except Exception as error:  # of any class, from timm's code for an option that does not suit it
            raise ValueError(f"timm cannot build {name}: {' '.join(str(error).split())}") from error
        size = network.pretrained_cfg["input_size"][-1] if img_size is None else img_size
        super().__init__(network, image_size=size, in_channels=in_channels)
        self.name = name
        self.options = options
        self.mean, self.std = network.pretrained_cfg["mean"], network.pretrained_cfg["std"]

    @property
    def undecayed(self) -> frozenset[str]:
        """Names of the parameters that timm excludes from weight decay, such as position embeddings."""
        network: Any = self.network
        try:
            names = network.no_weight_decay()
        except AttributeError:
            return frozenset()
        return frozenset(f"network.{name}" for name in names)

    def convert_weights(self, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Convert a state dict as timm does with published weights of the model.

        timm renames the tensors of some authors' code and, in vision transformers, resamples position
        embeddings to another image size and patch embeddings to another patch size.
        """
        module: Any = sys.modules[type(self.network).__module__]
        try:
            convert = module.checkpoint_filter_fn
        except AttributeError:
            return dict(state)
        return dict(convert(dict(state), self.network))

    def layers_to_head(self) -> dict[str, int]:
        """Return the number of layers from each parameter to the head in timm's grouping of the model.

        Raises:
            NotImplementedError: timm has no grouping of this model.
        """
        from timm.models import group_parameters

        network: Any = self.network
        try:
            matcher = network.group_matcher(coarse=False)
        except AttributeError as error:
            raise NotImplementedError(f"timm has no layer groups of {self.name}") from error
        depths: Any = group_parameters(_WithClassifier(network), matcher, reverse=True)
        top = depths.pop("classifier")
        return {f"network.{name}": top - depth for name, depth in depths.items()}

    def forward_intermediates(self, images: Tensor) -> tuple[Tensor, list[Tensor]]:
        """Return the features and the feature maps (N, C, H, W) of the stages or blocks, from first to last.

        Raises:
            NotImplementedError: timm has no feature maps of this model.
        """
        network: Any = self.network
        try:
            method = network.forward_intermediates
        except AttributeError as error:
            raise NotImplementedError(f"timm has no feature maps of {self.name}") from error
        last, maps = method(images, output_fmt="NCHW")
        return network.forward_head(last), maps


class _WithClassifier(nn.Module):
    """A model with an additional classifier, which timm groups with the parameters above the layers."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def named_parameters(self, *args: Any, **kwargs: Any) -> Iterator[tuple[str, nn.Parameter]]:
        yield from self.network.named_parameters(*args, **kwargs)
        yield "classifier", nn.Parameter()
