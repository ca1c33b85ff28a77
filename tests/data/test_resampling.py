import pytest
import torch
from torch.nn import functional as F
from torchvision.transforms.v2 import functional as tv

from ssl_vision.data.augment.operations import Taps, gaussian, rotate, separable, triangle

PIXELS = torch.rand(4, 3, 17, 23, generator=torch.Generator().manual_seed(0))
OFF = torch.zeros(4, dtype=torch.bool)


def dense(taps, source):
    """Return the weights as dense matrices (N, T, source)."""
    return torch.zeros(*taps.weight.shape[:2], source).scatter_add_(2, taps.pixel, taps.weight)


@pytest.mark.parametrize("views", [1, 2])
def test_separable_matches_two_matrix_products(views):
    generator = torch.Generator().manual_seed(1)

    def taps(source, size):
        shape = (4 * views, size, 3)
        pixel = torch.randint(0, source, shape, generator=generator)
        return Taps(pixel, torch.rand(shape, generator=generator))

    rows, columns = taps(17, 5), taps(23, 6)
    images = PIXELS.repeat_interleave(views, dim=0).double()
    matrices = dense(rows, 17).double(), dense(columns, 23).double()
    expected = torch.einsum("nsh,nchw,ntw->ncst", matrices[0], images, matrices[1])
    assert torch.allclose(separable(PIXELS, rows, columns).double(), expected, rtol=1e-5)


@pytest.mark.parametrize("size", [1, 5, 9, 32])
def test_triangle_resizes_an_interval_like_torch(size):
    start, length = torch.tensor([0, 3, 20, 11]), torch.tensor([23, 8, 3, 1])
    weights = dense(triangle(start, length, OFF, source=23, size=size), 23)
    for row in range(4):
        line = PIXELS[row, :, :1, start[row] : start[row] + length[row]]
        expected = F.interpolate(line[None], size=(1, size), mode="bilinear", antialias=True)[0, :, 0]
        assert (PIXELS[row, :, 0] @ weights[row].T - expected).abs().max() < 2e-6


def test_triangle_weights_are_zero_outside_interval():
    weights = dense(triangle(torch.tensor([5]), torch.tensor([4]), OFF[:1], source=23, size=8), 23)
    assert weights[:, :, :5].abs().max() == 0
    assert weights[:, :, 9:].abs().max() == 0
    assert torch.allclose(weights.sum(2), torch.ones(1, 8))


def test_reversed_triangle_mirrors_taps():
    start, length = torch.tensor([3]), torch.tensor([9])
    forward = triangle(start, length, OFF[:1], source=23, size=8)
    backward = triangle(start, length, ~OFF[:1], source=23, size=8)
    assert all(torch.equal(taps, mirrored.flip(1)) for taps, mirrored in zip(backward, forward, strict=True))


@pytest.mark.parametrize("source", [20, 28, 33, 96])
def test_triangle_has_two_taps_for_enlarging_and_enough_for_shrinking(source):
    length = torch.arange(1, source + 1)
    for size in (source // 3, source // 2, source - 1, source, source + 5):
        taps = triangle(
            torch.zeros_like(length), length, torch.zeros_like(length).bool(), source=source, size=size
        )
        assert (taps.weight.shape[2] == 2) == (size >= source)
        # The expected weights cover every pixel within the half-width of the filter.
        scale = (length / size).double().view(-1, 1, 1)
        centre = scale * (torch.arange(size).view(-1, 1) + 0.5)
        expected = 1 - (torch.arange(source) + 0.5 - centre).abs() / scale.clamp(min=1)
        expected = expected.clamp(min=0) * (torch.arange(source) < length.view(-1, 1, 1))
        expected /= expected.sum(dim=2, keepdim=True)
        assert (dense(taps, source) - expected).abs().max() < 2e-5


@pytest.mark.parametrize(("size", "kernel"), [(2, 3), (17, 3), (17, 9), (17, 23)])
def test_gaussian_blurs_like_torchvision(size, kernel):
    sigma = torch.tensor([0.1, 0.5, 1.3, 2.0])
    taps = gaussian(sigma, kernel=kernel, size=size)
    pixels = PIXELS[:, :, :size, :size]
    blurred = separable(pixels, taps, taps)
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
