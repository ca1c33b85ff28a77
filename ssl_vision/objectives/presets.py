"""The published objectives, by name: each a choice of temperature rule and weight."""

from ssl_vision.objectives.contrastive import Contrastive, PairSet
from ssl_vision.objectives.margin_loss import (
    AtTemperature,
    Clipped,
    Decoupled,
    Flat,
    Reweighted,
    ReweightedByAlignment,
    Softmax,
    VonMisesFisher,
)
from ssl_vision.objectives.temperature import AlignmentExponential, AlignmentLinear, TemperatureRule


class InfoNCE(Contrastive):
    """InfoNCE, also NT-Xent: softplus(d) (MACL paper, Eq. 1; Chen et al. 2020, A Simple Framework)."""

    def __init__(
        self, *, temperature: float | TemperatureRule = 0.1, pairs: PairSet = "both", gather: bool = True
    ) -> None:
        super().__init__(temperature=temperature, weight=Softmax(), pairs=pairs, gather=gather)


class DCL(Contrastive):
    """Decoupled contrastive learning: d (Yeh et al. 2021)."""

    def __init__(
        self, *, temperature: float | TemperatureRule = 0.1, pairs: PairSet = "both", gather: bool = True
    ) -> None:
        super().__init__(temperature=temperature, weight=Decoupled(), pairs=pairs, gather=gather)


class DCLW(Contrastive):
    """DCL with a von Mises–Fisher weight on the positive (Yeh et al. 2021).

    Args:
        temperature: τ.
        sigma: concentration σ of the weight; σ → ∞ gives DCL.
        pairs: negative set, as in ``Contrastive``.
        gather: across processes, as in ``Contrastive``.
    """

    def __init__(
        self,
        *,
        temperature: float | TemperatureRule = 0.1,
        sigma: float = 0.5,
        pairs: PairSet = "both",
        gather: bool = True,
    ) -> None:
        super().__init__(temperature=temperature, weight=VonMisesFisher(sigma), pairs=pairs, gather=gather)


class DCLPlus(Contrastive):
    """DCL⁺, clipped decoupled loss: max(0, d), zero gradient for anchors with d < 0."""

    def __init__(
        self, *, temperature: float | TemperatureRule = 0.1, pairs: PairSet = "both", gather: bool = True
    ) -> None:
        super().__init__(temperature=temperature, weight=Clipped(), pairs=pairs, gather=gather)


class FlatNCE(Contrastive):
    """FlatNCE: exp(d − sg d), value 1, gradient ∇d (Chen et al. 2021)."""

    def __init__(
        self, *, temperature: float | TemperatureRule = 0.1, pairs: PairSet = "both", gather: bool = True
    ) -> None:
        super().__init__(temperature=temperature, weight=Flat(), pairs=pairs, gather=gather)


class DualTemperature(Contrastive):
    """Dual temperature: sg(W(τ_β) / W(τ_α)) · softplus(d(τ_α)) (Zhang et al. 2022).

    Args:
        temperature: τ_α, weighs the negatives of one anchor.
        outer_temperature: τ_β, weighs the anchors; equal to τ_α it gives InfoNCE.
        pairs: negative set, as in ``Contrastive``.
        gather: across processes, as in ``Contrastive``.
    """

    def __init__(
        self,
        *,
        temperature: float | TemperatureRule = 0.1,
        outer_temperature: float = 1.0,
        pairs: PairSet = "both",
        gather: bool = True,
    ) -> None:
        super().__init__(
            temperature=temperature, weight=AtTemperature(outer_temperature), pairs=pairs, gather=gather
        )


class MACL(Contrastive):
    """MACL-a: softplus(d) / sg W at τ_a = τ₀ α^Ā (MACL paper, Eq. 8 and 14). α = 1 has DCL's gradient.

    Args:
        temperature: τ₀.
        alpha: α ≥ 1.
        pairs: negative set, as in ``Contrastive``.
        gather: across processes, as in ``Contrastive``.
    """

    def __init__(
        self, *, temperature: float = 0.1, alpha: float = 2.0, pairs: PairSet = "both", gather: bool = True
    ) -> None:
        super().__init__(
            temperature=AlignmentExponential(temperature, alpha),
            weight=Reweighted(),
            pairs=pairs,
            gather=gather,
        )


class MACLb(Contrastive):
    """MACL-b: softplus(d) / sg W at τ_b = τ₀ (1 + β Ā) (MACL paper, Eq. 9 and 14).

    Args:
        temperature: τ₀.
        beta: β in [0, 1]; the paper has 0.5, the default of its code is 1.
        minimum: lower bound of τ_b, which neither the paper nor its code has.
        pairs: negative set, as in ``Contrastive``.
        gather: across processes, as in ``Contrastive``.
    """

    def __init__(
        self,
        *,
        temperature: float = 0.1,
        beta: float = 0.5,
        minimum: float = 0.01,
        pairs: PairSet = "both",
        gather: bool = True,
    ) -> None:
        super().__init__(
            temperature=AlignmentLinear(temperature, beta, minimum=minimum),
            weight=Reweighted(),
            pairs=pairs,
            gather=gather,
        )


class MACLc(Contrastive):
    """MACL-c, in the paper's text MACL-w: sg((2 − s⁺) / W) · softplus(d) at τ_a (MACL paper, Eq. 15).

    Args:
        temperature: τ₀.
        alpha: α ≥ 1.
        pairs: negative set, as in ``Contrastive``.
        gather: across processes, as in ``Contrastive``.
    """

    def __init__(
        self, *, temperature: float = 0.1, alpha: float = 2.0, pairs: PairSet = "both", gather: bool = True
    ) -> None:
        super().__init__(
            temperature=AlignmentExponential(temperature, alpha),
            weight=ReweightedByAlignment(),
            pairs=pairs,
            gather=gather,
        )


class MACLICML(Contrastive):
    """MACL as released with its ICML 2023 version: softplus(d) / sg W at τ₀ (1 + β (Ā − A₀)).

    Args:
        temperature: τ₀.
        beta: β in [0, 1]; the release calls it α.
        threshold: A₀ in [−1, 1]; 0 gives MACL-b.
        minimum: lower bound of τ, which the release does not have.
        pairs: negative set, as in ``Contrastive``.
        gather: across processes, as in ``Contrastive``.
    """

    def __init__(
        self,
        *,
        temperature: float = 0.1,
        beta: float = 0.5,
        threshold: float = 0.0,
        minimum: float = 0.01,
        pairs: PairSet = "both",
        gather: bool = True,
    ) -> None:
        super().__init__(
            temperature=AlignmentLinear(temperature, beta, threshold, minimum),
            weight=Reweighted(),
            pairs=pairs,
            gather=gather,
        )


class AdaptiveInfoNCE(Contrastive):
    """MACL without its reweighting: InfoNCE at τ_a = τ₀ α^Ā (MACL paper, Eq. 10).

    Args:
        temperature: τ₀.
        alpha: α ≥ 1.
        pairs: negative set, as in ``Contrastive``.
        gather: across processes, as in ``Contrastive``.
    """

    def __init__(
        self, *, temperature: float = 0.1, alpha: float = 2.0, pairs: PairSet = "both", gather: bool = True
    ) -> None:
        super().__init__(
            temperature=AlignmentExponential(temperature, alpha), weight=Softmax(), pairs=pairs, gather=gather
        )
