"""LiDAR, the number of directions that distinguish images despite their augmentations."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ssl_vision.errors import check
from ssl_vision.metrics.rows import RepresentationMetric, joined

EPSILON = 1e-7

_IMAGES = 64
"""Number of images whose views are converted to float64 at a time."""


class ViewScatter(NamedTuple):
    """Statistics of V views of N images from which LiDAR is computed, in float64."""

    means: Tensor
    """(N, F) mean over the views of each image."""
    within: Tensor
    """(F, F) mean of (x − μ)(x − μ)ᵀ over all views x, with μ the mean of the image's views."""


def view_scatter(views: Tensor) -> ViewScatter:
    """Return the statistics of views.

    Args:
        views: embeddings of V ≥ 2 views of N ≥ 1 images, shape (N, V, F).

    Raises:
        ValueError: the shape is invalid, there are fewer than two views, or no images.
    """
    _check_views(views)
    means: list[Tensor] = []
    within = torch.zeros(views.shape[2], views.shape[2], dtype=torch.float64, device=views.device)
    blocks: tuple[Tensor, ...] = views.split(_IMAGES)
    for block in blocks:
        wide = block.double()
        means.append(wide.mean(dim=1))
        rows = (wide - means[-1][:, None]).flatten(0, 1)
        within += rows.T @ rows
    return ViewScatter(torch.cat(means), within / (len(views) * views.shape[1]))


def joined_scatters(scatters: Sequence[ViewScatter]) -> ViewScatter:
    """Combine the statistics of parts, which must have equal numbers of views per image.

    This way, the views of all images need not be in memory at once.
    """
    means = torch.cat([scatter.means for scatter in scatters])
    weighted = [scatter.within * len(scatter.means) / len(means) for scatter in scatters]
    return ViewScatter(means, torch.stack(weighted).sum(dim=0))


def lidar(views: Tensor | ViewScatter, *, delta: float = 1e-4) -> Tensor:
    """Linear-discriminant-analysis rank, exp(−Σ_k p_k log p_k), p_k = λ_k/‖λ‖₁ + 1e-7 (Thilak et al. 2023).

    λ are the eigenvalues of Σ_w^{-1/2} Σ_b Σ_w^{-1/2}, where each image is a class:
    Σ_b = mean_i (μ_i − μ)(μ_i − μ)ᵀ and Σ_w = mean_{i,v} (x_iv − μ_i)(x_iv − μ_i)ᵀ + δI, with μ_i the mean
    of the views of image i and μ the overall mean. The value ranges from 1 to F, up to the paper's 1e-7 per
    eigenvalue. Features are not normalised, and δ has the unit of their square. Computed in float64, in
    O(N V F² + F³) time.

    Args:
        views: embeddings of V ≥ 2 views of each of N images, shape (N, V, F), or their statistics from
            `view_scatter`; the paper has N = 1000, V = 50.
        delta: δ > 0.

    Returns:
        A float64 scalar; NaN for views that are empty or not finite, or if all images have the same mean.

    Raises:
        ValueError: the shape is invalid, there are fewer than two views, or δ ≤ 0.

    Example:
        >>> import torch
        >>> views = torch.eye(4)[:, None].expand(4, 2, 4)  # two equal views of four images
        >>> round(float(lidar(views)), 2)
        3.0
    """
    check("delta", delta, above=0)
    if not isinstance(views, ViewScatter):
        _check_views(views)
        if len(views) == 0:
            return views.new_full((), torch.nan, dtype=torch.float64)
        views = view_scatter(views)
    means, within = views
    if not (means.isfinite().all() and within.isfinite().all()):
        return means.new_full((), torch.nan)
    between = means - means.mean(dim=0)
    eye = torch.eye(len(within), dtype=within.dtype, device=within.device)
    root = torch.linalg.cholesky(within + delta * eye)
    # the Cholesky root of Σ_w gives the same eigenvalues as the symmetric root
    whitened = torch.linalg.solve_triangular(root, between.T, upper=False)
    values = torch.linalg.eigvalsh(whitened @ whitened.T).clamp(min=0.0)
    share = values / values.sum() + EPSILON
    rank: Tensor = torch.special.entr(share).sum().exp()
    return rank


class LiDAR(RepresentationMetric):
    """Discriminant rank of all views; see `lidar`.

    Args:
        delta: δ > 0, as in `lidar`.
        kwargs: Options of `torchmetrics.Metric`.

    Example:
        >>> import torch
        >>> metric = LiDAR()
        >>> metric.update(torch.eye(4), torch.eye(4))
        >>> round(float(metric.compute()), 2)
        3.0
    """

    metric_name = "lidar"
    title = "LiDAR"
    sections = ()
    needs = ("views",)
    note = "This estimates the number of directions that distinguish images despite their augmentation."
    order = 290
    higher_is_better = True

    views: list[Tensor]

    def __init__(self, delta: float = 1e-4, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        check("delta", delta, above=0)
        self.delta = delta
        self.add_state("views", default=[], dist_reduce_fx="cat")

    def update(self, *views: Tensor) -> None:
        """Add embeddings of two or more views of the same N images, each of shape (N, F).

        Raises:
            ValueError: shapes do not match each other or those of earlier batches.
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
        """Return LiDAR, a float64 scalar.

        Raises:
            ValueError: there are no images.
        """
        return lidar(joined(self.views, "LiDAR: no images to measure"), delta=self.delta)


def _check_views(views: Tensor) -> None:
    if views.ndim != 3 or views.shape[1] < 2 or views.shape[2] == 0 or views.is_complex():
        raise ValueError(
            f"views: expected real (N, V, F) with V of at least 2, got {views.dtype} {tuple(views.shape)}"
        )
