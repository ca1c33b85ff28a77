"""A 1-Lipschitz critic of pairs of representations."""

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import leaky_relu, softplus
from torch.nn.utils.parametrizations import spectral_norm
from torch.utils.checkpoint import checkpoint

from ssl_vision.objectives.linear import linear

PAIRS = 2**17
"""Maximum number of pairs evaluated at once. More are evaluated in parts, again in the backward pass."""

_SLOPE = 0.2


class Critic(nn.Module):
    """1-Lipschitz logit c(u, v) of a pair; sigmoid(c) is the probability that u and v are from one image.

        û = A u,  v̂ = B v,  c = W₃ φ(W₂ φ(W₁ [û; v̂] + b₁) + b₂) + b₃,    φ = LeakyReLU(0.2)

    where A and B also have biases. Every matrix is divided by its largest singular value, which is estimated
    by one power iteration for each call in training. While the weights change fast, the Lipschitz constant
    can therefore be slightly above 1. The annex of the RECLAIM paper maps both to 64 dimensions, followed by
    three layers, and does not state the activations. Because |c(p) − c(q)| ≤ ‖p − q‖ for pairs p and q, c
    varies by at most 2√2 over unit u and v, and by at most 2 if one of them is fixed.

    Args:
        u_dim: dimension of u.
        v_dim: dimension of v.
        width: dimension of û, v̂ and the hidden layers.

    Example:
        >>> critic = Critic(u_dim=16, v_dim=8)
        >>> critic(torch.rand(4, 16), torch.rand(4, 8)).shape
        torch.Size([4])
    """

    def __init__(self, u_dim: int, v_dim: int, *, width: int = 64) -> None:
        super().__init__()
        self.u = spectral_norm(nn.Linear(u_dim, width))
        self.v = spectral_norm(nn.Linear(v_dim, width))
        self.first = spectral_norm(nn.Linear(2 * width, width))
        self.second = spectral_norm(nn.Linear(width, width))
        self.third = spectral_norm(nn.Linear(width, 1))

    def forward(self, u: Tensor, v: Tensor) -> Tensor:
        """Compute c for u of shape (…, ``u_dim``) and v of shape (…, ``v_dim``), which are broadcast."""
        weights = self.weights(u)
        return weights.joined(weights.left(u), weights.right(v))

    def weights(self, like: Tensor) -> "Weights":
        """Return the constrained weights in the dtype of ``like``, after one power iteration."""
        layers = [getattr(self, name) for name in Weights._fields]
        return Weights(*((layer.weight.to(like.dtype), layer.bias.to(like.dtype)) for layer in layers))


class Weights(NamedTuple):
    """Constrained weights of a critic. The layer that joins u and v is split, so each row is mapped once."""

    u: tuple[Tensor, Tensor]
    v: tuple[Tensor, Tensor]
    first: tuple[Tensor, Tensor]
    second: tuple[Tensor, Tensor]
    third: tuple[Tensor, Tensor]

    def detach(self) -> "Weights":
        """Return the same weights without gradient."""
        return Weights(*((weight.detach(), bias.detach()) for weight, bias in self))

    def left(self, u: Tensor) -> Tensor:
        """Compute the contribution of u to the first hidden layer, shape (…, width)."""
        return linear(linear(u, *self.u), self.first[0].chunk(2, dim=1)[0])

    def right(self, v: Tensor) -> Tensor:
        """Compute the contribution of v, including the bias, shape (…, width)."""
        return linear(linear(v, *self.v), self.first[0].chunk(2, dim=1)[1], self.first[1])

    def joined(self, left: Tensor, right: Tensor) -> Tensor:
        """Compute c from both contributions, of their broadcast shape without the last dimension."""
        hidden = leaky_relu(left + right, _SLOPE)
        hidden = leaky_relu(linear(hidden, *self.second), _SLOPE)
        return linear(hidden, *self.third)[..., 0]


def mean_over_negatives(
    weights: Weights, left: Tensor, right: Tensor, counts: Tensor
) -> tuple[Tensor, Tensor]:
    """Compute the mean softplus(c) and the mean c over the negatives of each anchor; 0 without negatives.

    Args:
        weights: weights of the critic.
        left: contributions of u from ``Weights.left``, shape (N or 1, K or 1, width).
        right: contributions of v from ``Weights.right``, in the same shape.
        counts: mask of the pairs to include, shape (N, K).

    Returns:
        The two means, shape (N,) each; only the first has a gradient.
    """
    anchors, negatives = counts.shape

    def part(left: Tensor, right: Tensor, counts: Tensor) -> tuple[Tensor, Tensor]:
        logits = weights.joined(left, right)
        number = counts.sum(dim=1).clamp(min=1)
        return (softplus(logits) * counts).sum(dim=1) / number, (logits.detach() * counts).sum(dim=1) / number

    size = max(1, PAIRS // negatives)
    if anchors <= size:
        return part(left, right, counts)
    parts = [
        checkpoint(
            part,
            *(side if len(side) == 1 else side[start : start + size] for side in (left, right)),
            counts[start : start + size],
            use_reentrant=False,
        )
        for start in range(0, anchors, size)
    ]
    losses, logits = zip(*parts, strict=True)
    return torch.cat(losses), torch.cat(logits)
