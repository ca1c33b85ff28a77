"""Base classes of objectives: the interface for methods, callbacks and other objectives."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ssl_vision.objectives.gather import gather_batch
from ssl_vision.objectives.logit_margin import autocast_disabled


class Objective(nn.Module):
    """Base class of all objectives, which compute a loss of the embeddings of two views.

    A subclass defines

        forward(z1, z2, *, negatives=None, **required_inputs) -> loss

    where ``z1`` and ``z2`` are the embeddings of view 1 and view 2 at any scale, shape (N, D). ``negatives``
    are the embeddings of a queue, shape (K, D), for objectives that use one. The loss is a scalar. All other
    methods do nothing by default.

    Attributes:
        required_inputs: names of the keyword arguments of ``forward`` that the method has to pass:
            ``"labels"`` and ``"indices"`` of the images, int64 of shape (N,) each; ``"features"`` and
            ``"shallow"``, the outputs of the encoder and of its third stage, of shape (2, N, F) for both
            views; or ``"negatives"``.
        gather: True if the objective itself gathers the embeddings of all processes into one batch, as all
            objectives of this package and subclasses of `TwoViews` do. The methods do not gather: with False,
            each process computes the loss of its own batch, and training on several processes warns.
        reads_epoch: True if `set_epoch` changes Python values that the loss reads, so that a step recorded as
            a CUDA graph must be recorded again in each epoch. Tensors that it changes in place do not count.
        has_margin_loss: True if the submodule ``margin_loss`` maps the `Anchors` of a batch to their losses.

    Example:
        >>> class Attraction(Objective):
        ...     def forward(self, z1, z2):
        ...         return (z1 - z2).square().sum(dim=1).mean()
        >>> objective = Attraction()
        >>> objective(torch.zeros(4, 2), torch.ones(4, 2))
        tensor(2.)
        >>> objective.required_inputs, objective.statistics()
        ((), {})
    """

    required_inputs: tuple[str, ...] = ()
    gather: bool = False
    reads_epoch: bool = True
    has_margin_loss: bool = False

    @property
    def embedding_objective(self) -> "Objective":
        """The objective itself, or the objective of embeddings that it extends."""
        return self

    def use_pairs(self, accepted: Sequence[str]) -> None:
        """Compare the pairs of a method, which is called once before training.

        Args:
            accepted: values of ``pairs`` that the method supports, its default first.

        Raises:
            ValueError: the objective compares other pairs.
        """

    def prepare(self, *, images: int | None, embeddings: int, features: int, shallow: int | None) -> None:
        """Prepare for training, before the optimizer is created and the module is moved to a device.

        Args:
            images: number of training images, or None if it is unknown.
            embeddings: width of the embeddings.
            features: width of the encoder's output.
            shallow: width of its third stage, or None if ``required_inputs`` does not name it.

        Raises:
            ValueError: the objective cannot be trained with these sizes.
        """

    def set_epoch(self, epoch: int) -> None:
        """Set the current epoch, counted from 0."""

    def statistics(self) -> dict[str, Tensor]:
        """Return statistics of the last call as detached scalars on its device, without a synchronisation."""
        return {}

    def anchor_weights(self) -> Tensor:
        """Return the gradient weight W of each anchor of the last call, detached; empty without weights."""
        return torch.empty(0)


class PlainObjective(Objective):
    """Wrapper of a module that is not an `Objective`, such as a loss of another library.

    The module is not registered as a submodule, so that it can be a submodule of another module.

    Args:
        loss: module that maps the embeddings of both views to a scalar.
    """

    reads_epoch = False

    def __init__(self, loss: nn.Module) -> None:
        super().__init__()
        self._loss = (loss,)

    def forward(self, z1: Tensor, z2: Tensor) -> Tensor:
        """Compute the loss of the module."""
        value: Tensor = self._loss[0](z1, z2)
        return value

    def _apply(self, function: Callable[..., Any], recurse: bool = True) -> "PlainObjective":
        self._loss[0]._apply(function, recurse)  # type: ignore[no-untyped-call]
        super()._apply(function, recurse)  # type: ignore[no-untyped-call]
        return self


def as_objective(module: nn.Module) -> Objective:
    """Return the module itself if it is an `Objective`, otherwise a `PlainObjective` around it.

    For the result of ``torch.compile``, this is done with the module that was compiled.

    Example:
        >>> loss = as_objective(torch.nn.MSELoss())
        >>> loss(torch.zeros(4, 2), torch.ones(4, 2))
        tensor(1.)
        >>> loss.required_inputs, loss.statistics()
        ((), {})
    """
    module = getattr(module, "_orig_mod", module)
    return module if isinstance(module, Objective) else PlainObjective(module)


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
