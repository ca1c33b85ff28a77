"""The contrastive objective: temperature rule × weight × pair set."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from ssl_vision.objectives.gather import whole_batch
from ssl_vision.objectives.margin import positives, unit, unit_margin
from ssl_vision.objectives.temperature import TemperatureRule, as_rule
from ssl_vision.objectives.tiled import Pairs, check_pairs
from ssl_vision.objectives.weight import Anchors, Softmax, Weight


class Contrastive(nn.Module):
    """Mean over the 2N anchors of a batch of ``weight``'s loss, at ``temperature``'s τ.

        L = 1/(2N) Σ_i ℓ(d_i(τ))

    where d is the margin (``ssl_vision.objectives.margin``). Call it with the two views' embeddings; read
    ``statistics()`` afterwards for what it knows of itself.

    Args:
        temperature: τ, a number or a rule.
        weight: from margins to losses; the default is InfoNCE.
        pairs: ``"both"``, all other 2N − 2 embeddings are negatives, or ``"cross"``, the other view's N − 1.
        gather: under a process group, take the embeddings of all processes as one batch; otherwise each
            process has negatives of its own only, which is another objective for every number of processes.

    Attributes:
        wants: Names of the arguments that the objective is called with besides the embeddings.

    Raises:
        ValueError: for a temperature that is or could become zero or negative, or unknown ``pairs``.
    """

    wants: tuple[str, ...] = ()

    def __init__(
        self,
        *,
        temperature: float | TemperatureRule = 0.1,
        weight: Weight | None = None,
        pairs: Pairs = "both",
        gather: bool = True,
    ) -> None:
        super().__init__()
        check_pairs(pairs)
        self.temperature = as_rule(temperature)
        self.weight = Softmax() if weight is None else weight
        self.pairs: Pairs = pairs
        self.gather = gather
        self._seen: tuple[Tensor, Tensor, Tensor] | None = None

    def set_epoch(self, epoch: int) -> None:
        """Tells the temperature rule which epoch (counted from 0) is running."""
        self.temperature.set_epoch(epoch)

    def forward(self, z1: Tensor, z2: Tensor) -> Tensor:
        """The loss of a batch.

        With several processes the batch is that of all of them: negatives, alignment and value are those of
        one process with the whole batch, and so is the gradient that DistributedDataParallel averages.

        Args:
            z1: (N, D) embeddings of view 1, any scale, at least 2 images over all processes.
            z2: (N, D) embeddings of view 2.

        Returns:
            A scalar, float32 (float64 for float64 input).

        Raises:
            ValueError: naming the argument and the shape that cannot be used.
        """
        u = self._units(z1, z2)
        positive = positives(u)
        tau = self.temperature(positive.detach())

        def margin_at(temperature: Tensor | float) -> Tensor:
            return unit_margin(u, positive, temperature, pairs=self.pairs)

        return self._losses(margin_at, positive.repeat(2), tau).mean()

    def _units(self, z1: Tensor, z2: Tensor) -> Tensor:
        """(2N, D) unit embeddings of the whole batch, those of view 1 first."""
        return unit(torch.cat(whole_batch(z1, z2, gathers=self.gather)))

    def _losses(self, margin_at: Callable[[Tensor | float], Tensor], positive: Tensor, tau: Tensor) -> Tensor:
        """(2N,) losses of anchors with the margins ``margin_at(tau)``, noted for ``statistics``."""
        d = margin_at(tau)
        self._seen = (positive.detach(), tau.detach(), d.detach())
        anchors = Anchors(
            margin=d,
            positive=positive,
            temperature=tau.repeat(2) if tau.ndim else tau,
            margin_at=torch.no_grad()(margin_at),
        )
        losses: Tensor = self.weight(anchors)
        return losses

    def anchor_weights(self) -> Tensor:
        """(2N,) W = sigmoid(d) of the last call's anchors, detached, on its device; none before the first."""
        return torch.empty(0) if self._seen is None else self._seen[2].sigmoid()

    def statistics(self) -> dict[str, Tensor]:
        """What the last call was like, as detached scalars on its device, without a synchronisation.

        ``temperature``: mean τ in force. ``alignment``: mean s⁺. ``weight_mean`` and ``weight_q05``,
        ``weight_q50``, ``weight_q95``: mean and quantiles of W = sigmoid(d) over the anchors.
        ``easy_share``: share of anchors with d < 0, whose positive outweighs all their negatives together.
        Empty before the first call.
        """
        if self._seen is None:
            return {}
        positive, tau, d = self._seen
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
