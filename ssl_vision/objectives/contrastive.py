"""The contrastive objective, a temperature rule with a margin loss, and the published ones of this form."""

from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Literal, get_args

import torch
from torch import Tensor

from ssl_vision.errors import check, check_choice
from ssl_vision.objectives.gather import gather_batch
from ssl_vision.objectives.logit_margin import autocast_disabled, normalize, positives, unit_logit_margin
from ssl_vision.objectives.margin_loss import (
    Anchors,
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
from ssl_vision.objectives.objective import Objective
from ssl_vision.objectives.queue import queue_logit_margin
from ssl_vision.objectives.temperature import (
    SMALLEST,
    AlignmentExponential,
    AlignmentLinear,
    TemperatureRule,
    as_rule,
)

PairSet = Literal["both", "cross", "keys", "queue"]
"""Sets of anchors and negatives; `Contrastive` describes them."""


class Contrastive(Objective):
    """Contrastive objective: the mean margin loss over the anchors of a batch.

        L = 1/A Σ_i ℓ(d_i(τ)),   d_i(τ) = log Σ_{j ∈ Neg(i)} exp(s_ij / τ) − s⁺_i / τ

    where d is the logit margin (see `logit_margin`) and A the number of anchors. Call the objective with the
    embeddings of both views. After a call, ``statistics()`` describes it.

    Args:
        temperature: temperature τ, a number or a rule.
        margin_loss: margin loss ℓ; the default is `Softmax`, which gives InfoNCE.
        pairs: selection of anchors and negatives: ``"both"``, ``"cross"``, ``"keys"`` or ``"queue"``. None
            leaves it to the method, and is ``"both"`` without one. With ``"both"``, all 2N embeddings are
            anchors, and the 2N − 2 embeddings of other images are negatives (SimCLR). With ``"cross"``, the
            negatives are the N − 1 of the other view (SimCo). With ``"keys"`` and ``"queue"``, only the N
            embeddings of view 1 are anchors. Those of view 2 are keys without a gradient, and the anchor's
            own key is its positive. The negatives are the other N − 1 keys with ``"keys"`` (SimMoCo, MoCo
            v3), and only ``negatives`` with ``"queue"`` (MoCo). For the symmetric loss, call the objective
            again with the views exchanged.
        gather: use the embeddings of all processes of a process group as one batch. If False, each process
            uses only its own negatives, so that the objective depends on the number of processes.

    Raises:
        ValueError: the temperature is or could become zero or negative, or ``pairs`` is unknown.

    Example:
        >>> z1, z2, queue = (torch.eye(4)[rows] for rows in ([0, 1], [0, 1], [2, 3]))
        >>> Contrastive(temperature=1.0)(z1, z2)
        tensor(0.5514)
        >>> Contrastive(temperature=1.0, pairs="queue")(z1, z2, negatives=queue)
        tensor(0.5514)
    """

    reads_epoch = False
    has_margin_loss = True
    supported_pairs: ClassVar[tuple[PairSet, ...]] = get_args(PairSet)
    default_margin_loss: ClassVar[type[MarginLoss]] = Softmax

    def __init__(
        self,
        *,
        temperature: float | TemperatureRule = 0.1,
        margin_loss: MarginLoss | None = None,
        pairs: PairSet | None = None,
        gather: bool = True,
    ) -> None:
        super().__init__()
        if pairs is not None:
            check_choice("pairs", pairs, self.supported_pairs)
        self.temperature = as_rule(temperature)
        self.reads_epoch = self.reads_epoch or self.temperature.reads_epoch
        self.margin_loss = self.default_margin_loss() if margin_loss is None else margin_loss
        self.gather = gather
        self._given_pairs = pairs
        self.use_pairs(self.supported_pairs)
        self._stats: tuple[Tensor, Tensor, Tensor] | None = None

    def use_pairs(self, accepted: Sequence[str]) -> None:
        """Compare the first accepted pairs that the objective supports, unless the constructor set them."""
        supported = sorted(set(self.supported_pairs).intersection(accepted), key=accepted.index)
        self.pairs: PairSet = self._given_pairs or (supported or self.supported_pairs)[0]
        check_choice("pairs", self.pairs, accepted)
        self.required_inputs = ("negatives",) if self.pairs == "queue" else type(self).required_inputs

    def set_epoch(self, epoch: int) -> None:
        """Set the current epoch, counted from 0, of the temperature rule."""
        self.temperature.set_epoch(epoch)

    def forward(self, z1: Tensor, z2: Tensor, *, negatives: Tensor | None = None) -> Tensor:
        """Compute the loss of a batch.

        On several processes, negatives, alignment and value are those of one process with the whole batch,
        and so is the gradient after DistributedDataParallel has averaged it.

        Args:
            z1: embeddings of view 1 at any scale, shape (N, D), with at least 2 images over all processes.
            z2: embeddings of view 2, shape (N, D).
            negatives: embeddings of a queue at any scale, shape (K, D), the same on all processes. They are
                required for ``pairs="queue"`` and not allowed otherwise. They have no gradient.

        Returns:
            A scalar in float32 (float64 for float64 input).

        Raises:
            ValueError: an argument has an invalid shape or dtype; the message names it.
        """
        if negatives is not None and self.pairs != "queue":
            raise ValueError(f"negatives need pairs='queue', not {self.pairs!r}")
        if self.pairs == "keys" or self.pairs == "queue":
            return self._loss_with_keys(z1, z2, negatives)
        pairs = self.pairs
        u = self._units(z1, z2)
        positive = positives(u)
        u1, u2 = u.chunk(2)
        shift = self._shift(u1, u2, positive)
        tau = self.temperature(positive.detach())

        def logit_margin_at(temperature: Tensor | float) -> Tensor:
            return unit_logit_margin(u, shift, temperature, pairs=pairs)

        return self._losses(logit_margin_at, positive.repeat(2), tau).mean()

    def _loss_with_keys(self, z1: Tensor, z2: Tensor, negatives: Tensor | None) -> Tensor:
        """Compute the loss of the anchors of view 1 with negatives from a queue or the batch."""
        z1, z2 = gather_batch(z1, z2.detach(), gathers=self.gather)
        u1, u2 = normalize(z1), normalize(z2)
        own_key = self.pairs == "keys"
        keys = u2 if own_key else normalize(_checked_negatives(negatives, z1.shape[1])).to(u1)
        with autocast_disabled(u1.device):
            positive = (u1 * u2).sum(dim=-1)
            shift = self._shift(u1, u2, positive)
            tau = self.temperature(positive.detach())

            def logit_margin_at(temperature: Tensor | float) -> Tensor:
                if not isinstance(temperature, Tensor):
                    temperature = u1.new_full((), temperature)  # on the device, without a copy to it
                wide = temperature.to(u1).expand(len(u1))
                return queue_logit_margin(u1, shift, wide, keys, own_key=own_key)

            return self._losses(logit_margin_at, positive, tau).mean()

    def _shift(self, u1: Tensor, u2: Tensor, positive: Tensor) -> Tensor:
        """Similarities of the positive pairs, which the logit margin subtracts, shape (N,)."""
        return positive

    def _units(self, z1: Tensor, z2: Tensor) -> Tensor:
        """Unit embeddings of the whole batch, those of view 1 first, shape (2N, D)."""
        return normalize(torch.cat(gather_batch(z1, z2, gathers=self.gather)))

    def _losses(
        self, logit_margin_at: Callable[[Tensor | float], Tensor], positive: Tensor, tau: Tensor
    ) -> Tensor:
        """Compute the losses of A anchors, shape (A,), and record their margins for ``statistics``.

        Args:
            logit_margin_at: function that computes the margins at a temperature, shape (A,).
            positive: similarities to the positives, shape (A,).
            tau: a scalar, or a value for each image, shape (N,).
        """
        d = logit_margin_at(tau)
        self._stats = (positive.detach(), tau.detach(), d.detach())
        anchors = Anchors(
            logit_margin=d,
            positive=positive,
            temperature=tau.repeat(len(positive) // len(tau)) if tau.ndim else tau,
            logit_margin_at=torch.no_grad()(logit_margin_at),
        )
        losses: Tensor = self.margin_loss(anchors)
        return losses

    def anchor_weights(self) -> Tensor:
        """Return W = sigmoid(d) of the last call's anchors, detached, shape (A,), or (0,) before it."""
        return torch.empty(0) if self._stats is None else self._stats[2].sigmoid()

    def statistics(self) -> dict[str, Tensor]:
        """Return statistics of the last call as detached scalars on its device, without a synchronisation.

        ``temperature`` is the mean τ, ``alignment`` the mean s⁺, and ``weight_mean``, ``weight_q05``,
        ``weight_q50`` and ``weight_q95`` are the mean and quantiles of W = sigmoid(d) over the anchors.
        ``easy_share`` is the share of anchors with d < 0, whose positive outweighs all negatives together.
        The dict is empty before the first call.
        """
        if self._stats is None:
            return {}
        positive, tau, d = self._stats
        w = d.sigmoid()
        return {
            "temperature": tau.mean(),
            "alignment": positive.mean(),
            "weight_mean": w.mean(),
            "weight_q05": w.quantile(0.05),
            "weight_q50": w.quantile(0.5),
            "weight_q95": w.quantile(0.95),
            "easy_share": (d < 0).to(d.dtype).mean(),
        }


def _checked_negatives(negatives: Tensor | None, width: int) -> Tensor:
    """Return the negatives of a queue, detached.

    Raises:
        ValueError: they are missing or do not have the shape (K, width).
    """
    if negatives is None or negatives.ndim != 2 or negatives.shape[1] != width or len(negatives) == 0:
        shape = None if negatives is None else tuple(negatives.shape)
        raise ValueError(f"negatives must have shape (K, {width}) with K of at least 1, got {shape}")
    return negatives.detach()


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
        self, *, temperature: float | TemperatureRule = 0.1, sigma: float = 0.5, **options: Any
    ) -> None:
        super().__init__(temperature=temperature, margin_loss=VonMisesFisher(sigma), **options)


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
        self, *, temperature: float | TemperatureRule = 0.1, outer_temperature: float = 1.0, **options: Any
    ) -> None:
        super().__init__(temperature=temperature, margin_loss=AtTemperature(outer_temperature), **options)


class MACL(_Preset):
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

    def __init__(self, *, temperature: float = 0.1, alpha: float = 2.0, **options: Any) -> None:
        check("alpha", alpha, at_least=1)
        check("temperature", temperature, at_least=SMALLEST * alpha)
        super().__init__(temperature=AlignmentExponential(temperature, alpha), **options)


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


class MACLb(_Preset):
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
        self, *, temperature: float = 0.1, beta: float = 0.5, minimum: float = 0.01, **options: Any
    ) -> None:
        check("temperature", temperature, at_least=SMALLEST)
        super().__init__(temperature=AlignmentLinear(temperature, beta, minimum=minimum), **options)


class MACLICML(_Preset):
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
        **options: Any,
    ) -> None:
        check("temperature", temperature, at_least=SMALLEST)
        super().__init__(temperature=AlignmentLinear(temperature, beta, threshold, minimum), **options)
