"""SimMoCo: MoCo without a queue, and with dual temperature."""

from typing import ClassVar

from torch import Tensor, nn

from ssl_vision.data.images import Batch
from ssl_vision.methods.momentum import MomentumMethod
from ssl_vision.objectives import DualTemperature


class SimMoCo(MomentumMethod):
    """MoCo without a queue: the negatives are the other keys of the batch (Zhang et al. 2022).

    The momentum network remains. Objectives that are not of the InfoNCE family are called with queries and
    keys as their two views. The default is `DualTemperature`, as in the paper.

    For arguments and errors see `MomentumMethod` and `Method`.

    Example:
        >>> import torch
        >>> from ssl_vision.data import Batch
        >>> method = SimMoCo(seed=0)
        >>> images = torch.zeros(4, 3, 32, 32, dtype=torch.uint8)
        >>> batch = Batch(images, torch.zeros(4), torch.arange(4), views=torch.rand(8, 3, 32, 32))
        >>> method.loss(batch).shape
        torch.Size([])
    """

    default_objective: ClassVar[type[nn.Module]] = DualTemperature

    def loss_of_direction(self, batch: Batch, queries: Tensor, keys: Tensor) -> Tensor:
        """Compute the objective of queries and keys."""
        loss: Tensor = self.objective(queries, keys, **self.objective_inputs(batch))
        return loss
