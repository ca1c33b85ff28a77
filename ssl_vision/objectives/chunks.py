"""Gradient caching: the network processes a batch in chunks, and the objective receives the whole batch.

Accumulating gradients over small batches adds no negatives, but gradient caching does (Gao et al. 2021,
Scaling Deep Contrastive Learning Batch Size under Memory Limited Setup). It takes two passes over the network
with memory for one chunk, and is implemented as activation checkpointing of chunks.
"""

import math
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils.checkpoint import checkpoint

from ssl_vision.errors import check


def in_chunks(
    network: nn.Module, *inputs: Tensor, size: int, call: Callable[..., Any] | None = None, dim: int = 0
) -> Any:
    """Compute ``network(*inputs)`` for at most ``size`` rows at a time, and again in the backward pass.

    Only inputs and outputs are stored, so this requires memory for the activations of one chunk and a second
    forward pass. Values and gradients are those of concatenated calls on each chunk. They equal those of the
    whole batch unless the network mixes rows. BatchNorm does, and uses the statistics of a chunk. Its running
    statistics are updated once, random numbers such as those of dropout are the same in both passes, and
    autocast and DistributedDataParallel are supported. Other modules whose forward pass changes their buffers
    are not, such as spectral normalisation.

    Args:
        network: module to call, or the module that ``call`` uses.
        *inputs: tensors with N rows each.
        size: maximum number of rows of a chunk; the chunks are about equally long.
        call: function to call on a chunk instead of ``network``.
        dim: dimension of the rows in the output.

    Returns:
        The output of the network, a tensor or a tuple of tensors with N rows.

    Raises:
        ValueError: ``size`` is below 1, or the inputs have different lengths.

    Example:
        >>> network = torch.nn.Linear(8, 4)
        >>> images = torch.rand(100, 8)
        >>> torch.allclose(in_chunks(network, images, size=32), network(images), atol=1e-6)
        True
    """
    check("size", size, at_least=1)
    lengths = [len(rows) for rows in inputs]
    if len(set(lengths)) != 1:
        raise ValueError(f"inputs must have the same number of rows, got {lengths}")

    def contexts() -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
        return nullcontext(), _without_running_statistics(network)

    pieces = [torch.tensor_split(rows, max(1, math.ceil(lengths[0] / size))) for rows in inputs]
    parts = [
        checkpoint(call or network, *chunk, use_reentrant=False, context_fn=contexts)
        for chunk in zip(*pieces, strict=True)
    ]
    if isinstance(parts[0], Tensor):
        return torch.cat(parts, dim)
    return tuple(torch.cat(field, dim) for field in zip(*parts, strict=True))


@contextmanager
def _without_running_statistics(network: nn.Module) -> Iterator[None]:
    norms = [module for module in network.modules() if isinstance(module, _BatchNorm)]
    settings = [(module.momentum, module.num_batches_tracked) for module in norms]
    for module in norms:
        count = module.num_batches_tracked
        # a copy, because SyncBatchNorm requires a count
        module.momentum, module.num_batches_tracked = 0.0, None if count is None else count.clone()
    try:
        yield
    finally:
        for module, (momentum, count) in zip(norms, settings, strict=True):
            module.momentum, module.num_batches_tracked = momentum, count
