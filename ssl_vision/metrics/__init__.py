"""How good a representation is: neighbours, alignment, uniformity, tolerance, semantic sensitivity, rank."""

from ssl_vision.metrics.alignment import Alignment
from ssl_vision.metrics.knn import KNNAccuracy, vote
from ssl_vision.metrics.neighbours import Neighbours, faiss_kind, nearest
from ssl_vision.metrics.pairs import PairStatistics, pair_statistics
from ssl_vision.metrics.rank import RankMe
from ssl_vision.metrics.representation import Representation
from ssl_vision.metrics.sensitivity import SemanticSensitivity
from ssl_vision.metrics.tolerance import Tolerance
from ssl_vision.metrics.uniformity import Uniformity

__all__ = [
    "Alignment",
    "KNNAccuracy",
    "Neighbours",
    "PairStatistics",
    "RankMe",
    "Representation",
    "SemanticSensitivity",
    "Tolerance",
    "Uniformity",
    "faiss_kind",
    "nearest",
    "pair_statistics",
    "vote",
]
