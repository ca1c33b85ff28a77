"""Callbacks: when to measure and what to log."""

from ssl_vision.callbacks.objective import ObjectiveStatistics
from ssl_vision.callbacks.representation import RepresentationMetrics

__all__ = ["ObjectiveStatistics", "RepresentationMetrics"]
