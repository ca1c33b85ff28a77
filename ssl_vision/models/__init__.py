"""Models: the LightningModules that train encoders, with their projection heads and optimizers."""

import warnings
from typing import Any

from ssl_vision.encoders import ResNet
from ssl_vision.models.optimizer import OptimizerRule
from ssl_vision.models.simclr import Layers, SimCLR

__all__ = ["Layers", "OptimizerRule", "SimCLR"]


def __getattr__(name: str) -> Any:
    """Return the encoder class that was named ``Backbone`` in version 0.1."""
    if name == "Backbone":
        message = "ssl_vision.models.Backbone is deprecated; use ssl_vision.encoders.ResNet"
        warnings.warn(message, DeprecationWarning, stacklevel=2)
        return ResNet
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
