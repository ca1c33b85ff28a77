"""MoCo: queries against a queue of the keys of earlier batches, which a momentum network computes."""

from typing import Any

import torch
from torch import Tensor, nn

from ssl_vision.data.images import Batch
from ssl_vision.errors import InputError, check
from ssl_vision.methods.momentum import MomentumMethod
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


class MoCo(MomentumMethod):
    """Momentum contrast, version 2 (He et al. 2020; Chen et al. 2020, Improved Baselines).

    The network embeds the first view of each image, the query; the momentum network embeds the second, the
    key. The objective compares each query with its key and with the keys of earlier batches in a queue. The
    keys of a batch enter the queue after its backward pass.

    With several processes the queue has the keys of all of them. BatchNorm can leak which keys belong to a
    query, because both share batch statistics. The authors shuffle the keys among their devices; this class
    does not.

    The defaults are those of the authors' CIFAR-10 example: K = 4,096, m = 0.99, τ = 0.1, not symmetric.

    Args:
        queue_size: number of keys in the queue, K.
        objective: an objective of the InfoNCE family, except `SupCon`; `InfoNCE` by default.
        **options: those of `MomentumMethod` and `Method`.

    Attributes:
        queue: The keys of earlier batches.

    Raises:
        InputError: queue_size is below 1, or the objective does not take negatives from a queue; otherwise as
            `MomentumMethod`.

    Example:
        >>> import torch
        >>> from ssl_vision.data import Batch
        >>> method = MoCo(queue_size=16, seed=0)
        >>> images = torch.zeros(4, 3, 32, 32, dtype=torch.uint8)
        >>> batch = Batch(images, torch.zeros(4), torch.arange(4), views=torch.rand(8, 3, 32, 32))
        >>> method.loss(batch).backward()
        >>> method.after_backward()
        >>> method.queue.oldest
        tensor(4)
    """

    available_inputs = frozenset({"negatives"})
    pairs = ("queue",)

    def __init__(self, *, queue_size: int = 4096, **options: Any) -> None:
        super().__init__(**options)
        if "negatives" not in self._contract.required_inputs:
            raise InputError(
                f"MoCo requires an objective that uses a queue, unlike {type(self.objective).__name__}: use "
                "one of the InfoNCE family"
            )
        check("queue_size", queue_size, at_least=1, at_most=2**24)
        with self.seeded(2):
            self.queue = KeyQueue(queue_size, self.output_dim)

    def loss_of_direction(self, batch: Batch, queries: Tensor, keys: Tensor) -> Tensor:
        """Compute the objective of queries, keys and the queue."""
        loss: Tensor = self.objective(queries, keys, negatives=self.queue.keys)
        return loss

    def after_backward(self) -> None:
        """Add the keys of the batch to the queue."""
        for keys in self.key_embeddings:
            self.queue.enqueue(keys)

    def setup(self, stage: str) -> None:
        """Exclude the queue, equal in all processes, from the broadcasts of DistributedDataParallel."""
        super().setup(stage)
        self._ddp_params_and_buffers_to_ignore = ["queue.keys", "queue.oldest"]
