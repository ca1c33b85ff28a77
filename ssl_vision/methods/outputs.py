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


class ViewOutputs(NamedTuple):
    """Outputs of the network for V views of the N images of a batch.

    Example:
        >>> import torch
        >>> outputs = ViewOutputs(embeddings=torch.rand(2, 4, 128), features=torch.rand(2, 4, 512))
        >>> first, second = outputs.embeddings
        >>> first.shape
        torch.Size([4, 128])
    """

    embeddings: Tensor
    """(V, N, output_dim), not normalised."""
    features: Tensor
    """(V, N, F) features of the encoder."""
    shallow: Tensor | None = None
    """(V, N, F3) features of the encoder's third stage, if the objective requires them."""
