"""Objectives, which map the embeddings of two views to a loss.

They require only torch and work in any training loop.
"""

from ssl_vision.objectives.anchor_batch import AnchorBatch
from ssl_vision.objectives.bank import Bank
from ssl_vision.objectives.chunks import in_chunks
from ssl_vision.objectives.contrastive import Contrastive, PairSet
from ssl_vision.objectives.critic import Critic
from ssl_vision.objectives.dissipation import MAT, MET, MPT, ArcCon, HardestTriplet
from ssl_vision.objectives.gates import Gate, HingeGate, OpenGate, SigmoidGate, StepGate, WithinViewGate
from ssl_vision.objectives.logit_margin import logit_margin, normalize, positive_similarity
from ssl_vision.objectives.margin_loss import (
    Anchors,
    AtTemperature,
    Clipped,
    Decoupled,
    Flat,
    MarginLoss,
    Reweighted,
    ReweightedByAlignment,
    Softmax,
    VonMisesFisher,
)
from ssl_vision.objectives.modified import ModifiedBarlowTwins, ModifiedMHE, ModifiedMHS, ModifiedVICReg
from ssl_vision.objectives.negative_weights import (
    HardestNegative,
    NegativeWeight,
    PowerOverNegatives,
    SoftmaxOverNegatives,
    SoftmaxOverPairs,
)
from ssl_vision.objectives.objective import Objective, as_objective
from ssl_vision.objectives.presets import (
    DCL,
    DCLW,
    MACL,
    MACLICML,
    AdaptiveInfoNCE,
    DCLPlus,
    DualTemperature,
    FlatNCE,
    InfoNCE,
    MACLb,
    MACLc,
)
from ssl_vision.objectives.ratios import AngularRatio, ConstantRatio, Ratio, SlopeRatio
from ssl_vision.objectives.reclaim import RECLAIM
from ssl_vision.objectives.redundancy import BarlowTwins, SphericalBarlowTwins, SphericalVICReg, VICReg
from ssl_vision.objectives.supervised import SupCon
from ssl_vision.objectives.temperature import (
    AlignmentExponential,
    AlignmentLinear,
    AlignmentRule,
    Constant,
    CosineInEpoch,
    EpochRule,
    Learnable,
    LinearInEpoch,
    PerAnchor,
    TemperatureRule,
)
from ssl_vision.objectives.tiled import Pairs
from ssl_vision.objectives.two_views import TwoViews
from ssl_vision.objectives.unified_gradient import UnifiedGradient
from ssl_vision.objectives.uniformity import MHE, MHS, AlignmentUniformity

__all__ = [
    "DCL",
    "DCLW",
    "MACL",
    "MACLICML",
    "MAT",
    "MET",
    "MHE",
    "MHS",
    "MPT",
    "RECLAIM",
    "AdaptiveInfoNCE",
    "AlignmentExponential",
    "AlignmentLinear",
    "AlignmentRule",
    "AlignmentUniformity",
    "AnchorBatch",
    "Anchors",
    "AngularRatio",
    "ArcCon",
    "AtTemperature",
    "Bank",
    "BarlowTwins",
    "Clipped",
    "Constant",
    "ConstantRatio",
    "Contrastive",
    "CosineInEpoch",
    "Critic",
    "DCLPlus",
    "Decoupled",
    "DualTemperature",
    "EpochRule",
    "Flat",
    "FlatNCE",
    "Gate",
    "HardestNegative",
    "HardestTriplet",
    "HingeGate",
    "InfoNCE",
    "Learnable",
    "LinearInEpoch",
    "MACLb",
    "MACLc",
    "MarginLoss",
    "ModifiedBarlowTwins",
    "ModifiedMHE",
    "ModifiedMHS",
    "ModifiedVICReg",
    "NegativeWeight",
    "Objective",
    "OpenGate",
    "PairSet",
    "Pairs",
    "PerAnchor",
    "PowerOverNegatives",
    "Ratio",
    "Reweighted",
    "ReweightedByAlignment",
    "SigmoidGate",
    "SlopeRatio",
    "Softmax",
    "SoftmaxOverNegatives",
    "SoftmaxOverPairs",
    "SphericalBarlowTwins",
    "SphericalVICReg",
    "StepGate",
    "SupCon",
    "TemperatureRule",
    "TwoViews",
    "UnifiedGradient",
    "VICReg",
    "VonMisesFisher",
    "WithinViewGate",
    "as_objective",
    "in_chunks",
    "logit_margin",
    "normalize",
    "positive_similarity",
]
