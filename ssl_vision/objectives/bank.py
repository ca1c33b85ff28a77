"""Memory bank with a moving average of the representation of every training image."""

import importlib
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn

from ssl_vision.objectives.logit_margin import normalize

Search = Literal["exact", "approximate"]

TILE = 2**24
"""Maximum number of similarities in memory at a time."""

BITS = 512
"""Length of the code of a row in the approximate search."""


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

    The exact search multiplies queries and rows in tiles. The approximate search, for larger banks, is
    locality-sensitive hashing, which for unit rows equals the asymmetric hashing that the paper names. The
    code of a row consists of the signs of its projections on ``BITS`` random directions and is stored with
    the row. FAISS selects the rows with the smallest Hamming distance on the CPU.

    Args:
        images: number of rows.
        dim: dimension of a row.
        search: ``"exact"`` or ``"approximate"``.

    Raises:
        ValueError: ``search`` is ``"approximate"`` and FAISS is not installed.

    Example:
        >>> bank = Bank(images=100, dim=4)
        >>> bank.write(torch.tensor([7, 8, 9]), torch.eye(4)[:3], rho=0.5)
        >>> # the nearest other image of image 7
        >>> bank.nearest(torch.tensor([[0.8, 0.6, 0, 0]]), own=torch.tensor([7]), k=1).index
        tensor([[8]])
    """

    rows: Tensor
    written: Tensor
    directions: Tensor
    codes: Tensor

    def __init__(self, images: int, dim: int, *, search: Search = "exact") -> None:
        super().__init__()
        self.search = search
        self.register_buffer("rows", torch.zeros(images, dim))
        self.register_buffer("written", torch.zeros(images, dtype=torch.bool))
        if search == "approximate":
            try:
                importlib.import_module("faiss")
            except ImportError as error:
                raise ValueError(
                    "search 'approximate' needs FAISS: pip install 'ssl_vision[cpu]' or '[gpu]'"
                ) from error
            directions = torch.randn(dim, BITS, generator=torch.Generator().manual_seed(0))
            self.register_buffer("directions", directions)
            self.register_buffer("codes", torch.zeros(images, BITS // 8, dtype=torch.uint8))

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
        if self.search == "approximate":
            self.codes[indices] = self._codes(now)

    @torch.no_grad()
    def nearest(self, queries: Tensor, own: Tensor, k: int) -> Chosen:
        """Find the k written rows of other images that are most similar to each query, in descending order.

        Args:
            queries: unit rows, shape (N, D).
            own: index of the image of each query, which is never chosen, int64 of shape (N,).
            k: number of rows, at least 1 and below the number of rows of the bank.
        """
        if self.search == "exact":
            return self._multiplied(queries, own, k)
        return self._hashed(queries, own, k)

    def _multiplied(self, queries: Tensor, own: Tensor, k: int) -> Chosen:
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

    def _hashed(self, queries: Tensor, own: Tensor, k: int) -> Chosen:
        faiss = importlib.import_module("faiss")
        codes = (codes.cpu().numpy() for codes in (self._codes(queries), self.codes))
        _, nearest = faiss.knn_hamming(*codes, k + 1)  # one more, as the image itself may be among them
        index = torch.from_numpy(nearest).to(own.device, torch.int64)
        counts = (index != own[:, None]) & self.written[index]
        counts, order = counts.sort(dim=1, descending=True, stable=True)
        return Chosen(index.gather(1, order)[:, :k], counts[:, :k])

    def _codes(self, z: Tensor) -> Tensor:
        """Compute the codes of rows, uint8 of shape (N, BITS / 8)."""
        signs = (z.to(self.directions.dtype) @ self.directions > 0).view(len(z), -1, 8)
        values = 2 ** torch.arange(8, device=z.device)
        return (signs * values).sum(dim=2).to(torch.uint8)
