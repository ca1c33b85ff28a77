import pytest
import torch

from ssl_vision.metrics import Alignment


@pytest.mark.parametrize("gamma", [1.0, 2.0, 3.0])
def test_alignment_matches_loop_at_any_scale(gamma):
    g = torch.Generator().manual_seed(0)
    x = torch.randn(17, 5, generator=g)
    y = x + 0.5 * torch.randn(17, 5, generator=g)
    expected = 0.0
    for a, b in zip(x.double(), y.double(), strict=True):
        expected += float(((a / a.norm() - b / b.norm()) ** 2).sum() ** (gamma / 2)) / 17
    metric = Alignment(gamma)
    metric.update(x[:4], y[:4])
    metric.update(x[4:] * 7, y[4:] * 0.1)
    assert metric.compute().item() == pytest.approx(expected, rel=1e-6)


def test_alignment_of_identical_and_opposite_views():
    x = torch.randn(9, 4, generator=torch.Generator().manual_seed(0))
    for y, expected in ((x, 0.0), (-x, 4.0)):
        metric = Alignment()
        metric.update(x, y)
        assert metric.compute().item() == pytest.approx(expected, abs=1e-6)


def test_alignment_of_close_views_keeps_precision():
    angle = torch.tensor(1e-4, dtype=torch.float64)  # float32 would round 2 − 2cos to zero
    metric = Alignment()
    metric.update(torch.tensor([[1.0, 0.0]]), torch.stack((angle.cos(), angle.sin()))[None])
    assert metric.compute().item() == pytest.approx(1e-8, rel=1e-3)


def test_mismatched_shapes_and_invalid_gamma_raise_value_error():
    metric = Alignment()
    with pytest.raises(ValueError, match=r"\(3, 2\) and \(2, 2\)"):
        metric.update(torch.ones(3, 2), torch.ones(2, 2))
    with pytest.raises(ValueError, match=r"gamma must be above 0, got 0"):
        Alignment(0)
