"""Metrics of representations (kNN, pairs, rank) and of loss gradients."""

from ssl_vision.metrics.accuracy_difference import AccuracyDifference
from ssl_vision.metrics.collection import Representation
from ssl_vision.metrics.knn import KNNAccuracy, KNNScore, knn_table, vote
from ssl_vision.metrics.lidar import LiDAR, lidar
from ssl_vision.metrics.loss_gradients import (
    GradientStatistics,
    GradientTerms,
    gradient_statistics,
    gradient_terms,
    pair_coefficients,
)
from ssl_vision.metrics.neighbours import Neighbours, faiss_kind, nearest
from ssl_vision.metrics.pairs import (
    Alignment,
    PairStatistics,
    SemanticSensitivity,
    Tolerance,
    Uniformity,
    pair_statistics,
)
from ssl_vision.metrics.rank import RankMe, effective_rank, feature_std, rankme
from ssl_vision.metrics.ranking import RankCorrelation, Ranking, rank_correlation

__all__ = [
    "AccuracyDifference",
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
