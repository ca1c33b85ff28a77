import itertools

import pytest
import torch
from torchvision.transforms.v2 import functional as tv

from ssl_vision.data.colour import BRIGHTNESS, CONTRAST, HUE, SATURATION, blend, gray, jitter, rotate_hue

OPERATIONS = (tv.adjust_brightness, tv.adjust_contrast, tv.adjust_saturation, tv.adjust_hue)


def pixels(count, side=9):
    """Random images; the first of 8-bit steps with much gray, black, white and ties between channels."""
    generator = torch.Generator().manual_seed(0)
    images = torch.rand(count, 3, side, side, generator=generator)
    images[0] = torch.randint(0, 3, (3, side, side), generator=generator) / 2
    return images


def difference(left, right):
    return float((left - right).abs().max())


def test_gray_is_torchvisions():
    assert difference(gray(pixels(4)), tv.rgb_to_grayscale(pixels(4))) < 1e-7


@pytest.mark.parametrize("operation", [BRIGHTNESS, CONTRAST, SATURATION])
def test_a_blend_is_torchvisions(operation):
    images = pixels(6)
    factors = torch.tensor([0.0, 0.3, 0.6, 1.0, 1.4, 3.0])
    blended = blend(images, torch.full((6,), operation), factors)
    for row in range(6):
        assert difference(blended[row], OPERATIONS[operation](images[row], float(factors[row]))) < 1e-6


def test_blends_of_different_kinds_share_a_batch():
    images, factors = pixels(3), torch.tensor([1.3, 0.7, 1.2])
    blended = blend(images, torch.tensor([SATURATION, BRIGHTNESS, CONTRAST]), factors)
    for row, operation in enumerate((SATURATION, BRIGHTNESS, CONTRAST)):
        assert difference(blended[row], OPERATIONS[operation](images[row], float(factors[row]))) < 1e-6


@pytest.mark.parametrize("turn", [-0.5, -0.31, -0.1, 0.0, 0.04, 0.25, 0.5])
def test_hue_is_torchvisions(turn):
    cube = torch.cartesian_prod(*[torch.linspace(0, 1, 18)] * 3).T.reshape(1, 3, 72, 81)
    assert difference(rotate_hue(cube, torch.tensor([turn])), tv.adjust_hue(cube, turn)) < 2e-6


def test_every_order_is_torchvisions():
    order = torch.tensor(list(itertools.permutations(range(4))))
    images = pixels(24)
    factors = torch.tensor([1.3, 0.7, 1.4, -0.08]).repeat(24, 1)
    factors += torch.linspace(-0.02, 0.02, 24).unsqueeze(1)
    changed = jitter(images, order, factors, hue=True)
    for row in range(24):
        expected = images[row]
        for operation in order[row].tolist():
            expected = OPERATIONS[operation](expected, float(factors[row, operation]))
        assert difference(changed[row], expected) < 2e-6


def test_without_hue_the_other_three_keep_their_order():
    order = torch.tensor(list(itertools.permutations(range(4))))
    images, factors = pixels(24), torch.tensor([1.3, 0.7, 1.4, 0.3]).repeat(24, 1)
    changed = jitter(images, order, factors, hue=False)
    for row in range(24):
        expected = images[row]
        for operation in order[row].tolist():
            if operation != HUE:
                expected = OPERATIONS[operation](expected, float(factors[row, operation]))
        assert difference(changed[row], expected) < 2e-6


def test_neutral_factors_change_nothing():
    images = pixels(24)
    order = torch.tensor(list(itertools.permutations(range(4))))
    factors = torch.tensor([1.0, 1.0, 1.0, 0.0]).repeat(24, 1)
    assert difference(jitter(images, order, factors, hue=True), images) < 1e-6
