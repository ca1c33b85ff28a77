"""Callbacks that measure, log and seed during training."""

from ssl_vision.callbacks.gradients import GradientDiagnostics
from ssl_vision.callbacks.memory import Memory
from ssl_vision.callbacks.objective import ObjectiveStatistics
from ssl_vision.callbacks.online import OnlineProbe
from ssl_vision.callbacks.representation import RepresentationMetrics
from ssl_vision.callbacks.shadow import ShadowObjectives
from ssl_vision.callbacks.skip_nonfinite import SkipNonFiniteSteps
from ssl_vision.callbacks.step_seeds import StepSeeds
from ssl_vision.callbacks.times import Times
from ssl_vision.callbacks.weights import WeightHistogram

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
