"""LiDAR: how many dimensions tell images apart, in spite of their augmentations."""

from typing import Any

import torch
from torch import Tensor
from torchmetrics import Metric

EPSILON = 1e-7


_IMAGES = 64
"""Images whose views are in float64 at a time."""


def lidar(views: Tensor, *, delta: float = 1e-4) -> Tensor:
    """Linear-discriminant-analysis rank, exp(−Σ_k p_k log p_k), p_k = λ_k/‖λ‖₁ + 1e-7 (Thilak et al. 2023).

    λ are the eigenvalues of Σ_w^{-1/2} Σ_b Σ_w^{-1/2}, each image being a class of its own:
    Σ_b = mean_i (μ_i − μ)(μ_i − μ)ᵀ and Σ_w = mean_{i,v} (x_iv − μ_i)(x_iv − μ_i)ᵀ + δI, with μ_i the mean
    of image i's views and μ that of all. From 1 to F, within the paper's 1e-7 a value. Features are used as
    they are, and δ has the unit of their square. In float64, O(N V F² + F³) time.

    Args:
        views: (N, V, F): V ≥ 2 embeddings of each of N images; the paper has N = 1000, V = 50.
        delta: δ > 0.

    Returns:
        A float64 scalar; NaN for values that are not finite, none, or where all images have one mean.

    Raises:
        ValueError: Another shape, fewer than two views, or δ ≤ 0.
    """
    _check_views(views)
    if not delta > 0:
        raise ValueError(f"delta: expected more than 0, got {delta}")
    if len(views) == 0 or not views.isfinite().all():
        return views.new_full((), torch.nan, dtype=torch.float64)
    blocks: tuple[Tensor, ...] = views.split(_IMAGES)  # type: ignore[no-untyped-call]
    means = torch.cat([block.double().mean(dim=1) for block in blocks])
    between = means - means.mean(dim=0)
    eye = torch.eye(views.shape[2], dtype=means.dtype, device=views.device)
    within = torch.zeros_like(eye)
    for block, mean in zip(blocks, means.split(_IMAGES), strict=True):  # type: ignore[no-untyped-call]
        rows = (block.double() - mean[:, None]).flatten(0, 1)
        within += rows.T @ rows
    root = torch.linalg.cholesky(within / (len(views) * views.shape[1]) + delta * eye)
    # another root of Σ_w than the symmetric one: the eigenvalues are the same
    whitened = torch.linalg.solve_triangular(root, between.T, upper=False)
    values = torch.linalg.eigvalsh(whitened @ whitened.T).clamp(min=0.0)
    share = values / values.sum() + EPSILON
    rank: Tensor = torch.special.entr(share).sum().exp()
    return rank


class LiDAR(Metric):
    """Discriminant rank of all views given to it; see `lidar`.

    Args:
        delta: Of `lidar`.
        kwargs: Options of `torchmetrics.Metric`.
    """

    is_differentiable = False
    higher_is_better = True
    full_state_update = False

    views: list[Tensor]

    def __init__(self, delta: float = 1e-4, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        if not delta > 0:
            raise ValueError(f"delta: expected more than 0, got {delta}")
        self.delta = delta
        self.add_state("views", default=[], dist_reduce_fx="cat")

    def update(self, *views: Tensor) -> None:
        """Add two or more views: (N, F) embeddings of the same N images, each.

        Raises:
            ValueError: Shapes do not fit those of each other or of earlier batches.
        """
        shapes = [tuple(view.shape) for view in views]
        if len(set(shapes)) > 1 or any(len(shape) != 2 for shape in shapes) or len(shapes) < 2:
            raise ValueError(f"views: expected two or more (N, F) of one shape, got {shapes}")
        batch = torch.stack(views, dim=1).detach()
        _check_views(batch)
        if self.views and self.views[0].shape[1:] != batch.shape[1:]:
            raise ValueError(
                f"views: expected (V, F) = {tuple(self.views[0].shape[1:])}, got {tuple(batch.shape[1:])}"
            )
        self.views.append(batch)

    def compute(self) -> Tensor:
        """LiDAR, a float64 scalar.

        Raises:
            ValueError: There are no images.
        """
        batches = [self.views] if isinstance(self.views, Tensor) else self.views
        if sum(map(len, batches)) == 0:
            raise ValueError("LiDAR: no images to measure")
        return lidar(torch.cat(list(batches)), delta=self.delta)


def _check_views(views: Tensor) -> None:
    if views.ndim != 3 or views.shape[1] < 2 or views.shape[2] == 0 or views.is_complex():
        raise ValueError(
            f"views: expected real (N, V, F) with V of at least 2, got {views.dtype} {tuple(views.shape)}"
        )
