import pytest
import torch
from torch.nn import functional as F
from torchvision.transforms.v2 import functional as tv

from ssl_vision.data.resampling import gaussian, rotate, separable, triangle

PIXELS = torch.rand(4, 3, 17, 23, generator=torch.Generator().manual_seed(0))
OFF = torch.zeros(4, dtype=torch.bool)


def test_separable_is_two_matrix_products():
    generator = torch.Generator().manual_seed(1)
    rows, columns = torch.rand(4, 5, 17, generator=generator), torch.rand(4, 6, 23, generator=generator)
    expected = torch.einsum("nsh,nchw,ntw->ncst", rows.double(), PIXELS.double(), columns.double())
    assert torch.allclose(separable(PIXELS, rows, columns).double(), expected, rtol=1e-5)


@pytest.mark.parametrize("size", [1, 5, 9, 32])
def test_triangle_resizes_an_interval_like_torch(size):
    start, length = torch.tensor([0, 3, 20, 11]), torch.tensor([23, 8, 3, 1])
    weights = triangle(start, length, OFF, source=23, size=size)
    for row in range(4):
        line = PIXELS[row, :, :1, start[row] : start[row] + length[row]]
        expected = F.interpolate(line[None], size=(1, size), mode="bilinear", antialias=True)[0, :, 0]
        assert (PIXELS[row, :, 0] @ weights[row].T - expected).abs().max() < 2e-6


def test_triangle_weighs_nothing_outside_the_interval():
    weights = triangle(torch.tensor([5]), torch.tensor([4]), OFF[:1], source=23, size=8)
    assert weights[:, :, :5].abs().max() == 0
    assert weights[:, :, 9:].abs().max() == 0
    assert torch.allclose(weights.sum(2), torch.ones(1, 8))


def test_triangle_reversed_mirrors_the_result():
    start, length = torch.tensor([3]), torch.tensor([9])
    forward = triangle(start, length, OFF[:1], source=23, size=8)
    assert torch.equal(triangle(start, length, ~OFF[:1], source=23, size=8), forward.flip(1))


@pytest.mark.parametrize(("size", "kernel"), [(2, 3), (17, 3), (17, 9), (17, 23)])
def test_gaussian_blurs_like_torchvision(size, kernel):
    sigma = torch.tensor([0.1, 0.5, 1.3, 2.0])
    weights = gaussian(sigma, kernel=kernel, size=size)
    pixels = PIXELS[:, :, :size, :size]
    blurred = separable(pixels, weights, weights)
    for row in range(4):
        expected = tv.gaussian_blur(pixels[row], [kernel, kernel], [float(sigma[row])])
        assert (blurred[row] - expected).abs().max() < 2e-6


def test_rotate_turns_like_torchvision():
    degrees = torch.tensor([0.0, 15.0, -40.0, 90.0])
    turned = rotate(PIXELS, degrees)
    assert (turned[0] - PIXELS[0]).abs().max() < 1e-5
    for row in range(4):
        angle = float(degrees[row])
        expected = tv.rotate(PIXELS[row], angle, interpolation=tv.InterpolationMode.BILINEAR)
        assert (turned[row] - expected).abs().max() < 2e-5
