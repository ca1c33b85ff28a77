"""A linear map whose backward pass ignores autocast."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Compute x Wᵀ + b, with its backward pass in the dtype of the inputs.

    A backward pass that is called inside ``torch.autocast`` computes the gradient of
    `torch.nn.functional.linear` in half precision, even if its forward pass ran with autocast disabled.
    The gradient of this function is exact, and differentiable again. Its forward pass follows autocast.

    Args:
        x: inputs, shape (…, I).
        weight: W, shape (O, I).
        bias: b, shape (O,).

    Returns:
        The product, shape (…, O).

    Example:
        >>> a, b = torch.ones(2, 3), torch.ones(4, 3)
        >>> linear(a, b).shape
        torch.Size([2, 4])
    """
    result: Tensor = _Linear.apply(x, weight, bias)
    return result


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:  # type: ignore[override]
        ctx.save_for_backward(x, weight)
        return F.linear(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        x, weight = ctx.saved_tensors
        needs_x, needs_weight, needs_bias = ctx.needs_input_grad
        rows = gradient.reshape(-1, len(weight))
        with torch.autocast(device_type=gradient.device.type, enabled=False):
            return (
                linear(gradient, weight.T) if needs_x else None,
                linear(rows.T, x.reshape(-1, x.shape[-1]).T) if needs_weight else None,
                rows.sum(dim=0) if needs_bias else None,
            )
