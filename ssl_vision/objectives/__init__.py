"""Objectives: two views' embeddings in, a loss out. Needs torch alone and works in any training loop."""

from ssl_vision.objectives.chunks import in_chunks
from ssl_vision.objectives.contrastive import Contrastive
from ssl_vision.objectives.margin import margin, positive_similarity, unit
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
from ssl_vision.objectives.supervised import SupCon
from ssl_vision.objectives.temperature import (
    AlignmentExponential,
    AlignmentLinear,
    AlignmentRule,
    Constant,
    CosineInEpoch,
    Learnable,
    LinearInEpoch,
    PerAnchor,
    TemperatureRule,
)
from ssl_vision.objectives.tiled import Pairs
from ssl_vision.objectives.weight import (
    Anchors,
    AtTemperature,
    Clipped,
    Decoupled,
    Flat,
    Reweighted,
    ReweightedByAlignment,
    Softmax,
    VonMisesFisher,
    Weight,
)

__all__ = [
    "DCL",
    "DCLW",
    "MACL",
    "MACLICML",
    "AdaptiveInfoNCE",
    "AlignmentExponential",
    "AlignmentLinear",
    "AlignmentRule",
    "Anchors",
    "AtTemperature",
    "Clipped",
    "Constant",
    "Contrastive",
    "CosineInEpoch",
    "DCLPlus",
    "Decoupled",
    "DualTemperature",
    "Flat",
    "FlatNCE",
    "InfoNCE",
    "Learnable",
    "LinearInEpoch",
    "MACLb",
    "MACLc",
    "Pairs",
    "PerAnchor",
    "Reweighted",
    "ReweightedByAlignment",
    "Softmax",
    "SupCon",
    "TemperatureRule",
    "VonMisesFisher",
    "Weight",
    "in_chunks",
    "margin",
    "positive_similarity",
    "unit",
]
