"""Gates of `UnifiedGradient`: how much of an anchor's gradient remains."""

import math

import torch
from torch import Tensor, nn

from ssl_vision.errors import check, check_choice
from ssl_vision.objectives.anchor_batch import AnchorBatch
from ssl_vision.objectives.distance import DistanceName, angle, distance
from ssl_vision.objectives.uniformity import SPREADS, Spread


class Gate(nn.Module):
    """Factor in [0, 1] on the gradient of an anchor, which the papers call gradient dissipation (GD).

    Attributes:
        stills: True if the gate scales all gradient of an embedding, including that from other anchors; False
            if it scales only the terms in which the embedding is the anchor.

    Example:
        >>> class AlignmentGate(Gate):
        ...     def forward(self, batch):
        ...         return (1 - batch.positive) / 2
        >>> UnifiedGradient(gate=AlignmentGate())(torch.eye(4), torch.eye(4))
        tensor(0.)
    """

    stills = False

    def forward(self, batch: AnchorBatch) -> Tensor:
        """GD of each anchor, in [0, 1], shape (B,)."""
        raise NotImplementedError


class OpenGate(Gate):
    """GD = 1, as in DCL.

    Example:
        >>> objective = UnifiedGradient(gate=OpenGate())
        >>> loss = objective(torch.eye(4), torch.eye(4))
        >>> objective.statistics()["gate_mean"]
        tensor(1.)
    """

    def forward(self, batch: AnchorBatch) -> Tensor:
        """Ones, shape (B,)."""
        return batch.positive.new_ones(len(batch.anchors))


class SigmoidGate(Gate):
    """GD = sigmoid(d), as in InfoNCE. With u > 0 cos(θ⁺ + u) replaces s⁺ in d, as in ArcCon.

    Args:
        temperature: τ > 0 of the logit margin d.
        angle: u in degrees.

    Example:
        >>> objective = UnifiedGradient(gate=SigmoidGate(temperature=1.0))
        >>> loss = objective(torch.eye(4), torch.eye(4))
        >>> objective.statistics()["gate_mean"]  # 6 / (6 + e)
        tensor(0.6882)
    """

    def __init__(self, temperature: float = 0.1, angle: float = 0.0) -> None:
        super().__init__()
        check("temperature", temperature, above=0)
        check("angle", angle, at_least=0, at_most=90)
        self.temperature, self.angle = temperature, math.radians(angle)

    def forward(self, batch: AnchorBatch) -> Tensor:
        """Return W, shape (B,)."""
        return _logit_margin(batch, self.temperature, turn=self.angle).sigmoid()


class StepGate(Gate):
    """GD = 1 where the logit margin d is positive and 0 elsewhere, as in DCL⁺.

    Args:
        temperature: τ > 0 of the logit margin d.

    Example:
        >>> objective = UnifiedGradient(gate=StepGate(temperature=0.1))
        >>> loss = objective(torch.eye(4), torch.eye(4))
        >>> objective.statistics()["gate_mean"]  # every positive outweighs its negatives
        tensor(0.)
    """

    def __init__(self, temperature: float = 0.1) -> None:
        super().__init__()
        check("temperature", temperature, above=0)
        self.temperature = temperature

    def forward(self, batch: AnchorBatch) -> Tensor:
        """1 where d > 0, otherwise 0, shape (B,)."""
        d = _logit_margin(batch, self.temperature)
        return (d > 0).to(d.dtype)


class HingeGate(Gate):
    """GD = 1 where the hardest negative is less than m further away than the positive, otherwise 0.

    Args:
        metric: distance in which the two are compared (see `HardestTriplet`).
        margin: m > 0, in the metric's unit; a share of π for ``"angle"``.
        pairs: negatives among which the hardest is sought; None takes those of the objective.

    Example:
        >>> objective = UnifiedGradient(gate=HingeGate("product", margin=0.3))
        >>> loss = objective(torch.eye(4), torch.eye(4))
        >>> objective.statistics()["gate_mean"]  # every negative is 1 further away than the positive
        tensor(0.)
    """

    def __init__(
        self, metric: DistanceName = "product", margin: float = 0.3, pairs: Spread | None = None
    ) -> None:
        super().__init__()
        check("margin", margin, above=0)
        if pairs is not None:
            check_choice("pairs", pairs, SPREADS)
        self.between = distance(metric).between
        self.margin = margin * math.pi if metric == "angle" else margin
        self.pairs = pairs

    def forward(self, batch: AnchorBatch) -> Tensor:
        """1 inside the margin, otherwise 0, shape (B,)."""
        nearest = batch.keys(batch.hardest(self.pairs or batch.pairs))
        gap = self.between(batch.anchors, nearest) - self.between(batch.anchors, batch.positives)
        return (gap < self.margin).to(gap.dtype)


class WithinViewGate(Gate):
    """GD = 1 where an image of the anchor's own view has a similarity above 1 − m, otherwise 0.

    This is the gate of the modified non-contrastive losses in the paper's code, which takes the gap within
    one view, where the positive is the anchor itself. An embedding whose gate is shut gets no gradient.

    Args:
        margin: m > 0.

    Example:
        >>> objective = UnifiedGradient(gate=WithinViewGate(margin=0.3))
        >>> loss = objective(torch.eye(4), torch.eye(4))
        >>> objective.statistics()["gate_mean"]
        tensor(0.)
    """

    stills = True

    def __init__(self, margin: float = 0.3) -> None:
        super().__init__()
        check("margin", margin, above=0)
        self.margin = margin

    def forward(self, batch: AnchorBatch) -> Tensor:
        """1 where another image of the view is near, otherwise 0, shape (B,)."""
        nearest = batch.among(batch.similarity, "within").amax(dim=1)
        return (1 - nearest < self.margin).to(nearest.dtype)


def _logit_margin(batch: AnchorBatch, temperature: float, *, turn: float = 0.0) -> Tensor:
    """(B,) log Σ_j exp(s_ij/τ) − cos(θ⁺ + turn)/τ."""
    positive = torch.cos(angle(batch.anchors, batch.positives) + turn) if turn else batch.positive
    return ((batch.among(batch.similarity, batch.pairs) - positive[:, None]) / temperature).logsumexp(dim=1)
