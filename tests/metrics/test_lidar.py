import math

import numpy as np
import pytest
import torch

from ssl_vision.metrics import LiDAR, lidar


def by_loops(views, delta):
    x = views.double().numpy()
    n, v, d = x.shape
    means = [sum(x[i, j] for j in range(v)) / v for i in range(n)]
    grand = sum(means) / n
    between, within = np.zeros((d, d)), delta * np.eye(d)
    for i in range(n):
        between += np.outer(means[i] - grand, means[i] - grand) / n
        for j in range(v):
            within += np.outer(x[i, j] - means[i], x[i, j] - means[i]) / (n * v)
    values, vectors = np.linalg.eigh(within)
    root = vectors @ np.diag(values**-0.5) @ vectors.T
    values = np.linalg.eigvalsh(root @ between @ root)
    share = values.clip(0) / values.clip(0).sum() + 1e-7
    return math.exp(-(share * np.log(share)).sum())


def random_views(seed, n=20, v=3, d=5):
    g = torch.Generator().manual_seed(seed)
    scale = torch.tensor([5.0, 2.0, 1.0, 0.5, 0.1, 0.05])[:d]
    return torch.randn(n, 1, d, generator=g) * scale + 0.3 * torch.randn(n, v, d, generator=g) + 1


@pytest.mark.parametrize("delta", [1e-4, 1.0])
@pytest.mark.parametrize(("n", "v"), [(20, 2), (20, 3), (3, 4), (2, 2)])
def test_lidar_matches_loops(n, v, delta):
    views = random_views(0, n, v)
    assert lidar(views, delta=delta).item() == pytest.approx(by_loops(views, delta), rel=1e-7)


@pytest.mark.parametrize("rank", [1, 2, 4])
def test_lidar_counts_directions_of_image_means(rank):
    """Image means are ±e_k and views do not differ, so Σ_w = δI with `rank` equal eigenvalues."""
    means = torch.zeros(8, 6)
    means[:, :rank] = torch.cat((torch.eye(rank), -torch.eye(rank))).repeat(8 // (2 * rank), 1)
    assert lidar(means[:, None].repeat(1, 2, 1)).item() == pytest.approx(rank, rel=2e-5)


def test_lidar_ignores_direction_of_augmentations_only():
    g = torch.Generator().manual_seed(0)
    views = torch.zeros(4000, 4, 3, dtype=torch.float64)
    views[..., :2] = torch.randn(4000, 1, 2, generator=g, dtype=torch.float64)
    views += 1e-3 * torch.randn(4000, 4, 3, generator=g, dtype=torch.float64)
    views[..., 2] *= 1e3
    assert lidar(views, delta=1e-9).item() == pytest.approx(2.0, abs=1e-2)


def test_lidar_ignores_order_rotation_offset_and_scale():
    views = random_views(1).double()
    plain = lidar(views).item()
    rotation = torch.linalg.qr(torch.randn(5, 5, generator=torch.Generator().manual_seed(0)).double()).Q
    for transformed in (views.flip(0), views.flip(1), views @ rotation, views + 7):
        assert lidar(transformed).item() == pytest.approx(plain, rel=1e-9)
    assert lidar(views * 10, delta=1e-2).item() == pytest.approx(plain, rel=1e-9)


def test_degenerate_views_give_nan_and_invalid_ones_raise_value_error():
    assert lidar(torch.ones(4, 2, 3)).isnan()
    assert lidar(random_views(0, n=1)).isnan()
    assert lidar(torch.full((4, 2, 3), torch.nan)).isnan()
    for views in (torch.zeros(4, 3), torch.zeros(4, 1, 3), torch.zeros(4, 2, 0)):
        with pytest.raises(ValueError, match="views: expected real"):
            lidar(views)
    for delta in (0.0, float("nan")):
        with pytest.raises(ValueError, match="delta"):
            lidar(torch.zeros(4, 2, 3), delta=delta)
        with pytest.raises(ValueError, match="delta"):
            LiDAR(delta)
    metric = LiDAR()
    for views in (
        (torch.zeros(4, 3),),
        (torch.zeros(4, 3), torch.zeros(5, 3)),
    ):
        with pytest.raises(ValueError, match="two or more"):
            metric.update(*views)
    metric.update(torch.zeros(4, 3), torch.zeros(4, 3))
    with pytest.raises(ValueError, match=r"\(2, 3\), got \(3, 3\)"):
        metric.update(*[torch.zeros(4, 3)] * 3)
