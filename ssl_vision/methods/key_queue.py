"""Queue of the keys of earlier batches, which are the negatives of later ones (He et al. 2020, MoCo)."""

import torch
from torch import Tensor, nn

from ssl_vision.objectives.gather import gather, is_distributed
from ssl_vision.objectives.logit_margin import normalize


class KeyQueue(nn.Module):
    """First-in, first-out queue of the last ``size`` keys, initialised with random directions.

    With several processes, each queue receives the keys of all of them, so that all queues are equal.

    Args:
        size: number of keys, K.
        width: dimensions of a key, D.

    Attributes:
        keys: normalised keys, shape (K, D); a buffer, so that it is part of checkpoints.
        oldest: index of the oldest key, shape (); a buffer.

    Example:
        >>> import torch
        >>> queue = KeyQueue(4, 2)
        >>> queue.enqueue(torch.tensor([[0.0, 3.0], [5.0, 0.0]]))
        >>> queue.keys[:2], queue.oldest
        (tensor([[0., 1.],
                [1., 0.]]), tensor(2))
    """

    keys: Tensor
    oldest: Tensor

    def __init__(self, size: int, width: int) -> None:
        super().__init__()
        self.register_buffer("keys", normalize(torch.randn(size, width)))
        self.register_buffer("oldest", torch.zeros((), dtype=torch.long))

    @torch.no_grad()
    def enqueue(self, keys: Tensor) -> None:
        """Replace the oldest keys; non-finite keys are ignored, and the older ones remain.

        Args:
            keys: keys of a batch at any scale, shape (N, D); if N > K, only the last K are used.
        """
        unit = normalize(keys)
        newest = (gather(unit) if is_distributed() else unit)[-len(self.keys) :].to(self.keys)
        places = (self.oldest + torch.arange(len(newest), device=keys.device)) % len(self.keys)
        finite = newest.isfinite().all(dim=1, keepdim=True)
        self.keys.index_copy_(0, places, torch.where(finite, newest, self.keys[places]))
        self.oldest.add_(len(newest)).remainder_(len(self.keys))
