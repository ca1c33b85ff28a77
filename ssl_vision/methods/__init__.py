"""Methods: the LightningModules that train encoders, with their projection heads and optimizers."""

from ssl_vision.methods.method import Layers, Method, View
from ssl_vision.methods.optimizer import OptimizerRule
from ssl_vision.methods.simclr import SimCLR

__all__ = ["Layers", "Method", "OptimizerRule", "SimCLR", "View"]
