"""Ratios of `UnifiedGradient`: the positive's pull as a share of the negatives' push."""

import math

from torch import Tensor, nn

from ssl_vision.errors import check
from ssl_vision.objectives.anchor_batch import AnchorBatch
from ssl_vision.objectives.distance import DistanceName, distance, sine


class Ratio(nn.Module):
    """R, the positive's pull as a share of the push of all negatives.

    Example:
        >>> class Easing(Ratio):
        ...     def forward(self, batch):
        ...         return 2 - batch.positive
        >>> objective = UnifiedGradient(gate=OpenGate(), ratio=Easing())
        >>> round(objective(torch.eye(4), torch.eye(4)).item(), 2)
        -20.0
    """

    def forward(self, batch: AnchorBatch) -> Tensor:
        """R of each anchor, shape (B,)."""
        raise NotImplementedError


class ConstantRatio(Ratio):
    """R = r, with r = 1 in InfoNCE, DCL and MPT.

    Args:
        value: r ≥ 0.

    Example:
        >>> objective = UnifiedGradient(gate=OpenGate(), ratio=ConstantRatio(0.5))
        >>> round(objective(torch.eye(4), torch.eye(4)).item(), 2)
        -10.0
    """

    def __init__(self, value: float = 1.0) -> None:
        super().__init__()
        check("value", value, at_least=0)
        self.value = value

    def forward(self, batch: AnchorBatch) -> Tensor:
        """The value r, shape (B,)."""
        return batch.positive.new_full((len(batch.anchors),), self.value)


class SlopeRatio(Ratio):
    """R = slope of the metric at the positive / slope at the hardest negative.

    This is δ⁻/δ⁺ in MET and sin θ⁻/sin θ⁺ in MAT.

    Args:
        metric: ``"product"``, ``"euclidean"`` or ``"angle"``.

    Example:
        >>> z1, z2 = torch.tensor([[1.0, 0], [0, 1]]), torch.tensor([[0.8, 0.6], [-0.6, 0.8]])
        >>> met = UnifiedGradient(
        ...     gate=OpenGate(), weight=HardestNegative("euclidean"), ratio=SlopeRatio("euclidean")
        ... )
        >>> met(z1, z2)
        tensor(-0.9295)
    """

    def __init__(self, metric: DistanceName = "euclidean") -> None:
        super().__init__()
        self.slope = distance(metric).slope

    def forward(self, batch: AnchorBatch) -> Tensor:
        """R of each anchor, shape (B,)."""
        nearest = batch.keys(batch.hardest(batch.pairs))
        return self.slope(batch.anchors, batch.positives) / self.slope(batch.anchors, nearest)


class AngularRatio(Ratio):
    """R = sin(θ⁺ + u)/sin θ⁺, as in ArcCon.

    Args:
        angle: u in degrees.

    Example:
        >>> z1, z2 = torch.tensor([[1.0, 0], [0, 1]]), torch.tensor([[0.8, 0.6], [-0.6, 0.8]])
        >>> UnifiedGradient(gate=OpenGate(), ratio=AngularRatio(angle=10.0))(z1, z2)
        tensor(-13.4615)
    """

    def __init__(self, angle: float = 10.0) -> None:
        super().__init__()
        check("angle", angle, at_least=0, at_most=90)
        self.angle = math.radians(angle)

    def forward(self, batch: AnchorBatch) -> Tensor:
        """R = cos u + sin u · s⁺/sin θ⁺ of each anchor, shape (B,)."""
        sine_of_positive = sine(batch.anchors, batch.positives)
        return math.cos(self.angle) + math.sin(self.angle) * batch.positive / sine_of_positive
