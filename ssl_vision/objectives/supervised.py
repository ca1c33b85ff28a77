"""Supervised contrastive objective, in which all images of a class are positives."""

import torch
from torch import Tensor

from ssl_vision.objectives.contrastive import Contrastive
from ssl_vision.objectives.gather import gather, is_distributed
from ssl_vision.objectives.logit_margin import autocast_disabled, dense, is_dense, per_anchor, positives
from ssl_vision.objectives.tiled import NEVER, PAIRS, Exclude, Pairs, tiled


class SupCon(Contrastive):
    """Supervised contrastive loss: images of the anchor's class are positives (Khosla et al. 2020, Eq. 2).

        L_i = −1/|P(i)| Σ_{p ∈ P(i)} log [ exp(s_ip/τ) / Σ_{a ≠ i} exp(s_ia/τ) ]

    This is also a function of a logit margin. With d_i = log Σ_{Neg} exp(s/τ) − log Σ_{P(i)} exp(s/τ),

        L_i = softplus(d_i) + [ log Σ_{P(i)} exp(s/τ) − mean_{P(i)} s/τ ]

    where the bracket is ≥ log |P(i)|, and 0 for a single positive. If all labels differ, the loss is InfoNCE.
    Another ``margin_loss`` replaces softplus; with ``Decoupled``, the sum is over negatives only. For an
    anchor without negatives, the first term is 0. Temperature rules and ``statistics`` use the mean
    similarity of an anchor's positives.

    It is called with labels, so it is an upper reference for self-supervised objectives.

    Args:
        temperature: temperature τ, a number or a temperature rule.
        margin_loss: margin loss; the default is softplus.
        pairs: selection of positives and negatives, ``"both"`` or ``"cross"``.
        gather: use the embeddings of all processes as one batch, as in ``Contrastive``.

    Example:
        >>> z1, z2 = torch.eye(4)[[0, 0, 1, 1]], torch.eye(4)[[0, 0, 1, 1]]
        >>> SupCon(temperature=0.1)(z1, z2, labels=torch.tensor([0, 0, 1, 1]))  # three equal positives
        tensor(1.0987)

    Naive form:
        ```python
        u = F.normalize(torch.cat([z1, z2]), dim=1)
        shares = (u @ u.T / temperature).fill_diagonal_(-torch.inf).log_softmax(dim=1)
        positives = (labels[:, None] == labels).repeat(2, 2).fill_diagonal_(False)
        loss = -(shares.masked_fill(~positives, 0).sum(dim=1) / positives.sum(dim=1)).mean()
        ```
    """

    required_inputs = ("labels",)
    supported_pairs = PAIRS

    def forward(self, z1: Tensor, z2: Tensor, labels: Tensor | None = None) -> Tensor:  # type: ignore[override]
        """Compute the loss of a batch.

        Args:
            z1: embeddings of view 1, shape (N, D).
            z2: embeddings of view 2, shape (N, D).
            labels: integers of shape (N,). An image with a negative number has no label, and its other view
                is its only positive.

        Returns:
            A scalar.

        Raises:
            ValueError: the labels are missing or invalid, or the errors of ``Contrastive``.
        """
        if labels is None or labels.shape != z1.shape[:1] or labels.is_floating_point():
            actual = "none" if labels is None else f"{labels.dtype} of shape {tuple(labels.shape)}"
            raise ValueError(f"labels must be integers of shape ({len(z1)},), got {actual}")
        u = self._units(z1, z2)
        if self.gather and is_distributed():
            labels = gather(labels[:, None])[:, 0]
        count = len(labels)
        pairs: Pairs = "both" if self.pairs == "both" else "cross"
        with autocast_disabled(u.device):
            labels = torch.where(labels < 0, -1 - torch.arange(count, device=u.device), labels)
            partner = positives(u).repeat(2)
            surplus, number = self._surplus(u, partner, labels)
            mean = partner + surplus
            tau = self.temperature(mean.detach().view(2, count).mean(dim=0))
            twice = labels.repeat(2)

            def over(exclude: Exclude, temperature: Tensor | float) -> Tensor:
                """Compute the log-sum-exp over pairs, relative to the anchor's other view."""
                compute = dense if is_dense(u) else tiled
                return compute(u, partner, per_anchor(temperature, u), exclude, pairs=pairs)

            attraction = over(_positives_of(twice), tau)

            without_negatives = number == (2 * count - 1 if pairs == "both" else count)

            def logit_margin_at(temperature: Tensor | float) -> Tensor:
                same = attraction if temperature is tau else over(_positives_of(twice), temperature)
                margin = over(_negatives_of(twice), temperature) - same
                return torch.where(without_negatives, NEVER, margin)

            losses = torch.where(without_negatives, 0.0, self._losses(logit_margin_at, mean, tau))
            spread = torch.where(number > 1, attraction - surplus / per_anchor(tau, u), 0.0)
            return (losses + spread).mean()

    def _surplus(self, u: Tensor, partner: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Compute each anchor's mean s over positives minus that of its other view, and their number."""
        group = _groups(labels)
        views = u.chunk(2)
        sums = [torch.zeros_like(view).index_add(0, group, view)[group] for view in views]
        size = torch.zeros_like(labels).index_add(0, group, torch.ones_like(labels))[group].repeat(2)
        others = torch.cat([sums[1] - views[1], sums[0] - views[0]])
        if self.pairs == "both":
            others = others + torch.cat([sums[0] - views[0], sums[1] - views[1]])
            size = 2 * size - 1
        return ((u * others).sum(dim=1) - (size - 1) * partner) / size, size


def _groups(labels: Tensor) -> Tensor:
    """Number the labels from 0 without a synchronisation with the device."""
    ranked, order = labels.sort()
    steps = torch.zeros_like(labels)
    steps[1:] = (ranked[1:] != ranked[:-1]).to(labels.dtype)
    return torch.empty_like(labels).scatter(0, order, steps.cumsum(0))


def _negatives_of(labels: Tensor) -> Exclude:
    def exclude(tile: Tensor, rows: slice, columns: slice) -> None:
        tile.masked_fill_(labels[rows, None] == labels[columns], NEVER)

    return exclude


def _positives_of(labels: Tensor) -> Exclude:
    def exclude(tile: Tensor, rows: slice, columns: slice) -> None:
        tile.masked_fill_(labels[rows, None] != labels[columns], NEVER)
        if rows == columns:
            tile.diagonal().fill_(NEVER)

    return exclude
