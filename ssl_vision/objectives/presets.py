"""Published objectives of the InfoNCE family, each a margin loss with a temperature rule."""

from typing import ClassVar

from ssl_vision.objectives.contrastive import Contrastive, PairSet
from ssl_vision.objectives.margin_loss import (
    AtTemperature,
    Clipped,
    Decoupled,
    Flat,
    MarginLoss,
    Reweighted,
    ReweightedByAlignment,
    Softmax,
    VonMisesFisher,
)
from ssl_vision.objectives.temperature import AlignmentExponential, AlignmentLinear, TemperatureRule


class _Preset(Contrastive):
    """An objective whose margin loss is fixed by its class."""

    def __init__(
        self, *, temperature: float | TemperatureRule = 0.1, pairs: PairSet | None = None, gather: bool = True
    ) -> None:
        super().__init__(temperature=temperature, pairs=pairs, gather=gather)


class InfoNCE(_Preset):
    r"""InfoNCE, also NT-Xent: softplus(d) (Chen et al. 2020, A Simple Framework; MACL paper, Eq. 1).

    The loss of an anchor with positive similarity $s^+$ and similarities $s_j$ to its negatives is

    $$-\log \frac{e^{s^+/\tau}}{e^{s^+/\tau} + \sum_j e^{s_j/\tau}} = \log(1 + e^d), \qquad
    d = \log \sum_j e^{s_j/\tau} - s^+/\tau.$$

    Similarities are cosines, and the loss of the batch is the mean over its anchors. Embeddings have shape
    (N, D) per view. With ``pairs="both"``, it equals lightly's ``NTXentLoss(temperature=τ)``.

    Args:
        temperature: temperature τ, a number or a temperature rule.
        pairs: selection of the negatives, as in ``Contrastive``.
        gather: use the embeddings of all processes as one batch, as in ``Contrastive``.

    Raises:
        ValueError: as `Contrastive`.

    Example:
        >>> z1, z2 = torch.eye(4), torch.eye(4)  # the two views of an image agree, images are orthogonal
        >>> InfoNCE(temperature=1.0)(z1, z2)
        tensor(1.1654)

    Naive form:
        ```python
        n = len(z1)
        u = F.normalize(torch.cat([z1, z2]), dim=1)
        logits = (u @ u.T / temperature).fill_diagonal_(-torch.inf)
        loss = F.cross_entropy(logits, torch.arange(2 * n).roll(n))  # the other view is the class
        ```
    """


class DCL(_Preset):
    """Decoupled contrastive learning: d = log Σ_j exp(s_j/τ) − s⁺/τ (Yeh et al. 2021).

    Unlike in InfoNCE, the denominator leaves out the positive, so every anchor has weight 1.

    Args:
        temperature: temperature τ, a number or a temperature rule.
        pairs: selection of the negatives, as in ``Contrastive``.
        gather: use the embeddings of all processes as one batch, as in ``Contrastive``.

    Raises:
        ValueError: as `Contrastive`.

    Example:
        >>> z1, z2 = torch.eye(4), torch.eye(4)
        >>> DCL(temperature=1.0)(z1, z2)
        tensor(0.7918)

    Naive form:
        ```python
        n = len(z1)
        u = F.normalize(torch.cat([z1, z2]), dim=1)
        logits = u @ u.T / temperature
        positive = logits.diagonal(n).repeat(2)
        same_image = torch.eye(n, dtype=torch.bool).repeat(2, 2)
        d = logits.masked_fill(same_image, -torch.inf).logsumexp(dim=1) - positive
        loss = d.mean()
        ```
    """

    default_margin_loss = Decoupled


class DCLPlus(_Preset):
    """DCL⁺, clipped decoupled loss: max(0, d) (gradient-dissipation paper).

    Anchors whose positive outweighs their negatives, d < 0, have no gradient.

    Args:
        temperature: temperature τ, a number or a temperature rule.
        pairs: selection of the negatives, as in ``Contrastive``.
        gather: use the embeddings of all processes as one batch, as in ``Contrastive``.

    Raises:
        ValueError: as `Contrastive`.

    Example:
        >>> z1, z2 = torch.eye(4), torch.eye(4)
        >>> DCLPlus(temperature=0.1)(z1, z2)
        tensor(0.)

    Naive form:
        ```python
        n = len(z1)
        u = F.normalize(torch.cat([z1, z2]), dim=1)
        logits = u @ u.T / temperature
        positive = logits.diagonal(n).repeat(2)
        same_image = torch.eye(n, dtype=torch.bool).repeat(2, 2)
        d = logits.masked_fill(same_image, -torch.inf).logsumexp(dim=1) - positive
        loss = F.relu(d).mean()
        ```
    """

    default_margin_loss = Clipped


class FlatNCE(_Preset):
    """FlatNCE: exp(d − sg d), where sg stops the gradient (Chen et al. 2021).

    Its value is 1, and its gradient ∇d, as for DCL.

    Args:
        temperature: temperature τ, a number or a temperature rule.
        pairs: selection of the negatives, as in ``Contrastive``.
        gather: use the embeddings of all processes as one batch, as in ``Contrastive``.

    Raises:
        ValueError: as `Contrastive`.

    Example:
        >>> z1, z2 = torch.eye(4), torch.eye(4)
        >>> FlatNCE(temperature=0.1)(z1, z2)
        tensor(1.)

    Naive form:
        ```python
        n = len(z1)
        u = F.normalize(torch.cat([z1, z2]), dim=1)
        logits = u @ u.T / temperature
        positive = logits.diagonal(n).repeat(2)
        same_image = torch.eye(n, dtype=torch.bool).repeat(2, 2)
        d = logits.masked_fill(same_image, -torch.inf).logsumexp(dim=1) - positive
        loss = (d - d.detach()).exp().mean()
        ```
    """

    default_margin_loss = Flat


class DCLW(Contrastive):
    """DCL with a von Mises–Fisher weight on the positive: d + (1 − sg w) s⁺/τ (Yeh et al. 2021).

    The weight of a positive is w = 2 − N softmax(s⁺/σ), over the N anchors of its view.

    Args:
        temperature: temperature τ, a number or a temperature rule.
        sigma: concentration σ > 0 of the weight; σ → ∞ gives DCL.
        pairs: selection of the negatives, as in ``Contrastive``.
        gather: use the embeddings of all processes as one batch, as in ``Contrastive``.

    Raises:
        ValueError: sigma is not positive; otherwise as `Contrastive`.

    Example:
        >>> z1, z2 = torch.eye(4), torch.eye(4)  # all positives are alike, hence the loss of DCL
        >>> DCLW(temperature=1.0)(z1, z2)
        tensor(0.7918)

    Naive form:
        ```python
        n = len(z1)
        u = F.normalize(torch.cat([z1, z2]), dim=1)
        logits = u @ u.T / temperature
        positive = logits.diagonal(n).repeat(2)
        same_image = torch.eye(n, dtype=torch.bool).repeat(2, 2)
        d = logits.masked_fill(same_image, -torch.inf).logsumexp(dim=1) - positive
        w = 2 - 2 * n * (positive * temperature / sigma).softmax(dim=0).detach()
        loss = (d + (1 - w) * positive).mean()
        ```
    """

    def __init__(
        self,
        *,
        temperature: float | TemperatureRule = 0.1,
        sigma: float = 0.5,
        pairs: PairSet | None = None,
        gather: bool = True,
    ) -> None:
        margin_loss = VonMisesFisher(sigma)
        super().__init__(temperature=temperature, margin_loss=margin_loss, pairs=pairs, gather=gather)


class DualTemperature(Contrastive):
    """Dual temperature: sg(W(τ_β) / W(τ_α)) · softplus(d(τ_α)), W(τ) = sigmoid(d(τ)) (Zhang et al. 2022).

    Its gradient is W(τ_β) ∇d(τ_α): one temperature weights the negatives, the other the anchors.

    Args:
        temperature: temperature τ_α, which weights the negatives of one anchor; a number or a rule.
        outer_temperature: temperature τ_β, which weights the anchors; τ_β = τ_α gives InfoNCE.
        pairs: selection of the negatives, as in ``Contrastive``.
        gather: use the embeddings of all processes as one batch, as in ``Contrastive``.

    Raises:
        ValueError: outer_temperature is not positive; otherwise as `Contrastive`.

    Example:
        >>> z1, z2 = torch.eye(4), torch.eye(4)
        >>> DualTemperature(temperature=0.1, outer_temperature=1.0)(z1, z2)
        tensor(0.6883)

    Naive form:
        ```python
        n = len(z1)
        u = F.normalize(torch.cat([z1, z2]), dim=1)
        same_image = torch.eye(n, dtype=torch.bool).repeat(2, 2)

        def d(tau):
            logits = u @ u.T / tau
            return logits.masked_fill(same_image, -torch.inf).logsumexp(dim=1) - logits.diagonal(n).repeat(2)

        weight = d(outer_temperature).sigmoid() / d(temperature).sigmoid()
        loss = (weight.detach() * F.softplus(d(temperature))).mean()
        ```
    """

    def __init__(
        self,
        *,
        temperature: float | TemperatureRule = 0.1,
        outer_temperature: float = 1.0,
        pairs: PairSet | None = None,
        gather: bool = True,
    ) -> None:
        margin_loss = AtTemperature(outer_temperature)
        super().__init__(temperature=temperature, margin_loss=margin_loss, pairs=pairs, gather=gather)


class MACL(Contrastive):
    """MACL-a: softplus(d) / sg W at τ_a = τ₀ α^Ā (MACL paper, Eq. 8 and 14; Huang et al. 2023).

    W = sigmoid(d) is the weight of an anchor in InfoNCE, sg stops the gradient, and Ā is the alignment of the
    batch, the mean cosine of its positives. With α = 1, the gradient is that of DCL.

    Args:
        temperature: base temperature τ₀.
        alpha: base α ≥ 1 of the exponential rule; 1 keeps τ at τ₀.
        pairs: selection of the negatives, as in ``Contrastive``.
        gather: use the embeddings of all processes as one batch, as in ``Contrastive``.

    Raises:
        ValueError: alpha is below 1; otherwise as `Contrastive`.

    Example:
        >>> z1, z2 = torch.eye(4), torch.eye(4)
        >>> objective = MACL(temperature=0.1, alpha=2.0)
        >>> objective(z1, z2)
        tensor(1.0199)
        >>> objective.statistics()["temperature"]  # τ₀ α at full alignment
        tensor(0.2000)

    Naive form:
        ```python
        n = len(z1)
        u = F.normalize(torch.cat([z1, z2]), dim=1)
        alignment = (u[:n] * u[n:]).sum(dim=1).mean().detach()
        tau = temperature * alpha**alignment
        logits = u @ u.T / tau
        positive = logits.diagonal(n).repeat(2)
        same_image = torch.eye(n, dtype=torch.bool).repeat(2, 2)
        d = logits.masked_fill(same_image, -torch.inf).logsumexp(dim=1) - positive
        loss = (F.softplus(d) / d.sigmoid().detach()).mean()
        ```
    """

    default_margin_loss: ClassVar[type[MarginLoss]] = Reweighted

    def __init__(
        self,
        *,
        temperature: float = 0.1,
        alpha: float = 2.0,
        pairs: PairSet | None = None,
        gather: bool = True,
    ) -> None:
        super().__init__(temperature=AlignmentExponential(temperature, alpha), pairs=pairs, gather=gather)


class MACLc(MACL):
    """MACL-c, called MACL-w in the paper's text: sg((2 − s⁺) / W) · softplus(d) at τ_a (MACL paper, Eq. 15).

    Args:
        temperature: base temperature τ₀.
        alpha: base α ≥ 1 of the exponential rule; 1 keeps τ at τ₀.
        pairs: selection of the negatives, as in ``Contrastive``.
        gather: use the embeddings of all processes as one batch, as in ``Contrastive``.

    Raises:
        ValueError: alpha is below 1; otherwise as `Contrastive`.

    Example:
        >>> z1, z2 = torch.eye(4), torch.eye(4)  # s⁺ = 1, hence the loss of MACL
        >>> MACLc(temperature=0.1, alpha=2.0)(z1, z2)
        tensor(1.0199)

    Naive form:
        ```python
        n = len(z1)
        u = F.normalize(torch.cat([z1, z2]), dim=1)
        alignment = (u[:n] * u[n:]).sum(dim=1).mean().detach()
        tau = temperature * alpha**alignment
        logits = u @ u.T / tau
        positive = logits.diagonal(n).repeat(2)
        same_image = torch.eye(n, dtype=torch.bool).repeat(2, 2)
        d = logits.masked_fill(same_image, -torch.inf).logsumexp(dim=1) - positive
        loss = (((2 - tau * positive) / d.sigmoid()).detach() * F.softplus(d)).mean()
        ```
    """

    default_margin_loss = ReweightedByAlignment


class AdaptiveInfoNCE(MACL):
    """MACL without its reweighting: InfoNCE at τ_a = τ₀ α^Ā (MACL paper, Eq. 10).

    Args:
        temperature: base temperature τ₀.
        alpha: base α ≥ 1 of the exponential rule; 1 keeps τ at τ₀.
        pairs: selection of the negatives, as in ``Contrastive``.
        gather: use the embeddings of all processes as one batch, as in ``Contrastive``.

    Raises:
        ValueError: alpha is below 1; otherwise as `Contrastive`.

    Example:
        >>> z1, z2 = torch.eye(4), torch.eye(4)
        >>> AdaptiveInfoNCE(temperature=0.5, alpha=2.0)(z1, z2) == InfoNCE(temperature=1.0)(z1, z2)
        tensor(True)

    Naive form:
        ```python
        n = len(z1)
        u = F.normalize(torch.cat([z1, z2]), dim=1)
        alignment = (u[:n] * u[n:]).sum(dim=1).mean().detach()
        logits = (u @ u.T / (temperature * alpha**alignment)).fill_diagonal_(-torch.inf)
        loss = F.cross_entropy(logits, torch.arange(2 * n).roll(n))  # the other view is the class
        ```
    """

    default_margin_loss = Softmax


class MACLb(Contrastive):
    """MACL-b: softplus(d) / sg W at τ_b = τ₀ (1 + β Ā) (MACL paper, Eq. 9 and 14).

    Args:
        temperature: base temperature τ₀.
        beta: slope β of the temperature in [0, 1]; the paper uses 0.5, and its code 1 by default.
        minimum: lower bound of τ_b, which the paper and its code do not have.
        pairs: selection of the negatives, as in ``Contrastive``.
        gather: use the embeddings of all processes as one batch, as in ``Contrastive``.

    Raises:
        ValueError: beta or minimum is out of range; otherwise as `Contrastive`.

    Example:
        >>> z1, z2 = torch.eye(4), torch.eye(4)
        >>> objective = MACLb(temperature=0.1, beta=0.5)
        >>> objective(z1, z2)
        tensor(1.0038)
        >>> objective.statistics()["temperature"]  # τ₀ (1 + β) at full alignment
        tensor(0.1500)

    Naive form:
        ```python
        n = len(z1)
        u = F.normalize(torch.cat([z1, z2]), dim=1)
        alignment = (u[:n] * u[n:]).sum(dim=1).mean().detach()
        tau = (temperature * (1 + beta * alignment)).clamp(min=minimum)
        logits = u @ u.T / tau
        positive = logits.diagonal(n).repeat(2)
        same_image = torch.eye(n, dtype=torch.bool).repeat(2, 2)
        d = logits.masked_fill(same_image, -torch.inf).logsumexp(dim=1) - positive
        loss = (F.softplus(d) / d.sigmoid().detach()).mean()
        ```
    """

    default_margin_loss = Reweighted

    def __init__(
        self,
        *,
        temperature: float = 0.1,
        beta: float = 0.5,
        minimum: float = 0.01,
        pairs: PairSet | None = None,
        gather: bool = True,
    ) -> None:
        rule = AlignmentLinear(temperature, beta, minimum=minimum)
        super().__init__(temperature=rule, pairs=pairs, gather=gather)


class MACLICML(Contrastive):
    """MACL as released with its ICML 2023 version: softplus(d) / sg W at τ₀ (1 + β (Ā − A₀)).

    Args:
        temperature: base temperature τ₀.
        beta: slope β of the temperature in [0, 1]; the release calls it α.
        threshold: alignment A₀ in [−1, 1] at which τ is τ₀; 0 gives MACL-b.
        minimum: lower bound of τ, which the release does not have.
        pairs: selection of the negatives, as in ``Contrastive``.
        gather: use the embeddings of all processes as one batch, as in ``Contrastive``.

    Raises:
        ValueError: beta, threshold or minimum is out of range; otherwise as `Contrastive`.

    Example:
        >>> z1, z2 = torch.eye(4), torch.eye(4)
        >>> objective = MACLICML(temperature=0.1, beta=0.5, threshold=1.0)
        >>> objective(z1, z2)
        tensor(1.0001)
        >>> objective.statistics()["temperature"]  # τ₀ where the alignment is A₀
        tensor(0.1000)

    Naive form:
        ```python
        n = len(z1)
        u = F.normalize(torch.cat([z1, z2]), dim=1)
        alignment = (u[:n] * u[n:]).sum(dim=1).mean().detach()
        tau = (temperature * (1 + beta * (alignment - threshold))).clamp(min=minimum)
        logits = u @ u.T / tau
        positive = logits.diagonal(n).repeat(2)
        same_image = torch.eye(n, dtype=torch.bool).repeat(2, 2)
        d = logits.masked_fill(same_image, -torch.inf).logsumexp(dim=1) - positive
        loss = (F.softplus(d) / d.sigmoid().detach()).mean()
        ```
    """

    default_margin_loss = Reweighted

    def __init__(
        self,
        *,
        temperature: float = 0.1,
        beta: float = 0.5,
        threshold: float = 0.0,
        minimum: float = 0.01,
        pairs: PairSet | None = None,
        gather: bool = True,
    ) -> None:
        rule = AlignmentLinear(temperature, beta, threshold, minimum)
        super().__init__(temperature=rule, pairs=pairs, gather=gather)
