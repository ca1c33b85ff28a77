"""A critic of pairs that cannot change faster than its input."""

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import leaky_relu, softplus
from torch.nn.utils.parametrizations import spectral_norm
from torch.utils.checkpoint import checkpoint

from ssl_vision.objectives.linear import linear

PAIRS = 2**17
"""Most pairs of anchor and negative that are evaluated at once; more are evaluated in parts, twice."""

_SLOPE = 0.2
_LAYERS = ("u", "v", "first", "second", "third")


class Critic(nn.Module):
    """A 1-Lipschitz logit c(u, v) of a pair: sigmoid(c) is the probability that u and v are of one image.

        û = A u,  v̂ = B v,  c = W₃ φ(W₂ φ(W₁ [û; v̂] + b₁) + b₂) + b₃,    φ = LeakyReLU(0.2)

    where A and B have biases, too. Every matrix is divided by its largest singular value, which a power
    iteration follows, one turn for each call in training: while the weights move fast, the constant can be
    somewhat above 1 (RECLAIM paper, annex: a map of each to 64 dimensions, then three layers; which
    activations, it does not say). As |c(p) − c(q)| ≤ ‖p − q‖ for pairs p and q, c varies by at most 2√2 over
    unit u and v, and by 2 if one of them is fixed.

    Args:
        u_dim: of u.
        v_dim: of v.
        width: of û, v̂ and the hidden layers.

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
        """c of (…, ``u_dim``) and (…, ``v_dim``), whose leading shapes broadcast."""
        weights = self.weights(u)
        return weights.joined(weights.left(u), weights.right(v))

    def weights(self, like: Tensor) -> "Weights":
        """The constrained weights of now, in the dtype of ``like``: one turn of the power iteration."""
        layers = [getattr(self, name) for name in _LAYERS]
        return Weights(*((layer.weight.to(like.dtype), layer.bias.to(like.dtype)) for layer in layers))


class Weights(NamedTuple):
    """A critic whose weights are held; the layer that joins u and v is split, so each row is mapped once."""

    u: tuple[Tensor, Tensor]
    v: tuple[Tensor, Tensor]
    first: tuple[Tensor, Tensor]
    second: tuple[Tensor, Tensor]
    third: tuple[Tensor, Tensor]

    def left(self, u: Tensor) -> Tensor:
        """What u adds to the first hidden layer, (…, width)."""
        return linear(linear(u, *self.u), self.first[0].chunk(2, dim=1)[0])

    def right(self, v: Tensor) -> Tensor:
        """What v adds to it, (…, width), with the bias."""
        return linear(linear(v, *self.v), self.first[0].chunk(2, dim=1)[1], self.first[1])

    def joined(self, left: Tensor, right: Tensor) -> Tensor:
        """c, of the broadcast shape of the two without their last dimension."""
        hidden = leaky_relu(left + right, _SLOPE)
        hidden = leaky_relu(linear(hidden, *self.second), _SLOPE)
        return linear(hidden, *self.third)[..., 0]


def mean_over_negatives(
    weights: Weights, left: Tensor, right: Tensor, counts: Tensor
) -> tuple[Tensor, Tensor]:
    """Mean softplus(c) and mean c over the negatives of each anchor, 0 for an anchor without negatives.

    Args:
        weights: weights of the critic.
        left: what u adds to the first layer, shape (N or 1, K or 1, width), from ``Weights.left``.
        right: what v adds to it, likewise, from ``Weights.right``.
        counts: True for the pairs that count, shape (N, K).

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
