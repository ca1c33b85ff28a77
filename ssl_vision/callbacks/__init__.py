"""Callbacks: when to measure and what to log."""

from ssl_vision.callbacks.finite import FiniteSteps
from ssl_vision.callbacks.gradients import GradientDiagnostics
from ssl_vision.callbacks.objective import ObjectiveStatistics
from ssl_vision.callbacks.online import OnlineProbe
from ssl_vision.callbacks.representation import RepresentationMetrics
from ssl_vision.callbacks.shadow import ShadowObjectives
from ssl_vision.callbacks.times import Times

__all__ = [
    "FiniteSteps",
    "GradientDiagnostics",
    "ObjectiveStatistics",
    "OnlineProbe",
    "RepresentationMetrics",
    "ShadowObjectives",
    "Times",
]
