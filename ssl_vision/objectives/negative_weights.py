"""Negative weights of `UnifiedGradient`: how strongly each negative pushes the anchor."""

import torch
from torch import Tensor, nn

from ssl_vision.errors import check
from ssl_vision.objectives.anchor_batch import AnchorBatch
from ssl_vision.objectives.distance import DistanceName, distance


class NegativeWeight(nn.Module):
    """W_ij, the strength with which negative j pushes anchor i.

    Example:
        >>> class Uniform(NegativeWeight):
        ...     def forward(self, batch):
        ...         negatives = batch.negatives(batch.pairs).to(batch.similarity.dtype)
        ...         return negatives / negatives.sum(dim=1, keepdim=True)
        >>> objective = UnifiedGradient(gate=OpenGate(), weight=Uniform())
        >>> round(objective(torch.eye(4), torch.eye(4)).item(), 2)
        -1.0
    """

    def forward(self, batch: AnchorBatch) -> Tensor:
        """W, shape (B, M), 0 where a key is not a negative of the anchor."""
        raise NotImplementedError


class SoftmaxOverNegatives(NegativeWeight):
    """W_ij = (1/τ) exp(s_ij/τ) / Σ_k exp(s_ik/τ), as in InfoNCE, DCL and ArcCon.

    Args:
        temperature: temperature τ > 0.

    Example:
        >>> dcl = UnifiedGradient(gate=OpenGate(), weight=SoftmaxOverNegatives(temperature=0.5))
        >>> round(dcl(torch.eye(4), torch.eye(4)).item(), 2)
        -2.0
    """

    def __init__(self, temperature: float = 0.1) -> None:
        super().__init__()
        check("temperature", temperature, above=0)
        self.temperature = temperature

    def forward(self, batch: AnchorBatch) -> Tensor:
        """W, shape (B, M), whose rows sum to 1/τ."""
        logits = batch.among(batch.similarity, batch.pairs) / self.temperature
        return logits.softmax(dim=1) / self.temperature


class SoftmaxOverPairs(NegativeWeight):
    """W_ij = exp(s_ij/τ) over the sum of all pairs of the view, times the number of its anchors.

    Anchors with many similar negatives push more. The rows of W sum to 1 on average only.

    Args:
        temperature: temperature τ > 0.
        swap: True takes the similarities of the same two images' other views, as Barlow Twins does.

    Example:
        >>> weight = SoftmaxOverPairs(temperature=0.05)
        >>> objective = UnifiedGradient(gate=OpenGate(), weight=weight, ratio=0.5)
        >>> round(objective(torch.eye(4), torch.eye(4)).item(), 2)
        -0.5
    """

    def __init__(self, temperature: float = 0.05, swap: bool = False) -> None:
        super().__init__()
        check("temperature", temperature, above=0)
        self.temperature, self.swap = temperature, swap

    def forward(self, batch: AnchorBatch) -> Tensor:
        """W, shape (B, M), whose rows sum to 1 on average."""
        similarity = batch.other_similarity if self.swap else batch.similarity
        gap = (batch.among(similarity, batch.pairs) - 1) / self.temperature
        return (gap - batch.log_mean(self.temperature, swap=self.swap)).exp()


class PowerOverNegatives(NegativeWeight):
    """W_ij = max(s_ij, 1e-4)^p / Σ_k max(s_ik, 1e-4)^p, the alternative to the softmax in the paper's code.

    Args:
        power: p > 0.

    Example:
        >>> weight = PowerOverNegatives(power=4.0)
        >>> objective = UnifiedGradient(gate=OpenGate(), weight=weight)
        >>> round(objective(torch.eye(4), torch.eye(4)).item(), 2)
        -1.0
    """

    def __init__(self, power: float = 4.0) -> None:
        super().__init__()
        check("power", power, above=0)
        self.power = power

    def forward(self, batch: AnchorBatch) -> Tensor:
        """W, shape (B, M), whose rows sum to 1."""
        logits = self.power * batch.similarity.clamp(min=1e-4).log()
        return batch.among(logits, batch.pairs).softmax(dim=1)


class HardestNegative(NegativeWeight):
    """W_ij is the metric's slope at the hardest negative and 0 elsewhere, as in MPT, MET and MAT.

    The slope is 1, 1/δ⁻ or 1/sin θ⁻.

    A constant ratio applies this slope to the pull of the positive, too; `SlopeRatio` gives the ratios of MET
    and MAT. Where the hardest negative coincides with the anchor, the slope is 1/√ε, with ε the resolution of
    the dtype; `SlopeRatio` cancels it.

    Args:
        metric: ``"product"``, ``"euclidean"`` or ``"angle"``.

    Example:
        >>> mpt = UnifiedGradient(gate=HingeGate("product", margin=1.5), weight=HardestNegative("product"))
        >>> mpt(torch.eye(4), torch.eye(4))
        tensor(-1.)
    """

    def __init__(self, metric: DistanceName = "product") -> None:
        super().__init__()
        self.slope = distance(metric).slope

    def forward(self, batch: AnchorBatch) -> Tensor:
        """W, shape (B, M), with one entry in each row."""
        nearest = batch.hardest(batch.pairs)
        slope = self.slope(batch.anchors, batch.keys(nearest))
        return torch.zeros_like(batch.similarity).scatter(1, nearest[:, None], slope[:, None])
