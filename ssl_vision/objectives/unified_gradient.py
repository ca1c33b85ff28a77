"""An objective defined by its gradient: a gate, a weight for each negative, and a ratio.

The unified-gradient paper (Towards better understanding of contrastive sentence representation learning)
writes the gradient of a loss on a unit anchor h_i, up to its component along h_i, as

    ∂L_i/∂h_i = GD_i Σ_j W_ij (k_j − R_i k_i)

with negatives k_j and the positive k_i. `UnifiedGradient` trains with such a gradient. The table in
``docs/objectives.md`` lists the gates, weights and ratios of known losses.
"""

from typing import Literal

import torch
from torch import Tensor

from ssl_vision.errors import check, check_choice
from ssl_vision.objectives.anchor_batch import Rows
from ssl_vision.objectives.gates import Gate, HingeGate
from ssl_vision.objectives.logit_margin import normalize, positives
from ssl_vision.objectives.margin_loss import value_with_gradient
from ssl_vision.objectives.negative_weights import NegativeWeight, SoftmaxOverNegatives
from ssl_vision.objectives.ratios import ConstantRatio, Ratio
from ssl_vision.objectives.two_views import TwoViews
from ssl_vision.objectives.uniformity import SPREADS, Spread


class UnifiedGradient(TwoViews):
    """Objective whose gradient consists of a gate, a weight for each negative, and a ratio.

        L = scale · mean_i sg(GD_i) Σ_j sg(W_ij) (s_ij − sg(R_i) s⁺_i)

    With ``detach="nothing"``, the gradient is that of the loss whose gate, weight and ratio are chosen. For
    example, a ``SigmoidGate`` and ``SoftmaxOverNegatives`` at one temperature give InfoNCE, and a
    ``HingeGate`` and ``HardestNegative`` give MPT. The value is not a measure of progress: it may rise while
    training succeeds.

    The paper's code calls this the simulated gradient. Its gate, weight and ratio are the defaults. With
    ``pairs="cross"``, ``detach="negatives"``, ``average="open_per_view"`` and ``scale=0.1 / N``, where N is
    the number of images in the batch, value and gradient are those of the code. At ``scale=1``, they are N/2
    · 1/τ times as large, because the code averages over all N keys of an open anchor, adds the views, and has
    no 1/τ. If all gates of a view are shut, the code returns NaN; here, that view contributes 0.

    With ``detach="negatives"``, the pull of a positive counts twice, because s⁺ moves both views, and the
    push of a negative counts once. The effective ratio is then about 2R.

    Statistics: ``gate_mean``, the mean of GD, and ``active_share``, the share of anchors with GD > 0.

    Args:
        gate: gate GD; the default is ``HingeGate("product", 0.3)``.
        weight: negative weight W; the default is ``SoftmaxOverNegatives(0.05)``.
        ratio: ratio R; a number gives ``ConstantRatio``.
        pairs: selection of the negatives: ``"both"`` or ``"cross"`` as in ``Contrastive``, or ``"within"``
            the anchor's own view.
        detach: keys without a gradient: ``"nothing"``, ``"negatives"``, or ``"keys"`` for negatives and
            positives, which is exactly the formula of the paper.
        average: anchors over which the loss is averaged: ``"all"``; those with an ``"open"`` gate (GD > 0),
            so that shut gates do not shorten the step; or ``"open_per_view"``, those with an open gate in
            each view, followed by the mean over the two views.
        scale: factor on the loss.
        gather: use the embeddings of all processes as one batch, as in ``Contrastive``.

    Raises:
        ValueError: ``pairs``, ``detach`` or ``average`` is unknown, the scale is not positive, or the ratio
            is negative.

    Example:
        >>> z1, z2 = torch.eye(4), torch.eye(4).roll(1, 0)
        >>> objective = UnifiedGradient(gate=OpenGate(), weight=SoftmaxOverNegatives(0.1), ratio=1.0)
        >>> value = objective(z1, z2)  # has the gradient of DCL(temperature=0.1)
        >>> objective.statistics()["active_share"]
        tensor(1.)
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
        check_choice("pairs", pairs, SPREADS)
        check_choice("detach", detach, ("nothing", "negatives", "keys"))
        check_choice("average", average, ("all", "open", "open_per_view"))
        check("scale", scale, above=0)
        self.gate = HingeGate("product", 0.3) if gate is None else gate
        self.weight = SoftmaxOverNegatives(0.05) if weight is None else weight
        self.ratio = ratio if isinstance(ratio, Ratio) else ConstantRatio(ratio)
        self.pairs: Spread = pairs
        self.detach, self.average, self.scale = detach, average, scale

    def loss(self, z1: Tensor, z2: Tensor) -> Tensor:
        """Compute the loss, with the gradient of its parts."""
        u = normalize(torch.cat([z1, z2]))
        value, gradient = self._gradient(u.detach())
        return value_with_gradient(value, 1.0, (gradient * u).sum())

    @torch.no_grad()
    def _gradient(self, u: Tensor) -> tuple[Tensor, Tensor]:
        """Compute the loss and its gradient on unit embeddings, up to components along them."""
        groups = 2 if self.average == "open_per_view" else 1  # groups of anchors that are averaged separately
        values, gradients = u.new_zeros(groups, 1, 1), u.new_zeros(groups, *u.shape)
        gates = u.new_zeros(len(u))
        for batch in Rows.all(u, self.pairs):
            rows, partners = batch.rows, batch.partners
            group = groups * rows.start // len(u)
            value, gradient = values[group], gradients[group]
            gates[rows] = self.gate(batch)
            push = self.weight(batch)
            pull = push.sum(dim=1, keepdim=True) * self.ratio(batch)[:, None]
            value += gates[rows] @ ((push * batch.similarity).sum(dim=1) - pull[:, 0] * batch.positive)
            if not self.gate.stills:
                push, pull = push * gates[rows, None], pull * gates[rows, None]
            gradient[rows] += push @ u + pull * (batch.anchors - batch.positives)
            if self.detach != "keys":
                gradient[partners] += pull * (batch.positives - batch.anchors)
            if self.detach == "nothing":
                gradient += push.T @ batch.anchors
        if self.gate.stills:
            gradients *= gates[:, None]
        is_open = (gates > 0).to(u.dtype)
        self.record(alignment=positives(u).mean(), gate_mean=gates.mean(), active_share=is_open.mean())
        opened = is_open.view(groups, -1, 1).sum(dim=1, keepdim=True).clamp(min=1.0)
        factor = self.scale / groups / (len(u) if self.average == "all" else opened)
        return (values * factor).sum(), (gradients * factor).sum(dim=0)
