"""Non-contrastive objectives as modified by the unified-gradient paper: with a gate, a weight and a ratio.

Each is a `UnifiedGradient` with detached negatives, so the effective ratio is about 2r, and the value of the
loss does not measure progress. The defaults are those of the paper's code, which fine-tunes BERT. With these
defaults, networks with random initial weights can collapse. With r = 0.5, as in ``configs/objective``, they
did not, except with `ModifiedMHS`.

With ``gate_mode="cross_view"``, an anchor contributes while the similarity of its hardest negative in the
other view is less than m below that of its positive. ``"within_view"`` follows the paper's code: the gap is 1
minus the largest similarity within one view, and an embedding far from all others there has no gradient.
"""

from typing import ClassVar, Literal

from ssl_vision.errors import check_choice
from ssl_vision.objectives.gates import Gate, HingeGate, WithinViewGate
from ssl_vision.objectives.negative_weights import HardestNegative, NegativeWeight, SoftmaxOverPairs
from ssl_vision.objectives.unified_gradient import UnifiedGradient
from ssl_vision.objectives.uniformity import Spread

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
    """

    swap = True
