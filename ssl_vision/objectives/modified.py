"""The unified-gradient paper's modified losses: non-contrastive objectives with gate, weight and ratio.

Each is a choice of parts of ``UnifiedGradient`` that stops at the negatives, so the ratio in effect is about
2r. The value means as little as there. Defaults are those of the paper's code, which fine-tunes BERT. From
random weights a network can collapse with them; but for ``ModifiedMHS``, r = 0.5 has held there
(``configs/objective``).

In ``gate_mode`` ``"cross_view"`` an anchor's own terms count while its hardest negative in the other view is
less than m below its positive in similarity. ``"within_view"`` is the released code: the gap is 1 less the
largest similarity within one view, and an embedding far from all others there lies still altogether.
"""

from typing import Literal

from ssl_vision.objectives.paradigm import (
    Gate,
    HardestNegative,
    HingeGate,
    SoftmaxOverPairs,
    UnifiedGradient,
    WithinViewGate,
)

GateMode = Literal["cross_view", "within_view"]


class ModifiedMHE(UnifiedGradient):
    """Minimum hyperspherical energy, modified: gate m, log-sum at temperature τ, ratio r.

        L = Σ_i r/2 sg(W_i + W'_i) (2 − 2 s⁺_i) + Σ_views log Σ_{j>k} exp(s_jk/τ)

    without the gate, with W_i = (1/τ) Σ_j exp(s_ij/τ) / Σ_{j>k} exp(s_jk/τ) of each view. Its gradient is
    ``ModifiedVICReg``'s, times 2/τ.

    Args:
        margin: m.
        temperature: τ.
        ratio: r.
        gate_mode: which gap the gate reads.
        gather: across processes, as in ``Contrastive``.
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
        super().__init__(
            gate=_gate(gate_mode, margin),
            weight=SoftmaxOverPairs(temperature),
            ratio=ratio,
            pairs="within",
            detach="negatives",
            scale=4 / temperature,
            gather=gather,
        )


class ModifiedMHS(UnifiedGradient):
    """Maximum hyperspherical separation, modified: gate m, ratio r.

        L = mean_i r/2 sg(1/δ_i + 1/δ'_i) (2 − 2 s⁺_i) − Σ_directions mean_i δ_i

    without the gate, δ_i the distance to the nearest other image of the other view.

    Args:
        margin: m.
        ratio: r.
        gate_mode: which gap the gate reads.
        gather: across processes, as in ``Contrastive``.
    """

    def __init__(
        self,
        *,
        margin: float = 0.3,
        ratio: float = 1.75,
        gate_mode: GateMode = "cross_view",
        gather: bool = True,
    ) -> None:
        super().__init__(
            gate=_gate(gate_mode, margin),
            weight=HardestNegative("euclidean"),
            ratio=ratio,
            pairs="cross",
            detach="negatives",
            scale=2.0,
            gather=gather,
        )


class ModifiedBarlowTwins(UnifiedGradient):
    """Barlow Twins, modified: ``ModifiedVICReg`` with W_ij from the other view's similarity e′_i · e′_j.

    Args:
        margin: m.
        temperature: τ.
        ratio: r.
        gate_mode: which gap the gate reads.
        gather: across processes, as in ``Contrastive``.
    """

    def __init__(
        self,
        *,
        margin: float = 0.3,
        temperature: float = 0.05,
        ratio: float = 1.5,
        gate_mode: GateMode = "cross_view",
        gather: bool = True,
    ) -> None:
        super().__init__(
            gate=_gate(gate_mode, margin),
            weight=SoftmaxOverPairs(temperature, swap=True),
            ratio=ratio,
            pairs="within",
            detach="negatives",
            scale=2.0,
            gather=gather,
        )


class ModifiedVICReg(UnifiedGradient):
    """VICReg, modified: gate m, exponential weight at temperature τ, ratio r.

        L = Σ_views Σ_i [ Σ_{j≠i} W_ij e_i · sg(e_j) − r Σ_{j≠i} W_ij e_i · e′_i ],
        W_ij = sg[ exp(e_i · e_j/τ) / Σ_{k≠l} exp(e_k · e_l/τ) ]

    without the gate.

    Args:
        margin: m.
        temperature: τ.
        ratio: r.
        gate_mode: which gap the gate reads.
        gather: across processes, as in ``Contrastive``.
    """

    def __init__(
        self,
        *,
        margin: float = 0.3,
        temperature: float = 0.05,
        ratio: float = 1.5,
        gate_mode: GateMode = "cross_view",
        gather: bool = True,
    ) -> None:
        super().__init__(
            gate=_gate(gate_mode, margin),
            weight=SoftmaxOverPairs(temperature),
            ratio=ratio,
            pairs="within",
            detach="negatives",
            scale=2.0,
            gather=gather,
        )


def _gate(mode: GateMode, margin: float) -> Gate:
    if mode == "cross_view":
        return HingeGate("product", margin, pairs="cross")
    if mode == "within_view":
        return WithinViewGate(margin)
    raise ValueError(f"gate_mode must be 'cross_view' or 'within_view', got {mode!r}")
