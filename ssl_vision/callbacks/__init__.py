"""Callbacks that measure, log and seed during training."""

from ssl_vision.callbacks.objective_eval import GradientDiagnostics, ShadowObjectives
from ssl_vision.callbacks.objective_statistics import ObjectiveStatistics, WeightHistogram
from ssl_vision.callbacks.online import OnlineProbe
from ssl_vision.callbacks.representation import RepresentationMetrics
from ssl_vision.callbacks.resources import Memory, Times
from ssl_vision.callbacks.skip_nonfinite import SkipNonFiniteSteps
from ssl_vision.callbacks.step_seeds import StepSeeds

__all__ = [
    "GradientDiagnostics",
    "Memory",
    "ObjectiveStatistics",
    "OnlineProbe",
    "RepresentationMetrics",
    "ShadowObjectives",
    "SkipNonFiniteSteps",
    "StepSeeds",
    "Times",
    "WeightHistogram",
]
