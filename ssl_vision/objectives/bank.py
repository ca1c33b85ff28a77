"""Memory bank with a moving average of the representation of every training image."""

from typing import NamedTuple

import torch
from torch import Tensor, nn

from ssl_vision.objectives.logit_margin import normalize

TILE = 2**24
"""Maximum number of similarities in memory at a time."""


class Chosen(NamedTuple):
    """Rows of a bank that were chosen for each of N anchors."""

    index: Tensor  # type: ignore[assignment]  # hides tuple.index
    """Indices of the rows, int64 of shape (N, K)."""
    counts: Tensor
    """Mask of the valid entries, bool of shape (N, K); False if there was no further row to choose."""


class Bank(nn.Module):
    """Memory bank with one unit row for each training image, a moving average of its representations.

        row ← unit((1 − ρ) z + ρ row)             (RECLAIM paper, Eq. 7, with the result normalised)

    A row is zero, and is never chosen, until its image is seen for the first time. It is then z itself. (In
    the paper, rows are random at first, so that the first negatives would be random.) Rows have no gradient.
    They are buffers and therefore part of a checkpoint.

    The search multiplies queries and rows in tiles.

    Args:
        images: number of rows.
        dim: dimension of a row.

    Example:
        >>> bank = Bank(images=100, dim=4)
        >>> bank.write(torch.tensor([7, 8, 9]), torch.eye(4)[:3], rho=0.5)
        >>> # the nearest other image of image 7
        >>> bank.nearest(torch.tensor([[0.8, 0.6, 0, 0]]), own=torch.tensor([7]), k=1).index
        tensor([[8]])
    """

    rows: Tensor
    written: Tensor

    def __init__(self, images: int, dim: int) -> None:
        super().__init__()
        self.register_buffer("rows", torch.zeros(images, dim))
        self.register_buffer("written", torch.zeros(images, dtype=torch.bool))

    @torch.no_grad()
    def write(self, indices: Tensor, z: Tensor, *, rho: float) -> None:
        """Update the rows of some images; a row is unchanged if its z is not finite.

        Args:
            indices: unique indices of the images, int64 of shape (N,).
            z: unit rows, shape (N, D).
            rho: share ρ of the previous row.
        """
        finite = z.isfinite().all(dim=1)
        before = self.rows[indices]
        now = torch.where(finite[:, None], normalize((1 - rho) * z + rho * before).to(before.dtype), before)
        self.rows[indices] = now
        self.written[indices] |= finite

    @torch.no_grad()
    def nearest(self, queries: Tensor, own: Tensor, k: int) -> Chosen:
        """Find the k written rows of other images that are most similar to each query, in descending order.

        Args:
            queries: unit rows, shape (N, D).
            own: index of the image of each query, which is never chosen, int64 of shape (N,).
            k: number of rows, at least 1 and below the number of rows of the bank.
        """
        tile = max(1, TILE // max(1, len(queries)))
        similarity, index = queries.new_empty(len(queries), 0), own.new_empty(len(queries), 0)
        for start in range(0, len(self.rows), tile):
            rows, written = self.rows[start : start + tile], self.written[start : start + tile]
            products = queries @ rows.to(queries.dtype).T
            products.masked_fill_(~written, -torch.inf)
            column = (own - start)[:, None]
            outside = (column < 0) | (column >= len(rows))
            column = column.clamp(0, len(rows) - 1)
            products.scatter_(1, column, products.gather(1, column).where(outside, -torch.inf))
            values, columns = products.topk(min(k, len(rows)), dim=1)
            similarity, index = torch.cat((similarity, values), dim=1), torch.cat((index, columns + start), 1)
            similarity, order = similarity.topk(min(k, similarity.shape[1]), dim=1)
            index = index.gather(1, order)
        return Chosen(index, similarity > -torch.inf)
