"""SimMoCo and MoCo v3: queries and keys of the same batch, without a queue."""

from typing import Any, ClassVar, Literal

from torch import Tensor, nn

from ssl_vision.data.images import Batch
from ssl_vision.methods.momentum import MomentumMethod, Schedule
from ssl_vision.methods.projection import HeadBatchNorm, projection_head
from ssl_vision.objectives import DualTemperature, InfoNCE


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


class MoCoV3(SimMoCo):
    """Momentum contrast, version 3 (Chen et al. 2021, An Empirical Study of Training Self-Supervised ViTs).

    Queries pass a second MLP, the predictor. Its hidden layer has ``hidden_dim`` units and the BatchNorm of
    ``head_batch_norm``, which uses the whole batch of one view, whatever ``bn`` and ``chunk_size`` are. The
    default objective is `InfoNCE`, without the authors' factor 4τ. For vision transformers, set
    ``head_layers=3``.

    Args:
        momentum_schedule: as in `MomentumMethod`.
        symmetric: as in `MomentumMethod`.
        head_batch_norm: as in `Method`.
        bn: as in `Method`.
        **options: those of `MomentumMethod` and `Method`.

    Attributes:
        predictor: The predictor.

    Raises:
        InputError: as `MomentumMethod`.

    Example:
        >>> import torch
        >>> from ssl_vision.data import Batch
        >>> method = MoCoV3(seed=0)
        >>> images = torch.zeros(4, 3, 32, 32, dtype=torch.uint8)
        >>> batch = Batch(images, torch.zeros(4), torch.arange(4), views=torch.rand(8, 3, 32, 32))
        >>> method.loss(batch).shape
        torch.Size([])
    """

    default_objective = InfoNCE

    def __init__(
        self,
        *,
        momentum_schedule: Schedule = "cosine",
        symmetric: bool = True,
        head_batch_norm: HeadBatchNorm = "all",
        bn: Literal["joint", "per_view"] = "per_view",
        **options: Any,
    ) -> None:
        super().__init__(
            momentum_schedule=momentum_schedule,
            symmetric=symmetric,
            head_batch_norm=head_batch_norm,
            bn=bn,
            **options,
        )
        with self.seeded(1):
            self.predictor = projection_head(
                self.output_dim, self.hidden_dim, self.output_dim, head_batch_norm
            )
