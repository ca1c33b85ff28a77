"""An objective defined by its gradient: a gate, a weight for each negative, and a ratio.

The unified-gradient paper (Towards better understanding of contrastive sentence representation learning)
writes the gradient of a loss on a unit anchor h_i, up to its component along h_i, as

    ∂L_i/∂h_i = GD_i Σ_j W_ij (k_j − R_i k_i)

with negatives k_j and the positive k_i. `UnifiedGradient` trains with such a gradient. The table in
``docs/objectives.md`` lists the gates, weights and ratios of known losses.

The classes ``Modified…`` are the non-contrastive objectives with the paper's gate, weight and ratio, and with
detached negatives, so the effective ratio is about 2r, and the value of the loss does not measure progress.
The defaults are those of the paper's code, which fine-tunes BERT. With these defaults, networks with random
initial weights can collapse. With r = 0.5, as in ``configs/objective``, they did not, but with
`ModifiedMHS` they spread only a little.

With ``gate_mode="cross_view"``, an anchor contributes while the similarity of its hardest negative in the
other view is less than m below that of its positive. ``"within_view"`` follows the paper's code: the gap is 1
minus the largest similarity within one view, and an embedding far from all others there has no gradient.
"""

from typing import ClassVar, Literal

import torch
from torch import Tensor

from ssl_vision.errors import check, check_choice
from ssl_vision.objectives.gates_weights_ratios import (
    ConstantRatio,
    Gate,
    HardestNegative,
    HingeGate,
    NegativeWeight,
    Ratio,
    Rows,
    SoftmaxOverNegatives,
    SoftmaxOverPairs,
    WithinViewGate,
)
from ssl_vision.objectives.logit_margin import normalize, positives
from ssl_vision.objectives.margin_loss import value_with_gradient
from ssl_vision.objectives.objective import TwoViews
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

    Naive form:
        ```python
        n = len(z1)
        u = F.normalize(torch.cat([z1, z2]), dim=1)
        s = u @ u.T
        positive = s.diagonal(n).repeat(2)[:, None]
        same_image = torch.eye(n, dtype=torch.bool).repeat(2, 2)
        negatives = s.masked_fill(same_image, -torch.inf)
        gate = positive - negatives.amax(dim=1, keepdim=True) < 0.3  # the default gate
        weight = (negatives / 0.05).softmax(dim=1) / 0.05  # the default weight
        loss = scale * (gate * weight.detach() * (s - ratio * positive)).sum(dim=1).mean()
        ```
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


GateMode = Literal["cross_view", "within_view"]


class _Modified(UnifiedGradient):
    """Base class of the modified losses."""

    def __init__(
        self,
        weight: NegativeWeight,
        *,
        margin: float,
        ratio: float,
        gate_mode: GateMode,
        gather: bool,
        pairs: Spread = "within",
        scale: float = 2.0,
    ) -> None:
        check_choice("gate_mode", gate_mode, ("cross_view", "within_view"))
        across = gate_mode == "cross_view"
        gate: Gate = HingeGate("product", margin, pairs="cross") if across else WithinViewGate(margin)
        super().__init__(
            gate=gate, weight=weight, ratio=ratio, pairs=pairs, detach="negatives", scale=scale, gather=gather
        )


class ModifiedMHE(_Modified):
    """Minimum hyperspherical energy, modified: gate m, log-sum at temperature τ, ratio r.

        L = Σ_i r/2 sg(W_i + W'_i) (2 − 2 s⁺_i) + Σ_views log Σ_{j>k} exp(s_jk/τ)

    without the gate, with W_i = (1/τ) Σ_j exp(s_ij/τ) / Σ_{j>k} exp(s_jk/τ) of each view. Its gradient is
    that of `ModifiedVICReg` times 2/τ.

    Args:
        margin: margin m of the gate.
        temperature: temperature τ of the negative weight.
        ratio: ratio r of the positive's pull to the negatives' push.
        gate_mode: gap that the gate compares with m, ``"cross_view"`` or ``"within_view"``.
        gather: use the embeddings of all processes as one batch, as in ``Contrastive``.

    Example:
        >>> objective = ModifiedMHE(margin=1.5, ratio=0.5)
        >>> round(objective(torch.eye(4), torch.eye(4)).item(), 2)
        -40.0

    Naive form:
        ```python
        e = F.normalize(torch.stack([z1, z2]), dim=2)
        same_image = torch.eye(len(z1), dtype=torch.bool)
        positive = (e[0] * e[1]).sum(dim=1)
        hardest = (e @ e.flip(0).mT).masked_fill(same_image, -torch.inf).amax(dim=2)
        gate = (positive - hardest < margin)[:, :, None]
        similarity = e @ e.detach().mT
        logits = (similarity / temperature).masked_fill(same_image, -torch.inf)
        weight = logits.flatten(1).softmax(dim=1).view_as(logits).detach()
        loss = (gate * weight * (similarity - ratio * positive[:, None])).sum() * 2 / temperature
        ```
    """

    def __init__(
        self,
        *,
        margin: float = 0.3,
        temperature: float = 0.05,
        ratio: float = 1.75,
        gate_mode: GateMode = "cross_view",
        gather: bool = True,
    ) -> None:
        weight, scale = SoftmaxOverPairs(temperature), 4 / temperature
        super().__init__(weight, margin=margin, ratio=ratio, gate_mode=gate_mode, gather=gather, scale=scale)


class ModifiedMHS(_Modified):
    """Maximum hyperspherical separation, modified: gate m, ratio r.

        L = mean_i r/2 sg(1/δ_i + 1/δ'_i) (2 − 2 s⁺_i) − Σ_directions mean_i δ_i

    without the gate, δ_i the distance to the nearest other image of the other view.

    Args:
        margin: margin m of the gate.
        ratio: ratio r of the positive's pull to the negatives' push.
        gate_mode: gap that the gate compares with m, ``"cross_view"`` or ``"within_view"``.
        gather: use the embeddings of all processes as one batch, as in ``Contrastive``.

    Example:
        >>> ModifiedMHS(margin=1.5, ratio=0.5)(torch.eye(4), torch.eye(4))
        tensor(-0.7071)

    Naive form:
        ```python
        e = F.normalize(torch.stack([z1, z2]), dim=2)
        same_image = torch.eye(len(z1), dtype=torch.bool)
        positive = (e[0] * e[1]).sum(dim=1)
        hardest = (e @ e.flip(0).detach().mT).masked_fill(same_image, -torch.inf).amax(dim=2)
        gate = positive - hardest < margin
        weight = 1 / (2 - 2 * hardest).sqrt().detach()
        loss = (gate * weight * (hardest - ratio * positive)).sum() / len(z1)
        ```
    """

    def __init__(
        self,
        *,
        margin: float = 0.3,
        ratio: float = 1.75,
        gate_mode: GateMode = "cross_view",
        gather: bool = True,
    ) -> None:
        weight = HardestNegative("euclidean")
        super().__init__(
            weight, margin=margin, ratio=ratio, gate_mode=gate_mode, gather=gather, pairs="cross"
        )


class ModifiedVICReg(_Modified):
    """VICReg, modified: gate m, exponential weight at temperature τ, ratio r.

        L = Σ_views Σ_i [ Σ_{j≠i} W_ij e_i · sg(e_j) − r Σ_{j≠i} W_ij e_i · e′_i ],
        W_ij = sg[ exp(e_i · e_j/τ) / Σ_{k≠l} exp(e_k · e_l/τ) ]

    without the gate.

    Args:
        margin: margin m of the gate.
        temperature: temperature τ of the negative weight.
        ratio: ratio r of the positive's pull to the negatives' push.
        gate_mode: gap that the gate compares with m, ``"cross_view"`` or ``"within_view"``.
        gather: use the embeddings of all processes as one batch, as in ``Contrastive``.

    Example:
        >>> objective = ModifiedVICReg(margin=1.5, ratio=0.5)
        >>> round(objective(torch.eye(4), torch.eye(4)).item(), 2)
        -1.0

    Naive form:
        ```python
        e = F.normalize(torch.stack([z1, z2]), dim=2)
        same_image = torch.eye(len(z1), dtype=torch.bool)
        positive = (e[0] * e[1]).sum(dim=1)
        hardest = (e @ e.flip(0).mT).masked_fill(same_image, -torch.inf).amax(dim=2)
        gate = (positive - hardest < margin)[:, :, None]
        similarity = e @ e.detach().mT
        logits = (similarity / temperature).masked_fill(same_image, -torch.inf)
        weight = logits.flatten(1).softmax(dim=1).view_as(logits).detach()
        loss = (gate * weight * (similarity - ratio * positive[:, None])).sum()
        ```
    """

    swap: ClassVar[bool] = False
    """True takes the similarities in W from the other view."""

    def __init__(
        self,
        *,
        margin: float = 0.3,
        temperature: float = 0.05,
        ratio: float = 1.5,
        gate_mode: GateMode = "cross_view",
        gather: bool = True,
    ) -> None:
        weight = SoftmaxOverPairs(temperature, swap=self.swap)
        super().__init__(weight, margin=margin, ratio=ratio, gate_mode=gate_mode, gather=gather)


class ModifiedBarlowTwins(ModifiedVICReg):
    """Barlow Twins, modified: `ModifiedVICReg` with W_ij from the other view's similarity e′_i · e′_j.

    Args:
        margin: margin m of the gate.
        temperature: temperature τ of the negative weight.
        ratio: ratio r of the positive's pull to the negatives' push.
        gate_mode: gap that the gate compares with m, ``"cross_view"`` or ``"within_view"``.
        gather: use the embeddings of all processes as one batch, as in ``Contrastive``.

    Example:
        >>> objective = ModifiedBarlowTwins(margin=1.5, ratio=0.5)
        >>> round(objective(torch.eye(4), torch.eye(4)).item(), 2)
        -1.0

    Naive form:
        ```python
        e = F.normalize(torch.stack([z1, z2]), dim=2)
        same_image = torch.eye(len(z1), dtype=torch.bool)
        positive = (e[0] * e[1]).sum(dim=1)
        hardest = (e @ e.flip(0).mT).masked_fill(same_image, -torch.inf).amax(dim=2)
        gate = (positive - hardest < margin)[:, :, None]
        similarity = e @ e.detach().mT
        logits = (similarity.flip(0) / temperature).masked_fill(same_image, -torch.inf)
        weight = logits.flatten(1).softmax(dim=1).view_as(logits).detach()
        loss = (gate * weight * (similarity - ratio * positive[:, None])).sum()
        ```
    """

    swap = True
