"""LiDAR: how many dimensions tell images apart, in spite of their augmentations."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torchmetrics import Metric

from ssl_vision.descriptions import describe

EPSILON = 1e-7

_IMAGES = 64
"""Images whose views are in float64 at a time."""

describe(
    "lidar",
    title="LiDAR",
    direction="higher",
    sections=(),
    needs=("views",),
    note="directions that tell images apart in spite of their augmentations",
    order=290,
)


class ViewScatter(NamedTuple):
    """The statistics of V views of N images that LiDAR is a function of, in float64."""

    means: Tensor
    """(N, F) mean over the views of each image."""
    within: Tensor
    """(F, F) mean of (x − μ)(x − μ)ᵀ over all views x, with μ the mean of the image's views."""


def view_scatter(views: Tensor) -> ViewScatter:
    """Return the statistics of views.

    Args:
        views: embeddings of V ≥ 2 views of N ≥ 1 images, shape (N, V, F).

    Raises:
        ValueError: Another shape, fewer than two views, or no image.
    """
    _check_views(views)
    means: list[Tensor] = []
    within = torch.zeros(views.shape[2], views.shape[2], dtype=torch.float64, device=views.device)
    blocks: tuple[Tensor, ...] = views.split(_IMAGES)  # type: ignore[no-untyped-call]
    for block in blocks:
        wide = block.double()
        means.append(wide.mean(dim=1))
        rows = (wide - means[-1][:, None]).flatten(0, 1)
        within += rows.T @ rows
    return ViewScatter(torch.cat(means), within / (len(views) * views.shape[1]))


def joined(scatters: Sequence[ViewScatter]) -> ViewScatter:
    """Return the statistics of all images from those of parts, which have equal numbers of views.

    The views of all images never have to be in memory at once.
    """
    means = torch.cat([scatter.means for scatter in scatters])
    weighted = [scatter.within * len(scatter.means) / len(means) for scatter in scatters]
    return ViewScatter(means, torch.stack(weighted).sum(dim=0))


def lidar(views: Tensor | ViewScatter, *, delta: float = 1e-4) -> Tensor:
    """Linear-discriminant-analysis rank, exp(−Σ_k p_k log p_k), p_k = λ_k/‖λ‖₁ + 1e-7 (Thilak et al. 2023).

    λ are the eigenvalues of Σ_w^{-1/2} Σ_b Σ_w^{-1/2}, each image being a class of its own:
    Σ_b = mean_i (μ_i − μ)(μ_i − μ)ᵀ and Σ_w = mean_{i,v} (x_iv − μ_i)(x_iv − μ_i)ᵀ + δI, with μ_i the mean
    of image i's views and μ that of all. From 1 to F, within the paper's 1e-7 a value. Features are used as
    they are, and δ has the unit of their square. In float64, O(N V F² + F³) time.

    Args:
        views: embeddings of V ≥ 2 views of each of N images, shape (N, V, F), or their statistics from
            `view_scatter`; the paper has N = 1000, V = 50.
        delta: δ > 0.

    Returns:
        A float64 scalar; NaN for values that are not finite, none, or where all images have one mean.

    Raises:
        ValueError: Another shape, fewer than two views, or δ ≤ 0.

    Example:
        >>> import torch
        >>> views = torch.eye(4)[:, None].expand(4, 2, 4)  # two equal views of four images
        >>> round(float(lidar(views)), 2)
        3.0
    """
    if not isinstance(views, ViewScatter):
        _check_views(views)
    if not delta > 0:
        raise ValueError(f"delta: expected more than 0, got {delta}")
    if not isinstance(views, ViewScatter):
        if len(views) == 0:
            return views.new_full((), torch.nan, dtype=torch.float64)
        views = view_scatter(views)
    means, within = views
    if not (means.isfinite().all() and within.isfinite().all()):
        return means.new_full((), torch.nan)
    between = means - means.mean(dim=0)
    eye = torch.eye(len(within), dtype=within.dtype, device=within.device)
    root = torch.linalg.cholesky(within + delta * eye)
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

    Example:
        >>> import torch
        >>> metric = LiDAR()
        >>> metric.update(torch.eye(4), torch.eye(4))
        >>> round(float(metric.compute()), 2)
        3.0
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
