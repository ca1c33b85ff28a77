"""Anchors and their keys, the input of gates, negative weights and ratios."""

import math
from collections.abc import Callable, Iterator
from functools import cache, cached_property

import torch
from torch import Tensor

from ssl_vision.objectives.uniformity import Spread, log_sums

BLOCK = 256
"""Number of anchors whose similarities to all embeddings are in memory at a time."""


class AnchorBatch:
    """Anchors with M keys each, the input of a `Gate`, a `NegativeWeight` or a `Ratio`.

    A training step creates it from the embeddings of a batch, and ``ssl-vision maps`` from angles.

    Args:
        anchors: unit vectors of the anchors, shape (B, D).
        positives: unit vectors of the anchors' other views, shape (B, D).
        pairs: selection of the negatives: other images in the anchor's own view (``"within"``), in the other
            view (``"cross"``), or in both views (``"both"``).

    Example:
        >>> class Pressure(NegativeWeight):
        ...     def forward(self, batch: AnchorBatch):
        ...         return batch.negatives(batch.pairs) * batch.similarity.clamp(min=0)
        >>> objective = UnifiedGradient(gate=OpenGate(), weight=Pressure())
        >>> loss = objective(torch.ones(2, 3), torch.ones(2, 3))
        >>> objective.statistics()["gate_mean"]
        tensor(1.)
    """

    def __init__(self, anchors: Tensor, positives: Tensor, pairs: Spread) -> None:
        self.anchors, self.positives, self.pairs = anchors, positives, pairs

    @cached_property
    def positive(self) -> Tensor:
        """Similarities s⁺ to the positives, shape (B,)."""
        return (self.anchors * self.positives).sum(dim=1)

    @cached_property
    def similarity(self) -> Tensor:
        """Cosines of the anchors with all keys, shape (B, M)."""
        raise NotImplementedError

    @property
    def other_similarity(self) -> Tensor:
        """Cosines of the other views of the same images, shape (B, M)."""
        raise NotImplementedError

    def negatives(self, pairs: Spread) -> Tensor:
        """Return a boolean mask of the keys that are negatives of each anchor, shape (B, M)."""
        raise NotImplementedError

    def keys(self, index: Tensor) -> Tensor:
        """Return the vector of one key for each anchor, shape (B, D), given indices of shape (B,)."""
        raise NotImplementedError

    def log_mean(self, temperature: float, *, swap: bool = False) -> Tensor:
        """Compute the log of the mean of Σ_j exp((s_ij − 1)/τ) over the anchors of the view.

        Args:
            temperature: temperature τ.
            swap: use the anchors of the other view.

        Returns:
            A scalar, or shape (B, 1).
        """
        raise NotImplementedError

    def among(self, similarity: Tensor, pairs: Spread) -> Tensor:
        """Return ``similarity`` with −∞ at keys that are not negatives."""
        return similarity.masked_fill(~self.negatives(pairs), -torch.inf)

    def hardest(self, pairs: Spread) -> Tensor:
        """Return the index of the most similar negative, shape (B,)."""
        return self.among(self.similarity, pairs).argmax(dim=1)


class Rows(AnchorBatch):
    """Anchors from a batch, whose keys are all embeddings of the batch.

    Args:
        u: unit embeddings of the whole batch, those of view 1 first, shape (2N, D).
        rows: rows of the B anchors, all from one view.
        pairs: selection of the negatives, as in ``AnchorBatch``.
        log_sums: function from a temperature to log Σ_j exp((s_ij − 1)/τ) over the negatives of each of the
            2N embeddings.
    """

    def __init__(self, u: Tensor, rows: slice, pairs: Spread, log_sums: Callable[[float], Tensor]) -> None:
        self.u, self.rows, self.log_sums = u, rows, log_sums
        self.images = len(u) // 2
        shift = self.images if rows.start < self.images else -self.images
        self.partners = slice(rows.start + shift, rows.stop + shift)
        super().__init__(u[rows], u[self.partners], pairs)

    @classmethod
    def all(cls, u: Tensor, pairs: Spread) -> Iterator["Rows"]:
        """Iterate over the batch in blocks of at most ``BLOCK`` anchors."""
        sums = cache(lambda temperature: log_sums(u, temperature, pairs=pairs))
        images = len(u) // 2
        for view in (0, images):
            for start in range(view, view + images, BLOCK):
                yield cls(u, slice(start, min(start + BLOCK, view + images)), pairs, sums)

    @cached_property
    def similarity(self) -> Tensor:
        """Cosines with all embeddings, shape (B, 2N)."""
        return self.anchors @ self.u.T

    @property
    def other_similarity(self) -> Tensor:
        """Cosines of the other views, shape (B, 2N)."""
        return (self.positives @ self.u.T).roll(self.images, dims=1)

    def negatives(self, pairs: Spread) -> Tensor:
        """Return a boolean mask, shape (B, 2N)."""
        count = len(self.u)
        number = torch.arange(count, device=self.u.device)
        anchor, key = number[self.rows, None], number
        other_image = anchor % self.images != key % self.images
        if pairs == "both":
            return other_image
        own_view = (anchor < self.images) == (key < self.images)
        return other_image & (own_view if pairs == "within" else ~own_view)

    def keys(self, index: Tensor) -> Tensor:
        """Return embeddings, shape (B, D)."""
        return self.u[index]

    def log_mean(self, temperature: float, *, swap: bool = False) -> Tensor:
        """Compute the log of the mean, a scalar."""
        view = self.rows.start // self.images
        sums = self.log_sums(temperature).view(2, -1)[1 - view if swap else view]
        return sums.logsumexp(dim=0) - math.log(self.images)
