"""Gates, negative weights and ratios, of which the gradient of `UnifiedGradient` consists."""

import math
from collections.abc import Callable, Iterator
from functools import cache, cached_property

import torch
from torch import Tensor, nn

from ssl_vision.errors import check, check_choice
from ssl_vision.objectives.distance import DistanceName, angle, distance, sine
from ssl_vision.objectives.uniformity import SPREADS, Spread, log_sums

BLOCK = 256
"""Number of anchors whose similarities to all embeddings are in memory at a time."""


class AnchorBatch:
    """Anchors with M keys each, the input of a `Gate`, a `NegativeWeight` or a `Ratio`.

    A training step creates it from the embeddings of a batch, and ``ssl-vision maps`` from angles.

    Args:
        anchors: unit vectors of the anchors, shape (B, D).
        positives: unit vectors of the anchors' other views, shape (B, D).
        pairs: selection of the negatives: other images in the anchor's own view (``"within"``), in the other
            view (``"cross"``), or in both views (``"both"``).

    Example:
        >>> class Pressure(NegativeWeight):
        ...     def forward(self, batch: AnchorBatch):
        ...         return batch.negatives(batch.pairs) * batch.similarity.clamp(min=0)
        >>> objective = UnifiedGradient(gate=OpenGate(), weight=Pressure())
        >>> loss = objective(torch.ones(2, 3), torch.ones(2, 3))
        >>> objective.statistics()["gate_mean"]
        tensor(1.)
    """

    def __init__(self, anchors: Tensor, positives: Tensor, pairs: Spread) -> None:
        self.anchors, self.positives, self.pairs = anchors, positives, pairs

    @cached_property
    def positive(self) -> Tensor:
        """Similarities s⁺ to the positives, shape (B,)."""
        return (self.anchors * self.positives).sum(dim=1)

    @cached_property
    def similarity(self) -> Tensor:
        """Cosines of the anchors with all keys, shape (B, M)."""
        raise NotImplementedError

    @property
    def other_similarity(self) -> Tensor:
        """Cosines of the other views of the same images, shape (B, M)."""
        raise NotImplementedError

    def negatives(self, pairs: Spread) -> Tensor:
        """Return a boolean mask of the keys that are negatives of each anchor, shape (B, M)."""
        raise NotImplementedError

    def keys(self, index: Tensor) -> Tensor:
        """Return the vector of one key for each anchor, shape (B, D), given indices of shape (B,)."""
        raise NotImplementedError

    def log_mean(self, temperature: float, *, swap: bool = False) -> Tensor:
        """Compute the log of the mean of Σ_j exp((s_ij − 1)/τ) over the anchors of the view.

        Args:
            temperature: temperature τ.
            swap: use the anchors of the other view.

        Returns:
            A scalar, or shape (B, 1).
        """
        raise NotImplementedError

    def among(self, similarity: Tensor, pairs: Spread) -> Tensor:
        """Return ``similarity`` with −∞ at keys that are not negatives."""
        return similarity.masked_fill(~self.negatives(pairs), -torch.inf)

    def hardest(self, pairs: Spread) -> Tensor:
        """Return the index of the most similar negative, shape (B,)."""
        return self.among(self.similarity, pairs).argmax(dim=1)


class Rows(AnchorBatch):
    """Anchors from a batch, whose keys are all embeddings of the batch.

    Args:
        u: unit embeddings of the whole batch, those of view 1 first, shape (2N, D).
        rows: rows of the B anchors, all from one view.
        pairs: selection of the negatives, as in ``AnchorBatch``.
        log_sums: function from a temperature to log Σ_j exp((s_ij − 1)/τ) over the negatives of each of the
            2N embeddings.
    """

    def __init__(self, u: Tensor, rows: slice, pairs: Spread, log_sums: Callable[[float], Tensor]) -> None:
        self.u, self.rows, self.log_sums = u, rows, log_sums
        self.images = len(u) // 2
        shift = self.images if rows.start < self.images else -self.images
        self.partners = slice(rows.start + shift, rows.stop + shift)
        super().__init__(u[rows], u[self.partners], pairs)

    @classmethod
    def all(cls, u: Tensor, pairs: Spread) -> Iterator["Rows"]:
        """Iterate over the batch in blocks of at most ``BLOCK`` anchors."""
        sums = cache(lambda temperature: log_sums(u, temperature, pairs=pairs))
        images = len(u) // 2
        for view in (0, images):
            for start in range(view, view + images, BLOCK):
                yield cls(u, slice(start, min(start + BLOCK, view + images)), pairs, sums)

    @cached_property
    def similarity(self) -> Tensor:
        """Cosines with all embeddings, shape (B, 2N)."""
        return self.anchors @ self.u.T

    @property
    def other_similarity(self) -> Tensor:
        """Cosines of the other views, shape (B, 2N)."""
        return (self.positives @ self.u.T).roll(self.images, dims=1)

    def negatives(self, pairs: Spread) -> Tensor:
        """Return a boolean mask, shape (B, 2N)."""
        count = len(self.u)
        number = torch.arange(count, device=self.u.device)
        anchor, key = number[self.rows, None], number
        other_image = anchor % self.images != key % self.images
        if pairs == "both":
            return other_image
        own_view = (anchor < self.images) == (key < self.images)
        return other_image & (own_view if pairs == "within" else ~own_view)

    def keys(self, index: Tensor) -> Tensor:
        """Return embeddings, shape (B, D)."""
        return self.u[index]

    def log_mean(self, temperature: float, *, swap: bool = False) -> Tensor:
        """Compute the log of the mean, a scalar."""
        view = self.rows.start // self.images
        sums = self.log_sums(temperature).view(2, -1)[1 - view if swap else view]
        return sums.logsumexp(dim=0) - math.log(self.images)


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
