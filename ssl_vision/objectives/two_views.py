"""Base class of objectives that are not functions of the logit margin."""

import torch
from torch import Tensor

from ssl_vision.objectives.gather import gather_batch
from ssl_vision.objectives.logit_margin import autocast_disabled
from ssl_vision.objectives.objective import Objective


class TwoViews(Objective):
    """A loss of the whole batch's two views; a subclass says which in ``loss``.

    Args:
        gather: across processes, as in ``Contrastive``.

    Example:
        >>> class Attraction(TwoViews):
        ...     def loss(self, z1, z2):
        ...         value = (z1 - z2).square().sum(dim=1).mean()
        ...         self.record(distance=value)
        ...         return value
        >>> objective = Attraction(gather=True)
        >>> objective(torch.zeros(4, 2), torch.ones(4, 2))
        tensor(2.)
        >>> objective.statistics()
        {'distance': tensor(2.)}
    """

    def __init__(self, *, gather: bool) -> None:
        super().__init__()
        self.gather = gather
        self._stats: dict[str, Tensor] = {}

    def forward(self, z1: Tensor, z2: Tensor) -> Tensor:
        """The loss of a batch; with several processes value and gradient are those of one that has it whole.

        Args:
            z1: (N, D) embeddings of view 1, at least 2 images over all processes.
            z2: (N, D) embeddings of view 2.

        Returns:
            A scalar, float32 (float64 for float64 input), whatever the surrounding autocast.

        Raises:
            ValueError: naming the argument and the shape that cannot be used.
        """
        whole = gather_batch(z1, z2, gathers=self.gather)
        with autocast_disabled(z1.device):
            return self.loss(*(z if z.dtype == torch.float64 else z.float() for z in whole))

    def loss(self, z1: Tensor, z2: Tensor) -> Tensor:
        """The loss of the whole batch's (N, D) embeddings, in float32 or float64; calls ``record``."""
        raise NotImplementedError

    def record(self, **seen: Tensor) -> None:
        """Keeps scalars of this call for ``statistics``, detached."""
        self._stats = {name: value.detach() for name, value in seen.items()}

    def statistics(self) -> dict[str, Tensor]:
        """What the last call was like, as detached scalars on its device, without a synchronisation.

        ``alignment``, mean s⁺, and what the class names under Statistics. Empty before the first call.
        """
        return dict(self._stats)
