"""What the parts of the unified paradigm are asked about: some anchors and their keys."""

import math
from collections.abc import Callable, Iterator
from functools import cache, cached_property

import torch
from torch import Tensor

from ssl_vision.objectives.uniformity import Spread, log_sums

BLOCK = 256
"""Anchors whose similarities to all embeddings are held at a time."""


class AnchorBatch:
    """Some anchors, and what a gate, a weight or a ratio asks of them.

    A training step makes it of a batch's embeddings, ``ssl-vision maps`` of angles. Each anchor has M keys.

    Args:
        anchors: (B, D) unit vectors.
        positives: (B, D), the anchors' other views.
        pairs: the negative set: other images in the anchor's own view (``"within"``), in the other view
            (``"cross"``) or in both.

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
        """(B,) s⁺."""
        return (self.anchors * self.positives).sum(dim=1)

    @cached_property
    def similarity(self) -> Tensor:
        """(B, M) cosines of the anchors and all keys."""
        raise NotImplementedError

    @property
    def other_similarity(self) -> Tensor:
        """(B, M) cosines of the same images' other views."""
        raise NotImplementedError

    def negatives(self, pairs: Spread) -> Tensor:
        """(B, M) bool: which keys are negatives of each anchor."""
        raise NotImplementedError

    def keys(self, index: Tensor) -> Tensor:
        """(B, D) vectors of one key an anchor, by its (B,) index."""
        raise NotImplementedError

    def log_mean(self, temperature: float, *, swap: bool = False) -> Tensor:
        """Log of the mean over the view's anchors of Σ_j exp((s_ij − 1)/τ), a scalar or (B, 1).

        Args:
            temperature: τ.
            swap: of the other view's anchors.
        """
        raise NotImplementedError

    def among(self, similarity: Tensor, pairs: Spread) -> Tensor:
        """``similarity`` at the negatives, −∞ elsewhere."""
        return similarity.masked_fill(~self.negatives(pairs), -torch.inf)

    def hardest(self, pairs: Spread) -> Tensor:
        """(B,) index of the most similar negative."""
        return self.among(self.similarity, pairs).argmax(dim=1)


class Rows(AnchorBatch):
    """Rows of a batch, whose keys are all its embeddings.

    Args:
        u: (2N, D) unit embeddings of the whole batch, those of view 1 first.
        rows: the B anchors, all of one view.
        pairs: as in ``AnchorBatch``.
        log_sums: at a temperature, log Σ_j exp((s_ij − 1)/τ) over the negatives of each of the 2N embeddings.
    """

    def __init__(self, u: Tensor, rows: slice, pairs: Spread, log_sums: Callable[[float], Tensor]) -> None:
        self.u, self.rows, self.log_sums = u, rows, log_sums
        self.images = len(u) // 2
        shift = self.images if rows.start < self.images else -self.images
        self.partners = slice(rows.start + shift, rows.stop + shift)
        super().__init__(u[rows], u[self.partners], pairs)

    @classmethod
    def all(cls, u: Tensor, pairs: Spread) -> Iterator["Rows"]:
        """Blocks of at most ``BLOCK`` anchors that make up the batch."""
        sums = cache(lambda temperature: log_sums(u, temperature, pairs=pairs))
        images = len(u) // 2
        for view in (0, images):
            for start in range(view, view + images, BLOCK):
                yield cls(u, slice(start, min(start + BLOCK, view + images)), pairs, sums)

    @cached_property
    def similarity(self) -> Tensor:
        """(B, 2N)."""
        return self.anchors @ self.u.T

    @property
    def other_similarity(self) -> Tensor:
        """(B, 2N)."""
        return (self.positives @ self.u.T).roll(self.images, dims=1)

    def negatives(self, pairs: Spread) -> Tensor:
        """(B, 2N) bool."""
        count = len(self.u)
        number = torch.arange(count, device=self.u.device)
        anchor, key = number[self.rows, None], number
        other_image = anchor % self.images != key % self.images
        if pairs == "both":
            return other_image
        own_view = (anchor < self.images) == (key < self.images)
        return other_image & (own_view if pairs == "within" else ~own_view)

    def keys(self, index: Tensor) -> Tensor:
        """(B, D) embeddings."""
        return self.u[index]

    def log_mean(self, temperature: float, *, swap: bool = False) -> Tensor:
        """A scalar."""
        view = self.rows.start // self.images
        sums = self.log_sums(temperature).view(2, -1)[1 - view if swap else view]
        return sums.logsumexp(dim=0) - math.log(self.images)
