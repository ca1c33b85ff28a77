"""Tests of the image corruptions against PIL, torchvision, SciPy and closed forms."""

import numpy as np
import pytest
import torch
from PIL import Image
from scipy.ndimage import gaussian_filter
from sklearn.datasets import load_sample_image
from torchvision.io import decode_jpeg, encode_jpeg

from ssl_vision.data.augment.corruptions import CORRUPTIONS, SEVERITIES, corrupt
from ssl_vision.errors import InputError

SIGMA = (0.04, 0.06, 0.08, 0.09, 0.10)
BLUR = (0.4, 0.6, 0.7, 0.8, 1.0)
CONTRAST = (0.75, 0.5, 0.4, 0.3, 0.15)
QUALITY = (80, 65, 58, 50, 40)
SHARE = (0.95, 0.9, 0.85, 0.75, 0.65)


def photographs(side, count=6):
    """Return uint8 crops (count, 3, side, side) of a photograph, scaled so that each shows some structure."""
    photo = Image.fromarray(load_sample_image("china.jpg")).resize((320, 213), Image.Resampling.BICUBIC)
    pixels = torch.from_numpy(np.array(photo)).permute(2, 0, 1)
    return torch.stack([pixels[:, 40 : 40 + side, 30 * i : 30 * i + side] for i in range(count)])


def corrupted(images, corruption, severity, *, seed=0, indices=None):
    indices = torch.arange(len(images)) if indices is None else indices
    return corrupt(images, indices, corruption=corruption, severity=severity, seed=seed)


def as_pil(image):
    return Image.fromarray(image.permute(1, 2, 0).numpy())


def from_pil(image):
    return torch.from_numpy(np.array(image)).permute(2, 0, 1)


@pytest.mark.parametrize("side", [8, 32, 96])
@pytest.mark.parametrize("severity", SEVERITIES)
def test_pixelate_matches_pil_box_and_nearest_resizing(side, severity):
    images = photographs(side)
    small = int(SHARE[severity - 1] * side)
    expected = [
        from_pil(
            as_pil(image)
            .resize((small, small), Image.Resampling.BOX)
            .resize((side, side), Image.Resampling.NEAREST)
        )
        for image in images
    ]
    difference = (corrupted(images, "pixelate", severity).int() - torch.stack(expected).int()).abs()
    assert difference.max() <= 1  # PIL uses fixed-point weights
    assert difference.float().mean() < 0.01


@pytest.mark.filterwarnings("ignore:The image decoding")
@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("severity", SEVERITIES)
def test_jpeg_matches_torchvision(channels, severity):
    images = photographs(32)[:, :channels].contiguous()
    files = encode_jpeg(list(images), quality=QUALITY[severity - 1])
    difference = (
        corrupted(images, "jpeg", severity).int() - torch.stack([decode_jpeg(file) for file in files]).int()
    )
    assert difference.abs().max() <= 4  # the two libjpeg builds differ
    assert difference.abs().float().mean() < 0.1


@pytest.mark.parametrize("side", [8, 32, 96])
@pytest.mark.parametrize("severity", SEVERITIES)
def test_blur_matches_scipy_with_sigma_proportional_to_side(side, severity):
    images = photographs(side)
    sigma = BLUR[severity - 1] * side / 32
    expected = gaussian_filter(images.double().numpy(), (0, 0, sigma, sigma), mode="mirror", truncate=4.0)
    difference = corrupted(images, "blur", severity).double() - torch.from_numpy(expected)
    assert difference.abs().max() < 0.5 + 1e-3


@pytest.mark.parametrize("severity", SEVERITIES)
def test_contrast_shrinks_every_channel_towards_its_mean(severity):
    images = photographs(32)
    pixels = images.double().numpy()
    mean = pixels.mean(axis=(2, 3), keepdims=True)
    expected = mean + CONTRAST[severity - 1] * (pixels - mean)
    assert np.abs(corrupted(images, "contrast", severity).numpy() - expected).max() < 0.5 + 1e-3


@pytest.mark.parametrize("severity", SEVERITIES)
def test_noise_is_normal_and_uncorrelated_with_documented_deviation(severity):
    grey = torch.full((200, 3, 16, 16), 128, dtype=torch.uint8)
    noise = (corrupted(grey, "noise", severity).double() - 128) / 255
    count, sigma = noise.numel(), SIGMA[severity - 1]
    assert abs(noise.mean()) < 4 * sigma / count**0.5
    assert noise.std() == pytest.approx((sigma**2 + 1 / (12 * 255**2)) ** 0.5, rel=4 / (2 * count) ** 0.5)
    assert (noise.abs() < sigma).double().mean() == pytest.approx(0.6827, abs=0.03)
    flat = noise.flatten(1)
    correlation = torch.corrcoef(flat[:, :40].T) - torch.eye(40)
    assert correlation.abs().max() < 5 / len(flat) ** 0.5
    halves = torch.stack((flat[:, :384].flatten(), flat[:, 384:].flatten()))
    assert abs(torch.corrcoef(halves)[0, 1]) < 4 / halves.shape[1] ** 0.5


@pytest.mark.parametrize("side", [5, 32])
def test_noise_depends_on_seed_and_index_but_not_on_batch(side, monkeypatch):
    images, indices = photographs(side), torch.tensor([7, 3, 11, 0, 2**40, 5])
    whole = corrupted(images, "noise", 3, seed=1, indices=indices)
    parts = [corrupted(images[i], "noise", 3, seed=1, indices=indices[i]) for i in ([0, 1], [2, 3, 4, 5])]
    assert torch.equal(whole, torch.cat(parts))
    monkeypatch.setattr("ssl_vision.data.augment.corruptions._AT_ONCE", 1)
    assert torch.equal(whole, corrupted(images, "noise", 3, seed=1, indices=indices))
    assert not torch.equal(whole, corrupted(images, "noise", 3, seed=2, indices=indices))
    same = images[:1].expand(2, -1, -1, -1)
    first, second = corrupted(same, "noise", 3, indices=torch.tensor([0, 1]))
    assert not torch.equal(first, second)


@pytest.mark.parametrize("corruption", CORRUPTIONS)
def test_psnr_falls_with_severity_and_input_is_unchanged(corruption):
    images = photographs(32)
    before = images.clone()
    outputs = [corrupted(images, corruption, severity) for severity in SEVERITIES]
    assert torch.equal(images, before)
    assert all(output.dtype == torch.uint8 and output.shape == images.shape for output in outputs)
    errors = [((output.double() - images.double()) ** 2).mean() for output in outputs]
    psnr = [float(10 * torch.log10(255**2 / error)) for error in errors]
    assert psnr == sorted(psnr, reverse=True)
    assert psnr[0] > psnr[-1] + 3


@pytest.mark.parametrize("corruption", CORRUPTIONS)
@pytest.mark.parametrize("shape", [(0, 3, 8, 8), (2, 1, 8, 8), (2, 3, 1, 1), (2, 3, 7, 12)])
def test_corrupt_preserves_shape_and_dtype(corruption, shape):
    images = torch.randint(256, shape, generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
    output = corrupted(images, corruption, 5)
    assert output.shape == shape
    assert output.dtype == torch.uint8


@pytest.mark.parametrize(
    ("images", "indices", "options", "words"),
    [
        (torch.zeros(2, 3, 8, 8), torch.arange(2), {}, "images must be uint8"),
        (torch.zeros(2, 2, 8, 8, dtype=torch.uint8), torch.arange(2), {}, "images must be uint8"),
        (torch.zeros(3, 8, 8, dtype=torch.uint8), torch.arange(3), {}, "images must be uint8"),
        (torch.zeros(2, 3, 8, 8, dtype=torch.uint8), torch.arange(3), {}, "indices must be int64"),
        (torch.zeros(2, 3, 8, 8, dtype=torch.uint8), torch.arange(2), {"severity": 0}, "severity must be"),
        (torch.zeros(2, 3, 8, 8, dtype=torch.uint8), torch.arange(2), {"corruption": "fog"}, "not fog"),
    ],
)
def test_invalid_arguments_raise_input_error(images, indices, options, words):
    with pytest.raises(InputError, match=words):
        corrupt(images, indices, **{"corruption": "noise", "severity": 1, "seed": 0, **options})
