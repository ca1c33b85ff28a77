"""MoCo: queries against a queue of keys, which a momentum network computes."""

from typing import Any

from torch import Tensor, nn

from ssl_vision.data.images import Batch
from ssl_vision.errors import InputError
from ssl_vision.methods.key_queue import KeyQueue
from ssl_vision.methods.momentum import MomentumMethod
from ssl_vision.methods.outputs import View
from ssl_vision.objectives import InfoNCE


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
        objective: an objective of the logit margin with ``pairs="queue"``; `InfoNCE` by default.
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
    pairs = "queue"

    def __init__(self, *, queue_size: int = 4096, objective: nn.Module | None = None, **options: Any) -> None:
        objective = InfoNCE(pairs="queue") if objective is None else objective
        super().__init__(objective=objective, **options)
        if "negatives" not in self._contract.required_inputs:
            raise InputError(
                f"MoCo requires an objective that uses a queue, unlike {type(self.objective).__name__}: add "
                "--model.objective.pairs queue, or use an objective of the InfoNCE family"
            )
        if not 1 <= queue_size <= 2**24:
            raise InputError(f"queue_size must be between 1 and {2**24}, not {queue_size}")
        with self.seeded(2):
            self.queue = KeyQueue(queue_size, self.output_dim)

    def loss_of_direction(self, batch: Batch, query: View, key: View) -> Tensor:
        """Compute the objective of queries, keys and the queue."""
        loss: Tensor = self.objective(query.embeddings, key.embeddings, negatives=self.queue.keys)
        return loss

    def after_backward(self) -> None:
        """Add the keys of the batch to the queue."""
        for keys in self.key_embeddings:
            self.queue.enqueue(keys)

    def setup(self, stage: str) -> None:
        """Exclude the queue, equal in all processes, from the broadcasts of DistributedDataParallel."""
        super().setup(stage)
        self._ddp_params_and_buffers_to_ignore = ["queue.keys", "queue.oldest"]
