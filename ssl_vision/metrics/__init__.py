"""Metrics of representations (kNN, pairs, rank) and of loss gradients."""

from ssl_vision.metrics.alignment import Alignment
from ssl_vision.metrics.effective_rank import effective_rank
from ssl_vision.metrics.gradients import (
    GradientStatistics,
    GradientTerms,
    gradient_statistics,
    gradient_terms,
    pair_coefficients,
)
from ssl_vision.metrics.knn import KNNAccuracy
from ssl_vision.metrics.knn_table import KNNScore, knn_table
from ssl_vision.metrics.lidar import LiDAR, lidar
from ssl_vision.metrics.neighbours import Neighbours, faiss_kind, nearest
from ssl_vision.metrics.pairs import PairStatistics, pair_statistics
from ssl_vision.metrics.rank import RankMe, rankme
from ssl_vision.metrics.ranking import RankCorrelation, Ranking, rank_correlation
from ssl_vision.metrics.representation import Representation
from ssl_vision.metrics.sensitivity import SemanticSensitivity
from ssl_vision.metrics.spread import feature_std
from ssl_vision.metrics.tolerance import Tolerance
from ssl_vision.metrics.uniformity import Uniformity
from ssl_vision.metrics.vote import vote

__all__ = [
    "Alignment",
    "GradientStatistics",
    "GradientTerms",
    "KNNAccuracy",
    "KNNScore",
    "LiDAR",
    "Neighbours",
    "PairStatistics",
    "RankCorrelation",
    "RankMe",
    "Ranking",
    "Representation",
    "SemanticSensitivity",
    "Tolerance",
    "Uniformity",
    "effective_rank",
    "faiss_kind",
    "feature_std",
    "gradient_statistics",
    "gradient_terms",
    "knn_table",
    "lidar",
    "nearest",
    "pair_coefficients",
    "pair_statistics",
    "rank_correlation",
    "rankme",
    "vote",
]
