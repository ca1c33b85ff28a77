"""SimMoCo: MoCo without a queue, and with dual temperature."""

from typing import Any

from torch import Tensor, nn

from ssl_vision.data.images import Batch
from ssl_vision.methods.momentum import MomentumMethod
from ssl_vision.methods.outputs import View
from ssl_vision.objectives import DualTemperature


class SimMoCo(MomentumMethod):
    """MoCo without a queue: the negatives are the other keys of the batch (Zhang et al. 2022).

    The momentum network remains. With `DualTemperature`, the default, this is the paper's SimMoCo; with
    ``predictor``, ``symmetric``, ``momentum_schedule="cosine"`` and `InfoNCE` it is MoCo v3 (Chen et al.
    2021), up to that method's factor 4τ on the loss; for vision transformers, set ``head_layers=3``, too.
    Objectives of the InfoNCE family need ``pairs="keys"``; other objectives of two views are accepted as they
    are.

    Args:
        objective: called with queries and keys; `DualTemperature` with ``pairs="keys"`` by default.
        **options: those of `MomentumMethod` and `Method`.

    Raises:
        InputError: as `MomentumMethod`.

    Example:
        >>> import torch
        >>> from ssl_vision.data import Batch
        >>> method = SimMoCo(seed=0)
        >>> images = torch.zeros(4, 3, 32, 32, dtype=torch.uint8)
        >>> batch = Batch(images, torch.zeros(4), torch.arange(4), views=torch.rand(8, 3, 32, 32))
        >>> method.loss(batch).shape
        torch.Size([])
    """

    def __init__(self, *, objective: nn.Module | None = None, **options: Any) -> None:
        super().__init__(
            objective=DualTemperature(pairs="keys") if objective is None else objective, **options
        )

    def loss_of_direction(self, batch: Batch, query: View, key: View) -> Tensor:
        """Compute the objective of queries and keys."""
        inputs = self.objective_inputs(batch, query, key)
        loss: Tensor = self.objective(query.embeddings, key.embeddings, **inputs)
        return loss
