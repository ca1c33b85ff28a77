"""Base class of objectives that are not functions of the logit margin."""

import torch
from torch import Tensor

from ssl_vision.objectives.gather import gather_batch
from ssl_vision.objectives.logit_margin import autocast_disabled
from ssl_vision.objectives.objective import Objective


class TwoViews(Objective):
    """Base class of losses of a whole batch, which subclasses define in ``loss``.

    Args:
        gather: use the embeddings of all processes as one batch, as in ``Contrastive``; the default.

    Example:
        >>> class Attraction(TwoViews):
        ...     def loss(self, z1, z2):
        ...         value = (z1 - z2).square().sum(dim=1).mean()
        ...         self.record(distance=value)
        ...         return value
        >>> objective = Attraction()
        >>> objective(torch.zeros(4, 2), torch.ones(4, 2))
        tensor(2.)
        >>> objective.statistics()
        {'distance': tensor(2.)}
    """

    reads_epoch = False

    def __init__(self, *, gather: bool = True) -> None:
        super().__init__()
        self.gather = gather
        self._stats: dict[str, Tensor] = {}

    def forward(self, z1: Tensor, z2: Tensor) -> Tensor:
        """Compute the loss of a batch.

        On several processes, value and gradient are those of one process with the whole batch.

        Args:
            z1: embeddings of view 1, shape (N, D), with at least 2 images over all processes.
            z2: embeddings of view 2, shape (N, D).

        Returns:
            A scalar in float32 (float64 for float64 input) under any autocast.

        Raises:
            ValueError: an argument has an invalid shape or dtype; the message names it.
        """
        gathered = gather_batch(z1, z2, gathers=self.gather)
        with autocast_disabled(z1.device):
            return self.loss(*(z if z.dtype == torch.float64 else z.float() for z in gathered))

    def loss(self, z1: Tensor, z2: Tensor) -> Tensor:
        """Compute the loss of embeddings of shape (N, D) in float32 or float64, and call ``record``."""
        raise NotImplementedError

    def record(self, **seen: Tensor) -> None:
        """Store detached scalars of this call for ``statistics``."""
        self._stats = {name: value.detach() for name, value in seen.items()}

    def statistics(self) -> dict[str, Tensor]:
        """Return statistics of the last call as detached scalars on its device, without a synchronisation.

        They are ``alignment``, the mean s⁺, and those that the class documents. The dict is empty before the
        first call.
        """
        return dict(self._stats)
