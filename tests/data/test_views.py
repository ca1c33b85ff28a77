import math

import numpy as np
import pytest
import torch
from scipy import stats
from torch._subclasses.fake_tensor import FakeTensorMode
from torchvision.transforms import ColorJitter, RandomResizedCrop
from torchvision.transforms.v2 import functional as tv

from ssl_vision.data.views import Views
from ssl_vision.errors import InputError

RAW = {"mean": (0.0, 0.0, 0.0), "std": (1.0, 1.0, 1.0)}
STILL = {"hflip": 0.0, "jitter": 0.0, "grayscale": 0.0}
OPERATIONS = (tv.adjust_brightness, tv.adjust_contrast, tv.adjust_saturation, tv.adjust_hue)
DRAWS = 5000


def pixels(count, height=32, width=32):
    generator = torch.Generator().manual_seed(0)
    return torch.randint(0, 256, (count, 3, height, width), generator=generator, dtype=torch.uint8)


def draw(views, count=DRAWS, *, height=200, width=150, **key):
    key = {"seed": 0, "epoch": 0, "view": 0} | key
    return views.parameters(torch.arange(count), height=height, width=width, **key)


def reference(views, image, parameters, row):
    """The view of one image by torchvision's functions, one after the other."""
    p = type(parameters)(*(field[row].tolist() for field in parameters))
    image = image / 255
    if views.degrees:
        image = tv.rotate(image, p.angle, interpolation=tv.InterpolationMode.BILINEAR)
    image = tv.resized_crop(image, p.top, p.left, p.height, p.width, [views.size] * 2, antialias=True)
    image = tv.horizontal_flip(image) if p.flip else image
    if p.jitter:
        for operation in p.order:
            image = OPERATIONS[operation](image, p.factors[operation])
    image = tv.rgb_to_grayscale(image, 3) if p.grayscale else image
    image = tv.gaussian_blur(image, [views.kernel] * 2, [p.sigma] * 2) if p.blur else image
    return tv.normalize(image, list(views.mean), list(views.std))


@pytest.mark.parametrize(("height", "width", "size"), [(32, 32, 32), (96, 96, 32), (20, 28, 48), (33, 17, 7)])
@pytest.mark.parametrize(
    "options",
    [
        STILL,
        STILL | {"hflip": 0.5},
        STILL | {"jitter": 0.8},
        STILL | {"jitter": 1.0, "hue": 0.0},
        STILL | {"jitter": 1.0, "brightness": 0.0, "contrast": 0.0, "saturation": 0.0, "hue": 0.5},
        STILL | {"grayscale": 0.5},
        STILL | {"blur": 0.5},
        {"blur": 0.5},
    ],
    ids=["crop", "flip", "jitter", "blends", "hue", "grayscale", "blur", "all"],
)
def test_a_view_is_torchvisions(options, height, width, size):
    views = Views(size=size, **RAW, **options)
    images = pixels(24, height, width)
    parameters = draw(views, 24, height=height, width=width)
    rendered = views.render(images, parameters)
    for row, image in enumerate(images):
        assert (rendered[row] - reference(views, image, parameters, row)).abs().max() < 2e-6


def test_a_rotated_and_normalised_view_is_torchvisions():
    views = Views(size=16, degrees=30.0, scale=(0.5, 1.0))
    images = pixels(24, 20, 20)
    parameters = draw(views, 24, height=20, width=20)
    rendered = views.render(images, parameters)
    for row, image in enumerate(images):
        assert (rendered[row] - reference(views, image, parameters, row)).abs().max() < 1e-4


@pytest.mark.parametrize(("size", "kernel"), [(16, 3), (32, 3), (64, 7), (96, 9), (224, 23)])
def test_the_blur_covers_a_tenth_of_the_view(size, kernel):
    assert Views(size=size).kernel == kernel


@pytest.mark.parametrize(
    ("height", "width", "scale", "ratio"),
    [
        (200, 150, (0.08, 1.0), (3 / 4, 4 / 3)),
        (200, 150, (0.5, 1.0), (3 / 4, 4 / 3)),
        (200, 150, (0.6, 1.0), (1.0, 2.5)),
        (200, 150, (0.9, 1.0), (0.4, 0.5)),
        (8, 8, (0.08, 1.0), (3 / 4, 4 / 3)),
    ],
)
def test_boxes_are_distributed_like_torchvisions(height, width, scale, ratio):
    views = Views(scale=scale, ratio=ratio)
    p = draw(views, height=height, width=width)
    torch.manual_seed(0)
    image = torch.empty(3, height, width)
    boxes = [RandomResizedCrop.get_params(image, list(scale), list(ratio)) for _ in range(DRAWS)]
    ours = torch.stack((p.top, p.left, p.height, p.width), dim=1).double().numpy()
    theirs = measures(np.array(boxes, float), height, width)
    for name, values in measures(ours, height, width).items():
        assert stats.ks_2samp(values, theirs[name]).pvalue > 1e-3, name
    assert (p.top >= 0).all()
    assert (p.left >= 0).all()
    assert (p.top + p.height <= height).all()
    assert (p.left + p.width <= width).all()


def measures(boxes, height, width):
    top, left, rows, columns = boxes.T
    return {
        "area": rows * columns,
        "aspect": columns / rows,
        "top": top / np.maximum(height - rows, 1),
        "left": left / np.maximum(width - columns, 1),
    }


@pytest.mark.parametrize(("height", "width", "ratio"), [(40, 80, (0.5, 0.7)), (80, 40, (1.5, 3.0))])
def test_where_no_box_fits_the_crop_is_torchvisions_central_one(height, width, ratio):
    p = draw(Views(scale=(1.0, 1.0), ratio=ratio), 50, height=height, width=width)
    box = RandomResizedCrop.get_params(torch.empty(3, height, width), [1.0, 1.0], list(ratio))
    assert {tuple(row) for row in zip(*(field.tolist() for field in p[:4]), strict=True)} == {box}


def test_factors_and_orders_are_distributed_like_torchvisions():
    views = Views(brightness=0.4, contrast=1.5, saturation=0.2, hue=0.1)
    p = draw(views)
    torch.manual_seed(0)
    jitter = ColorJitter(0.4, 1.5, 0.2, 0.1)
    ranges = (jitter.brightness, jitter.contrast, jitter.saturation, jitter.hue)
    theirs = [jitter.get_params(*ranges) for _ in range(DRAWS)]
    for operation in range(4):
        factors = [drawn[operation + 1] for drawn in theirs]
        assert stats.ks_2samp(p.factors[:, operation].numpy(), factors).pvalue > 1e-3
    assert torch.equal(p.order.sort(dim=1).values, torch.arange(4).expand(DRAWS, 4))
    _, counts = p.order.unique(dim=0, return_counts=True)
    assert len(counts) == 24
    assert stats.chisquare(counts.numpy()).pvalue > 1e-3


def test_rates_angles_and_sigmas_are_as_asked():
    views = Views(degrees=20.0, hflip=0.3, jitter=0.8, grayscale=0.2, blur=0.6, sigma=(0.5, 1.5))
    p = draw(views)
    rates = {"hflip": p.flip, "jitter": p.jitter, "grayscale": p.grayscale, "blur": p.blur}
    for name, applied in rates.items():
        assert stats.binomtest(int(applied.sum()), DRAWS, getattr(views, name)).pvalue > 1e-3, name
    assert stats.kstest(p.angle.numpy(), stats.uniform(-20, 40).cdf).pvalue > 1e-3
    assert stats.kstest(p.sigma.numpy(), stats.uniform(0.5, 1.0).cdf).pvalue > 1e-3


def test_parameters_are_independent_of_each_other_and_of_the_other_view():
    views = Views(degrees=9.0, blur=0.5)
    columns = []
    for p in (draw(views), draw(views, view=1)):
        columns += [p.height * p.width, p.angle, p.flip, p.jitter, p.grayscale, p.blur, p.sigma, *p.factors.T]
        columns += [p.order[:, 0] == operation for operation in range(3)]
    correlation = np.corrcoef(torch.stack([column.float() for column in columns]).numpy())
    for start in (11, 25):  # one order has one first operation
        correlation[start : start + 3, start : start + 3] = np.eye(3)
    assert np.abs(correlation - np.eye(len(columns))).max() < 5 / math.sqrt(DRAWS)


def test_a_view_does_not_depend_on_the_rest_of_the_batch():
    views = Views(degrees=10.0, blur=0.5)
    images, indices = pixels(300), torch.arange(300) * 7
    both = views(images, indices, seed=1, epoch=2)
    rows = torch.tensor([299, 5, 170, 171])
    some = views(images[rows], indices[rows], seed=1, epoch=2)
    assert (some[:4] - both[rows]).abs().max() < 1e-5
    assert (some[4:] - both[300 + rows]).abs().max() < 1e-5


def test_views_epochs_seeds_and_images_differ():
    views = Views()
    images, indices = pixels(1).expand(8, 3, 32, 32), torch.arange(8)
    first, second = views(images, indices, seed=0, epoch=0).chunk(2)
    others = [
        second,
        first.roll(1, dims=0),
        views(images, indices, seed=0, epoch=1)[:8],
        views(images, indices, seed=1, epoch=0)[:8],
    ]
    for other in others:
        assert ((first - other).abs().mean(dim=(1, 2, 3)) > 0.05).all()
    assert torch.equal(views(images, indices, seed=0, epoch=0)[:8], first)


@pytest.mark.parametrize(("height", "width", "size"), [(32, 32, 32), (96, 96, 64), (8, 8, 16), (30, 20, 24)])
def test_plain_resizes_and_normalises_like_torchvision(height, width, size):
    views = Views(size=size)
    images = pixels(5, height, width)
    resized = tv.resize(images / 255, [size, size], antialias=True)
    expected = tv.normalize(resized, list(views.mean), list(views.std))
    assert (views.plain(images) - expected).abs().max() < 2e-6


def test_a_view_without_any_change_is_the_plain_image():
    views = Views(size=24, scale=(1.0, 1.0), ratio=(1.0, 1.0), **STILL)
    images = pixels(5)
    twice = views(images, torch.arange(5), seed=0, epoch=0)
    assert (twice - views.plain(images).repeat(2, 1, 1, 1)).abs().max() < 1e-5


def test_values_never_reach_the_host():
    with FakeTensorMode():  # refuses .item(), nonzero() and the like
        images = torch.empty(4, 3, 40, 40, dtype=torch.uint8)
        views = Views(blur=0.5, degrees=5.0)(images, torch.arange(4), seed=0, epoch=0)
    assert views.shape == (8, 3, 32, 32)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("size", 0),
        ("scale", (0.0, 1.0)),
        ("scale", (0.5, 0.2)),
        ("scale", (0.5, 1.2)),
        ("ratio", (0.0, 1.0)),
        ("ratio", (2.0, 1.0)),
        ("ratio", (1.0, math.inf)),
        ("degrees", -1.0),
        ("degrees", 181.0),
        ("hflip", 1.1),
        ("jitter", -0.1),
        ("grayscale", math.nan),
        ("blur", 2.0),
        ("brightness", -0.1),
        ("contrast", math.inf),
        ("saturation", math.nan),
        ("hue", 0.6),
        ("sigma", (0.0, 1.0)),
        ("sigma", (2.0, 1.0)),
        ("mean", (0.5, 0.5, math.nan)),
        ("mean", (0.5,)),
        ("std", (0.2, 0.2, 0.0)),
    ],
)
def test_a_value_out_of_range_is_refused_by_name(field, value):
    with pytest.raises(InputError, match=rf"views\.{field} must") as caught:
        Views(**{field: value})
    assert "\n" not in str(caught.value)


def test_a_view_of_one_pixel_cannot_be_blurred():
    with pytest.raises(InputError, match=r"views\.blur"):
        Views(size=1, blur=0.5)
