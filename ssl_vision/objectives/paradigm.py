"""Any objective as its gradient: a gate, a weight over the negatives and a ratio.

The unified-gradient paper (Towards better understanding of contrastive sentence representation learning)
reads the gradient of a loss on a unit anchor h_i, up to its part along h_i, as

    ∂L_i/∂h_i = GD_i Σ_j W_ij (k_j − R_i k_i)

with negatives k_j and the positive k_i. ``UnifiedGradient`` trains with such a gradient. Its three parts are
small objects, and ``docs/objectives.md`` has the table of those that make up the known losses.
"""

import math
from typing import Literal

import torch
from torch import Tensor, nn

from ssl_vision.objectives.anchor_batch import AnchorBatch, Rows
from ssl_vision.objectives.dissipation import check_angle
from ssl_vision.objectives.distance import DistanceName, angle, distance, sine
from ssl_vision.objectives.margin import normalize, positives
from ssl_vision.objectives.margin_loss import value_with_gradient
from ssl_vision.objectives.two_views import TwoViews
from ssl_vision.objectives.uniformity import Spread, check_spread


class Gate(nn.Module):
    """Gradient dissipation: how much of an anchor's gradient remains.

    Attributes:
        stills: Whether the gate is on all gradient that the embedding gets, from other anchors, too, and not
            on what its own terms give.
    """

    stills = False

    def forward(self, block: AnchorBatch) -> Tensor:
        """(B,) in [0, 1]."""
        raise NotImplementedError


class OpenGate(Gate):
    """GD = 1: DCL."""

    def forward(self, block: AnchorBatch) -> Tensor:
        """1."""
        return block.positive.new_ones(len(block.anchors))


class SigmoidGate(Gate):
    """GD = sigmoid(d), d the margin with cos(θ⁺ + u) in place of s⁺: InfoNCE, and ArcCon for u > 0.

    Args:
        temperature: τ > 0 of the margin.
        angle: u in degrees.
    """

    def __init__(self, temperature: float = 0.1, angle: float = 0.0) -> None:
        super().__init__()
        _check_temperature(temperature)
        check_angle(angle)
        self.temperature, self.angle = temperature, math.radians(angle)

    def forward(self, block: AnchorBatch) -> Tensor:
        """W."""
        return _margin(block, self.temperature, turn=self.angle).sigmoid()


class StepGate(Gate):
    """GD = 1 where d > 0, else 0, d the margin: DCL⁺.

    Args:
        temperature: τ > 0 of the margin.
    """

    def __init__(self, temperature: float = 0.1) -> None:
        super().__init__()
        _check_temperature(temperature)
        self.temperature = temperature

    def forward(self, block: AnchorBatch) -> Tensor:
        """1 where d > 0."""
        d = _margin(block, self.temperature)
        return (d > 0).to(d.dtype)


class HingeGate(Gate):
    """GD = 1 where the hardest negative is less than m further away than the positive, else 0.

    Args:
        metric: in which distance (see ``HardestTriplet``).
        margin: m > 0, in the metric's unit; for ``"angle"`` a share of π.
        pairs: among which negatives the hardest is sought; None takes those of the objective.
    """

    def __init__(
        self, metric: DistanceName = "product", margin: float = 0.3, pairs: Spread | None = None
    ) -> None:
        super().__init__()
        _check_margin(margin)
        if pairs is not None:
            check_spread(pairs)
        self.between = distance(metric).between
        self.margin = margin * math.pi if metric == "angle" else margin
        self.pairs = pairs

    def forward(self, block: AnchorBatch) -> Tensor:
        """1 inside the margin."""
        nearest = block.keys(block.hardest(self.pairs or block.pairs))
        gap = self.between(block.anchors, nearest) - self.between(block.anchors, block.positives)
        return (gap < self.margin).to(gap.dtype)


class WithinViewGate(Gate):
    """GD = 1 where some image of the anchor's own view has a similarity above 1 − m; otherwise it lies still.

    The gate of the modified non-contrastive losses as released: the gap is taken within one view, where the
    positive is the anchor itself, and a shut row is detached altogether.

    Args:
        margin: m > 0.
    """

    stills = True

    def __init__(self, margin: float = 0.3) -> None:
        super().__init__()
        _check_margin(margin)
        self.margin = margin

    def forward(self, block: AnchorBatch) -> Tensor:
        """1 where the own view is crowded."""
        nearest = block.among(block.similarity, "within").amax(dim=1)
        return (1 - nearest < self.margin).to(nearest.dtype)


class NegativeWeight(nn.Module):
    """W, how strongly each negative pushes the anchor."""

    def forward(self, block: AnchorBatch) -> Tensor:
        """(B, M), 0 where a key is no negative of the anchor."""
        raise NotImplementedError


class SoftmaxOverNegatives(NegativeWeight):
    """W_ij = (1/τ) exp(s_ij/τ) / Σ_k exp(s_ik/τ): InfoNCE, DCL, ArcCon.

    Args:
        temperature: τ > 0.
    """

    def __init__(self, temperature: float = 0.1) -> None:
        super().__init__()
        _check_temperature(temperature)
        self.temperature = temperature

    def forward(self, block: AnchorBatch) -> Tensor:
        """Rows sum to 1/τ."""
        logits = block.among(block.similarity, block.pairs) / self.temperature
        return logits.softmax(dim=1) / self.temperature


class SoftmaxOverPairs(NegativeWeight):
    """W_ij = exp(s_ij/τ) over the sum of all pairs of the view, times the number of its anchors.

    Anchors in a crowd push more: rows sum to 1 on average, not each.

    Args:
        temperature: τ > 0.
        swap: take the similarities of the same two images' other views, as Barlow Twins does.
    """

    def __init__(self, temperature: float = 0.05, swap: bool = False) -> None:
        super().__init__()
        _check_temperature(temperature)
        self.temperature, self.swap = temperature, swap

    def forward(self, block: AnchorBatch) -> Tensor:
        """Rows sum to 1 on average."""
        similarity = block.other_similarity if self.swap else block.similarity
        gap = (block.among(similarity, block.pairs) - 1) / self.temperature
        return (gap - block.log_mean(self.temperature, swap=self.swap)).exp()


class PowerOverNegatives(NegativeWeight):
    """W_ij = max(s_ij, 1e-4)^p / Σ_k max(s_ik, 1e-4)^p, the released code's alternative to the softmax.

    Args:
        power: p > 0.
    """

    def __init__(self, power: float = 4.0) -> None:
        super().__init__()
        if not 0 < power < math.inf:
            raise ValueError(f"power must be positive, got {power}")
        self.power = power

    def forward(self, block: AnchorBatch) -> Tensor:
        """Rows sum to 1."""
        logits = self.power * block.similarity.clamp(min=1e-4).log()
        return block.among(logits, block.pairs).softmax(dim=1)


class HardestNegative(NegativeWeight):
    """W_ij is the metric's slope for the hardest negative (1, 1/δ⁻ or 1/sin θ⁻), else 0: MPT, MET, MAT.

    With a constant ratio the positive's pull has this slope, too, and where the hardest negative coincides
    with the anchor it is as large as 1/√ε, ε the dtype's resolution; ``SlopeRatio`` takes it back.

    Args:
        metric: ``"product"``, ``"euclidean"`` or ``"angle"``.
    """

    def __init__(self, metric: DistanceName = "product") -> None:
        super().__init__()
        self.slope = distance(metric).slope

    def forward(self, block: AnchorBatch) -> Tensor:
        """One entry a row."""
        nearest = block.hardest(block.pairs)
        slope = self.slope(block.anchors, block.keys(nearest))
        return torch.zeros_like(block.similarity).scatter(1, nearest[:, None], slope[:, None])


class Ratio(nn.Module):
    """R, the positive's pull as a share of the negatives' push together."""

    def forward(self, block: AnchorBatch) -> Tensor:
        """(B,)."""
        raise NotImplementedError


class ConstantRatio(Ratio):
    """R = r: 1 in InfoNCE, DCL and MPT.

    Args:
        value: r ≥ 0.
    """

    def __init__(self, value: float = 1.0) -> None:
        super().__init__()
        if not 0 <= value < math.inf:
            raise ValueError(f"value must not be negative, got {value}")
        self.value = value

    def forward(self, block: AnchorBatch) -> Tensor:
        """R."""
        return block.positive.new_full((len(block.anchors),), self.value)


class SlopeRatio(Ratio):
    """R, the metric's slope at s⁺ over that at the hardest negative: δ⁻/δ⁺ in MET, sin θ⁻/sin θ⁺ in MAT.

    Args:
        metric: ``"product"``, ``"euclidean"`` or ``"angle"``.
    """

    def __init__(self, metric: DistanceName = "euclidean") -> None:
        super().__init__()
        self.slope = distance(metric).slope

    def forward(self, block: AnchorBatch) -> Tensor:
        """R."""
        nearest = block.keys(block.hardest(block.pairs))
        return self.slope(block.anchors, block.positives) / self.slope(block.anchors, nearest)


class AngularRatio(Ratio):
    """R = sin(θ⁺ + u)/sin θ⁺: ArcCon.

    Args:
        angle: u in degrees.
    """

    def __init__(self, angle: float = 10.0) -> None:
        super().__init__()
        check_angle(angle)
        self.angle = math.radians(angle)

    def forward(self, block: AnchorBatch) -> Tensor:
        """cos u + sin u · s⁺/sin θ⁺."""
        return math.cos(self.angle) + math.sin(self.angle) * block.positive / sine(
            block.anchors, block.positives
        )


class UnifiedGradient(TwoViews):
    """The objective whose gradient a gate, a weight and a ratio make up.

        L = scale · mean_i sg(GD_i) Σ_j sg(W_ij) (s_ij − sg(R_i) s⁺_i)

    With ``detach="nothing"`` the gradient is that of the loss whose parts these are: of InfoNCE with a
    ``SigmoidGate`` and ``SoftmaxOverNegatives`` at one temperature, of MPT with a ``HingeGate`` and
    ``HardestNegative``. The value is no measure of progress: it may rise while training goes well.

    The paper's code calls this the simulated gradient. Its gate, weight and ratio are the defaults here. With
    ``pairs="cross"``, ``detach="negatives"``, ``average="open_per_view"`` and ``scale=0.1 / N`` the value and
    the gradient are those of the code, N being the number of images in the batch. At ``scale=1`` they are
    N/2 · 1/τ times as large: the code averages over all N keys of an open anchor, adds the views, and has no
    1/τ. With every gate of a view shut the code returns NaN; here that view counts as 0.

    With ``detach="negatives"`` the pull of a positive counts twice, for s⁺ moves both its views, and the push
    of a negative once. The ratio in effect is then about 2R.

    Statistics: ``gate_mean``, the mean of GD, and ``active_share``, the share of anchors with GD > 0.

    Args:
        gate: GD; the default is ``HingeGate("product", 0.3)``.
        weight: W; the default is ``SoftmaxOverNegatives(0.05)``.
        ratio: R; a number is ``ConstantRatio``.
        pairs: ``"both"`` or ``"cross"`` as in ``Contrastive``, or ``"within"`` the anchor's own view.
        detach: keys that a term leaves where they are: ``"nothing"``, all move; ``"negatives"``, the positive
            moves; ``"keys"``, the anchor alone moves, which is the paper's formula to the letter.
        average: anchors over which the loss is averaged: ``"all"``; those with an ``"open"`` gate (GD > 0),
            so that shut gates do not shorten the step; or ``"open_per_view"``, those with an open gate in
            each view, followed by the mean over the two views.
        scale: a factor on the loss.
        gather: across processes, as in ``Contrastive``.

    Raises:
        ValueError: for unknown ``pairs``, ``detach`` or ``average``, a scale that is not positive, or a ratio
            below 0.
    """

    def __init__(
        self,
        *,
        gate: Gate | None = None,
        weight: NegativeWeight | None = None,
        ratio: float | Ratio = 1.0,
        pairs: Spread = "both",
        detach: Literal["nothing", "negatives", "keys"] = "nothing",
        average: Literal["all", "open", "open_per_view"] = "all",
        scale: float = 1.0,
        gather: bool = True,
    ) -> None:
        super().__init__(gather=gather)
        check_spread(pairs)
        if detach not in ("nothing", "negatives", "keys"):
            raise ValueError(f"detach must be 'nothing', 'negatives' or 'keys', got {detach!r}")
        if average not in ("all", "open", "open_per_view"):
            raise ValueError(f"average must be 'all', 'open' or 'open_per_view', got {average!r}")
        if not 0 < scale < math.inf:
            raise ValueError(f"scale must be positive, got {scale}")
        self.gate = HingeGate("product", 0.3) if gate is None else gate
        self.weight = SoftmaxOverNegatives(0.05) if weight is None else weight
        self.ratio = ratio if isinstance(ratio, Ratio) else ConstantRatio(ratio)
        self.pairs: Spread = pairs
        self.detach, self.average, self.scale = detach, average, scale

    def loss(self, z1: Tensor, z2: Tensor) -> Tensor:
        """The loss, with the gradient of its parts."""
        u = normalize(torch.cat([z1, z2]))
        value, gradient = self._gradient(u.detach())
        return value_with_gradient(value, 1.0, (gradient * u).sum())

    @torch.no_grad()
    def _gradient(self, u: Tensor) -> tuple[Tensor, Tensor]:
        """The loss and its gradient on unit embeddings, up to parts along them."""
        groups = 2 if self.average == "open_per_view" else 1  # of anchors that are averaged by themselves
        values, gradients = u.new_zeros(groups, 1, 1), u.new_zeros(groups, *u.shape)
        gates = u.new_zeros(len(u))
        for block in Rows.all(u, self.pairs):
            rows, partners = block.rows, block.partners
            group = groups * rows.start // len(u)
            value, gradient = values[group], gradients[group]
            gates[rows] = self.gate(block)
            push = self.weight(block)
            pull = push.sum(dim=1, keepdim=True) * self.ratio(block)[:, None]
            value += gates[rows] @ ((push * block.similarity).sum(dim=1) - pull[:, 0] * block.positive)
            if not self.gate.stills:
                push, pull = push * gates[rows, None], pull * gates[rows, None]
            gradient[rows] += push @ u + pull * (block.anchors - block.positives)
            if self.detach != "keys":
                gradient[partners] += pull * (block.positives - block.anchors)
            if self.detach == "nothing":
                gradient += push.T @ block.anchors
        if self.gate.stills:
            gradients *= gates[:, None]
        is_open = (gates > 0).to(u.dtype)
        self.record(alignment=positives(u).mean(), gate_mean=gates.mean(), active_share=is_open.mean())
        opened = is_open.view(groups, -1, 1).sum(dim=1, keepdim=True).clamp(min=1.0)
        factor = self.scale / groups / (len(u) if self.average == "all" else opened)
        return (values * factor).sum(), (gradients * factor).sum(dim=0)


def _margin(block: AnchorBatch, temperature: float, *, turn: float = 0.0) -> Tensor:
    """(B,) log Σ_j exp(s_ij/τ) − cos(θ⁺ + turn)/τ."""
    positive = torch.cos(angle(block.anchors, block.positives) + turn) if turn else block.positive
    return ((block.among(block.similarity, block.pairs) - positive[:, None]) / temperature).logsumexp(dim=1)


def _check_temperature(temperature: float) -> None:
    if not 0 < temperature < math.inf:
        raise ValueError(f"temperature must be positive, got {temperature}")


def _check_margin(margin: float) -> None:
    if not 0 < margin < math.inf:
        raise ValueError(f"margin must be positive, got {margin}")
