"""Methods: the LightningModules that train encoders, with their projection heads and optimizers."""

from ssl_vision.methods.method import Method
from ssl_vision.methods.moco import MoCo
from ssl_vision.methods.momentum import MomentumMethod
from ssl_vision.methods.optimizer import OptimizerRule
from ssl_vision.methods.outputs import Layers, ViewOutputs
from ssl_vision.methods.simclr import SimCLR, SimCo
from ssl_vision.methods.simmoco import MoCoV3, SimMoCo

__all__ = [
    "Layers",
    "Method",
    "MoCo",
    "MoCoV3",
    "MomentumMethod",
    "OptimizerRule",
    "SimCLR",
    "SimCo",
    "SimMoCo",
    "ViewOutputs",
]
