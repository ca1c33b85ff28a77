"""Models: the ResNet, the projection head, and the LightningModules that train them."""

from ssl_vision.encoders.resnet import Backbone
from ssl_vision.models.optimizer import OptimizerRule
from ssl_vision.models.simclr import Layers, SimCLR

__all__ = ["Backbone", "Layers", "OptimizerRule", "SimCLR"]
