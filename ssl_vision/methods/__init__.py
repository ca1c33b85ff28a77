"""Methods: the LightningModules that train encoders, with their projection heads and optimizers."""

from ssl_vision.methods.optimizer import OptimizerRule
from ssl_vision.methods.simclr import Layers, SimCLR

__all__ = ["Layers", "OptimizerRule", "SimCLR"]
