"""Embeddings of all processes, so that each sees every negative."""

import torch
import torch.distributed as dist
from torch import Tensor


def is_distributed() -> bool:
    """Whether a process group of more than one process is up."""
    return dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1


def gather(z: Tensor) -> Tensor:
    """The rows of all processes, in the order of their ranks; processes may have different numbers of rows.

    Every process then computes the same loss of the whole batch. The gradient reaches a process's own rows
    only, and directly: nothing is communicated on the way back. It is multiplied by the number of processes,
    because DistributedDataParallel divides by it; the averaged parameter gradients are then those of one
    process that has the whole batch.

    Args:
        z: (n, D) of this process.

    Returns:
        (Σ n, D).
    """
    world, rank = dist.get_world_size(), dist.get_rank()
    mine = torch.tensor([len(z)], device=z.device)
    counts = [torch.zeros_like(mine) for _ in range(world)]
    dist.all_gather(counts, mine)
    rows = [int(count) for count in counts]
    padded = z.new_zeros(max(rows), z.shape[1])
    padded[: len(z)] = z.detach()
    parts = [torch.empty_like(padded) for _ in range(world)]
    dist.all_gather(parts, padded)
    whole = [part[:count] for part, count in zip(parts, rows, strict=True)]
    whole[rank] = _scale_gradient(z, world)
    return torch.cat(whole)


def _scale_gradient(z: Tensor, factor: int) -> Tensor:
    """Z itself, with ``factor`` times its gradient."""
    return z.detach() + factor * (z - z.detach())
