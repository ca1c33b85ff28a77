"""Gathering of embeddings from all processes, so that each process has all negatives."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import torch
import torch.distributed as dist
from torch import Tensor

from ssl_vision.objectives.logit_margin import check_views

_equal_shares = ContextVar("_equal_shares", default=False)


@contextmanager
def equal_shares(equal: bool = True) -> Iterator[None]:
    """Run a block in which every process has the same number of rows, if ``equal`` is True.

    `gather` then does not exchange the numbers of rows, for which the host would wait at every step. If the
    numbers differ nevertheless, the processes wait forever or exchange wrong rows.

    Args:
        equal: False changes nothing.

    Example:
        >>> with equal_shares():
        ...     is_distributed()
        False
    """
    token = _equal_shares.set(equal or _equal_shares.get())
    try:
        yield
    finally:
        _equal_shares.reset(token)


def is_distributed() -> bool:
    """Return True if a process group with more than one process is initialised."""
    return dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1


def gather_batch(z1: Tensor, z2: Tensor, *, gathers: bool) -> tuple[Tensor, Tensor]:
    """Check the embeddings of both views and, if ``gathers``, gather them from all processes.

    Raises:
        ValueError: the errors of ``check_views``, or fewer than 2 images over all processes.
    """
    check_views(z1, z2)
    if gathers and is_distributed():
        z1, z2 = gather(torch.cat([z1, z2], dim=1)).chunk(2, dim=1)
    if len(z1) < 2:
        raise ValueError(f"z1 of shape {tuple(z1.shape)} has no negatives: at least 2 images are needed")
    return z1, z2


def gather(z: Tensor) -> Tensor:
    """Gather the rows of all processes in the order of their ranks.

    Processes may have different numbers of rows, which are exchanged first, except within `equal_shares`.

    Every process then computes the same loss of the whole batch. Only the rows of the process itself have a
    gradient, and the backward pass does not communicate. The gradient is multiplied by the number of
    processes, because DistributedDataParallel divides by it. The averaged parameter gradients are then those
    of one process with the whole batch.

    Args:
        z: rows of this process, shape (n, D).

    Returns:
        The rows of all processes, shape (Σ n, D).
    """
    world, rank = dist.get_world_size(), dist.get_rank()
    rows = [len(z)] * world if _equal_shares.get() else _row_counts(z, world)
    padded = z.new_zeros(max(rows), z.shape[1])
    padded[: len(z)] = z.detach()
    parts = [torch.empty_like(padded) for _ in range(world)]
    dist.all_gather(parts, padded)
    gathered = [part[:count] for part, count in zip(parts, rows, strict=True)]
    gathered[rank] = _scale_gradient(z, world)
    return torch.cat(gathered)


def _row_counts(z: Tensor, world: int) -> list[int]:
    """Exchange the number of rows of each process."""
    mine = torch.tensor([len(z)], device=z.device)
    counts = [torch.zeros_like(mine) for _ in range(world)]
    dist.all_gather(counts, mine)
    return [int(count) for count in counts]


def mean_over_processes(losses: Tensor, total: int) -> Tensor:
    """Compute the mean loss of all processes, with the gradient that DistributedDataParallel averages.

    Args:
        losses: losses of the anchors of this process, shape (n,).
        total: number of anchors of all processes.

    Returns:
        A scalar, equal on all processes.
    """
    if not is_distributed():
        return losses.mean()
    summed = losses.detach().sum()
    dist.all_reduce(summed)
    share = losses.sum() * (dist.get_world_size() / total)
    return summed / total + (share - share.detach())


def _scale_gradient(z: Tensor, factor: int) -> Tensor:
    """Return ``z`` with its gradient multiplied by ``factor``."""
    return z.detach() + factor * (z - z.detach())
