import itertools

import pytest
import torch
from torchvision.transforms.v2 import functional as tv

from ssl_vision.data.augment import operations
from ssl_vision.data.augment.operations import HUE, choose, gray, recipes, solarize

OPERATIONS = (tv.adjust_brightness, tv.adjust_contrast, tv.adjust_saturation, tv.adjust_hue)
BRIGHTNESS, CONTRAST, SATURATION = (0.0, 0.0), (0.0, 1.0), (1.0, 0.0)
BLENDS = {BRIGHTNESS: tv.adjust_brightness, CONTRAST: tv.adjust_contrast, SATURATION: tv.adjust_saturation}
ORDERS = torch.tensor(list(itertools.permutations(range(4))))


def pixels(count, side=9):
    """Return random images. The first has only the values 0, 0.5 and 1: gray, black, white and many ties."""
    generator = torch.Generator().manual_seed(0)
    images = torch.rand(count, 3, side, side, generator=generator)
    images[0] = torch.randint(0, 3, (3, side, side), generator=generator) / 2
    return images


def difference(left, right):
    return float((left - right).abs().max())


def blend(images, references, factors):
    recipe = torch.cat((factors.unsqueeze(1), torch.tensor(references)), dim=1)
    return torch.stack(operations.blend(images.unbind(1), recipe), dim=1)


def rotate_hue(images, turn):
    return torch.stack(operations.rotate_hue(images.unbind(1), turn), dim=1)


def jitter(images, order, factors, *, hue):
    blends = recipes(order, factors, hue=hue)
    return torch.stack(operations.jitter(images.unbind(1), blends, factors[:, HUE] if hue else None), dim=1)


def test_gray_matches_torchvision():
    assert difference(gray(pixels(4).unbind(1)), tv.rgb_to_grayscale(pixels(4))[:, 0]) < 1e-7


def test_choose_matches_torch_where():
    yes, no = pixels(2)
    for mask in (torch.rand(9, 9) < 0.5, torch.ones(9, 9), torch.zeros(9, 9)):
        assert torch.equal(choose(mask.float(), yes, no), torch.where(mask.bool(), yes, no))


@pytest.mark.parametrize("threshold", [0.0, 0.5, 1.0])
def test_solarize_matches_torchvision(threshold):
    solarized = torch.stack(solarize(pixels(4).unbind(1), threshold), dim=1)
    assert torch.equal(solarized, tv.solarize(pixels(4), threshold))


@pytest.mark.parametrize("reference", BLENDS, ids=["brightness", "contrast", "saturation"])
def test_blend_matches_torchvision(reference):
    images = pixels(6)
    factors = torch.tensor([0.0, 0.3, 0.6, 1.0, 1.4, 3.0])
    blended = blend(images, [reference] * 6, factors)
    for row in range(6):
        assert difference(blended[row], BLENDS[reference](images[row], float(factors[row]))) < 1e-6


def test_blends_of_different_kinds_share_a_batch():
    images, factors = pixels(3), torch.tensor([1.3, 0.7, 1.2])
    blended = blend(images, [SATURATION, BRIGHTNESS, CONTRAST], factors)
    for row, reference in enumerate((SATURATION, BRIGHTNESS, CONTRAST)):
        assert difference(blended[row], BLENDS[reference](images[row], float(factors[row]))) < 1e-6


@pytest.mark.parametrize("turn", [-0.5, -0.31, -0.1, 0.0, 0.04, 0.25, 0.5])
def test_rotate_hue_matches_torchvision(turn):
    cube = torch.cartesian_prod(*[torch.linspace(0, 1, 18)] * 3).T.reshape(1, 3, 72, 81)
    assert difference(rotate_hue(cube, torch.tensor([turn])), tv.adjust_hue(cube, turn)) < 2e-6


@pytest.mark.parametrize("hue", [True, False])
def test_jitter_matches_torchvision_in_every_order(hue):
    images = pixels(24)
    factors = torch.tensor([1.3, 0.7, 1.4, -0.08]).repeat(24, 1)
    factors += torch.linspace(-0.02, 0.02, 24).unsqueeze(1)
    changed = jitter(images, ORDERS, factors, hue=hue)
    for row in range(24):
        expected = images[row]
        for operation in ORDERS[row].tolist():
            if hue or operation != HUE:
                expected = OPERATIONS[operation](expected, float(factors[row, operation]))
        assert difference(changed[row], expected) < 2e-6


def test_jitter_with_neutral_factors_changes_nothing():
    images = pixels(24)
    factors = torch.tensor([1.0, 1.0, 1.0, 0.0]).repeat(24, 1)
    assert difference(jitter(images, ORDERS, factors, hue=True), images) < 1e-6
