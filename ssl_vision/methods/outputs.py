"""Outputs of the network of a method."""

from typing import NamedTuple

from torch import Tensor


class Layers(NamedTuple):
    """Representations of images in the three layers that are evaluated.

    Example:
        >>> import torch
        >>> features, hidden, embeddings = torch.rand(4, 512), torch.rand(4, 512), torch.rand(4, 128)
        >>> layers = Layers(backbone=features, hidden=hidden, projector=embeddings)
        >>> layers.projector.shape
        torch.Size([4, 128])
    """

    backbone: Tensor
    """(N, F) features of the encoder, which are what pretraining is for."""
    hidden: Tensor
    """(N, hidden_dim) activations of the projection head's last hidden layer, after its ReLU."""
    projector: Tensor
    """(N, output_dim) embeddings that the objective receives, not normalised."""


class View(NamedTuple):
    """Output of the network for one view of a batch.

    Example:
        >>> import torch
        >>> view = View(embeddings=torch.rand(4, 128), features=torch.rand(4, 512))
        >>> view.embeddings.shape, view.shallow
        (torch.Size([4, 128]), None)
    """

    embeddings: Tensor
    """(N, output_dim), not normalised."""
    features: Tensor
    """(N, F) features of the encoder."""
    shallow: Tensor | None = None
    """(N, F3) features of the encoder's third stage, if the objective requires them."""

    def tensors(self) -> tuple[Tensor, ...]:
        """Return the fields that are not None."""
        return tuple(field for field in self if field is not None)
