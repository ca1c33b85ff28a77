"""Large batches on one device: the network sees the batch in chunks, the objective sees it whole.

Accumulating gradients over small batches adds no negatives. This does: it is the gradient cache of Gao et al.
2021 (Scaling Deep Contrastive Learning Batch Size under Memory Limited Setup), two passes over the network
with memory for one chunk, as activation checkpointing of chunks.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils.checkpoint import checkpoint


def in_chunks(network: nn.Module, *inputs: Tensor, size: int, call: Callable[..., Any] | None = None) -> Any:
    """``network(*inputs)``, computed ``size`` rows at a time and again in the backward pass.

    Only inputs and outputs are kept in between, so memory is that of one chunk's activations; the price is
    a second forward pass. Values and gradients are those of calling the network on each chunk and
    concatenating: of the whole batch, too, unless the network mixes rows, as BatchNorm does, whose statistics
    are then those of a chunk. Running statistics are updated once; random numbers (dropout) are the same
    in both passes; autocast and DistributedDataParallel work as without.

    Args:
        network: the module that is called, or that ``call`` uses.
        *inputs: tensors with N rows each.
        size: rows of a chunk; the last may be smaller.
        call: what to call on a chunk instead of ``network`` itself.

    Returns:
        What the network returns, a tensor or a tuple of tensors with N rows.

    Raises:
        ValueError: for a size below 1, or inputs of different lengths.

    Example:
        >>> network = torch.nn.Linear(8, 4)
        >>> images = torch.rand(100, 8)
        >>> torch.allclose(in_chunks(network, images, size=32), network(images), atol=1e-6)
        True
    """
    if size < 1:
        raise ValueError(f"size must be 1 or more, got {size}")
    lengths = [len(rows) for rows in inputs]
    if len(set(lengths)) != 1:
        raise ValueError(f"inputs must have one number of rows, got {lengths}")

    def contexts() -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
        return nullcontext(), _without_running_statistics(network)

    pieces = [torch.split(rows, size) for rows in inputs]
    parts = [
        checkpoint(call or network, *chunk, use_reentrant=False, context_fn=contexts)
        for chunk in zip(*pieces, strict=True)
    ]
    if isinstance(parts[0], Tensor):
        return torch.cat(parts)
    return tuple(torch.cat(field) for field in zip(*parts, strict=True))


@contextmanager
def _without_running_statistics(network: nn.Module) -> Iterator[None]:
    norms = [module for module in network.modules() if isinstance(module, _BatchNorm)]
    settings = [(module.momentum, module.num_batches_tracked) for module in norms]
    for module in norms:
        module.momentum, module.num_batches_tracked = 0.0, None
    try:
        yield
    finally:
        for module, (momentum, count) in zip(norms, settings, strict=True):
            module.momentum, module.num_batches_tracked = momentum, count
