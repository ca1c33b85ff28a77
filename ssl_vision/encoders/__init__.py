"""Encoders: networks that map images to feature vectors."""

from ssl_vision.encoders.encoder import (
    Encoder,
    ModuleEncoder,
    as_encoder,
    build,
    device_of,
    evaluation_mode,
    floating_dtype,
    measure_num_features,
)
from ssl_vision.encoders.resnet import ResNet
from ssl_vision.encoders.timm import Timm

__all__ = [
    "Encoder",
    "ModuleEncoder",
    "ResNet",
    "Timm",
    "as_encoder",
    "build",
    "device_of",
    "evaluation_mode",
    "floating_dtype",
    "measure_num_features",
]
