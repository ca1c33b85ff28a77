"""SimCLR and SimCo: an objective on the embeddings of two views by one network."""

from typing import Any, Literal

from torch import Tensor

from ssl_vision.data.images import Batch
from ssl_vision.methods.method import Method
from ssl_vision.objectives import DualTemperature


class SimCLR(Method):
    """Contrastive pretraining of any encoder with any objective (Chen et al. 2020).

    Both views pass through one encoder and one projection head, and the objective compares their embeddings.
    The defaults are those of the MACL paper: ResNet-18 with the stem for small images, and Adam with a
    learning rate of 1e-3. The projection head (Linear without bias, BatchNorm, ReLU, Linear) is that of the
    code that the paper builds on.

    For arguments and errors see `Method`.

    Example:
        >>> import torch
        >>> from ssl_vision.data import Batch
        >>> from ssl_vision.objectives import MACL
        >>> method = SimCLR(objective=MACL(), seed=0)
        >>> images = torch.zeros(4, 3, 32, 32, dtype=torch.uint8)
        >>> batch = Batch(images, torch.zeros(4), torch.arange(4), views=torch.rand(8, 3, 32, 32))
        >>> method.loss(batch).shape
        torch.Size([])
    """

    def loss(self, batch: Batch) -> Tensor:
        """Compute the objective of the embeddings of both views."""
        outputs = self.embed_views(batch.views)
        loss: Tensor = self.objective(*outputs.embeddings, **self.objective_inputs(batch, outputs))
        return loss


class SimCo(SimCLR):
    """MoCo without a queue and a momentum network (Zhang et al. 2022).

    This is `SimCLR` with the paper's defaults: dual temperature, negatives from the other view only, and
    BatchNorm over each view.

    Args:
        bn: as in `Method`.
        **options: those of `Method`.

    Example:
        >>> SimCo(seed=0).objective.pairs
        'cross'
    """

    default_objective = DualTemperature
    pairs = ("cross", "keys")

    def __init__(self, *, bn: Literal["joint", "per_view"] = "per_view", **options: Any) -> None:
        super().__init__(bn=bn, **options)
