"""The contract of an objective: what a method, a callback and another objective may ask of it."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn


class Objective(nn.Module):
    """Base class of all objectives: a loss of the embeddings of two views of a batch.

    A subclass defines

        forward(z1, z2, *, negatives=None, **required_inputs) -> loss

    where ``z1`` and ``z2`` are the (N, D) embeddings of view 1 and view 2 at any scale, ``negatives`` the
    (K, D) embeddings of a queue for objectives that use one, and the loss is a scalar. Everything else has a
    default that does nothing.

    Attributes:
        required_inputs: names of the keyword arguments of ``forward`` that the method has to pass:
            ``"labels"`` and ``"indices"``, (N,) int64 each, of the images; ``"features"`` and ``"shallow"``,
            a pair with one (N, F) tensor for each view, of the encoder's output and of its third stage; or
            ``"negatives"``.
        gather: True if the objective takes the embeddings of all processes as one batch.

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

    @property
    def embedding_objective(self) -> "Objective":
        """The objective itself, or the one of embeddings alone that it adds to."""
        return self

    def prepare(self, *, images: int | None, embeddings: int, features: int, shallow: int | None) -> None:
        """Prepare for training, before the optimizer is made and the module is moved to a device.

        Args:
            images: number of training images, or None if it is unknown.
            embeddings: width of the embeddings.
            features: width of the encoder's output.
            shallow: width of its third stage, or None if ``required_inputs`` does not name it.

        Raises:
            ValueError: the objective cannot be trained so.
        """

    def set_epoch(self, epoch: int) -> None:
        """Note which epoch is running, counted from 0."""

    def statistics(self) -> dict[str, Tensor]:
        """Describe the last call by detached scalars on its device, without a synchronisation."""
        return {}

    def anchor_weights(self) -> Tensor:
        """Gradient weight W of each anchor of the last call, detached; empty where anchors have none."""
        return torch.empty(0)


class PlainObjective(Objective):
    """An objective of a module that is not an `Objective`, such as a loss of another library.

    The module is not registered as a submodule, so that it can be one of something else.

    Args:
        loss: called with the embeddings of both views, returns a scalar.
    """

    def __init__(self, loss: nn.Module) -> None:
        super().__init__()
        self._loss = (loss,)

    def forward(self, z1: Tensor, z2: Tensor) -> Tensor:
        """The module's loss."""
        value: Tensor = self._loss[0](z1, z2)
        return value

    def _apply(self, function: Callable[..., Any], recurse: bool = True) -> "PlainObjective":
        self._loss[0]._apply(function, recurse)  # type: ignore[no-untyped-call]
        super()._apply(function, recurse)  # type: ignore[no-untyped-call]
        return self


def as_objective(module: nn.Module) -> Objective:
    """Return the module itself if it is an `Objective`, otherwise a `PlainObjective` of it.

    Example:
        >>> loss = as_objective(torch.nn.MSELoss())
        >>> loss(torch.zeros(4, 2), torch.ones(4, 2))
        tensor(1.)
        >>> loss.required_inputs, loss.statistics()
        ((), {})
    """
    return module if isinstance(module, Objective) else PlainObjective(module)
