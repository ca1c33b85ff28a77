"""Methods: the LightningModules that train encoders, with their projection heads and optimizers."""

from ssl_vision.methods.method import Method
from ssl_vision.methods.optimizer import OptimizerRule
from ssl_vision.methods.outputs import Layers, View
from ssl_vision.methods.simclr import SimCLR

__all__ = ["Layers", "Method", "OptimizerRule", "SimCLR", "View"]
