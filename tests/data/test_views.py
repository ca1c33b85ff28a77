import functools
import math
import shutil

import numpy as np
import pytest
import torch
from scipy import stats
from torch._dynamo.utils import counters
from torch._subclasses.fake_tensor import FakeTensorMode
from torchvision.transforms import ColorJitter, RandomResizedCrop
from torchvision.transforms.v2 import functional as tv

from ssl_vision.data import Batch
from ssl_vision.data.augment import random_views
from ssl_vision.data.augment.random_views import EpochViews, Views
from ssl_vision.data.augment.view_parameters import sample_parameters
from ssl_vision.data.random import Stream, states
from ssl_vision.errors import InputError

RAW = {"mean": (0.0, 0.0, 0.0), "std": (1.0, 1.0, 1.0)}
STILL = {"hflip": 0.0, "jitter": 0.0, "grayscale": 0.0}
OPERATIONS = (tv.adjust_brightness, tv.adjust_contrast, tv.adjust_saturation, tv.adjust_hue)
DRAWS = 20_000
SLOW_DRAWS = 8_000
"""Number of draws of torchvision, which makes one at a time."""
COMPILER = pytest.mark.skipif(shutil.which("g++") is None, reason="no C++ compiler")


def pixels(count, height=32, width=32):
    generator = torch.Generator().manual_seed(0)
    return torch.randint(0, 256, (count, 3, height, width), generator=generator, dtype=torch.uint8)


def draw(options, count=DRAWS, *, height=200, width=150, seed=0, epoch=0, views=(0,)):
    keys = [(seed, Stream.VIEWS, epoch, view) for view in views]
    return sample_parameters(options, states(torch.arange(count), *keys), height=height, width=width)


def reference(views, image, parameters, row):
    """Return the view of one image, made by torchvision's functions one after another."""
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
    image = tv.solarize(image, views.threshold) if p.solarize else image
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
        STILL | {"solarize": 0.5, "threshold": 0.0},
        {"blur": 0.5, "solarize": 0.5, "threshold": 0.0},
    ],
    ids=["crop", "flip", "jitter", "blends", "hue", "grayscale", "blur", "solarize", "all"],
)
def test_views_match_torchvision(options, height, width, size):
    views = Views(size=size, **RAW, **options)
    images = pixels(24, height, width)
    parameters = draw(views, 24, height=height, width=width)
    rendered = views.render(images, parameters)
    for row, image in enumerate(images):
        assert (rendered[row] - reference(views, image, parameters, row)).abs().max() < 2e-6


@pytest.mark.parametrize("channels", [1, 2, 4, 13])
def test_each_channel_of_a_view_matches_torchvision(channels):
    colours = {"brightness": 0.4, "contrast": 0.4, "saturation": 0.0, "hue": 0.0, "grayscale": 0.0}
    steps = {"jitter": 1.0, "blur": 0.5, "solarize": 0.5, "threshold": 0.0, "degrees": 30.0}
    options = {"size": 16, "mean": (0.4,) * channels, "std": (0.5,) * channels, **colours, **steps}
    views, single = Views(**options), Views(**options | {"mean": (0.4,), "std": (0.5,)})
    images = torch.cat([pixels(8, 20, 24), *(pixels(8, 20, 24).roll(n, 0) for n in range(1, 5))], dim=1)
    images = images[:, :channels]
    parameters = draw(views, 8, height=20, width=24)
    rendered = views.render(images, parameters)
    assert rendered.shape == (8, channels, 16, 16)
    for row, image in enumerate(images):
        for channel in range(channels):
            expected = reference(single, image[channel : channel + 1], parameters, row)
            assert (rendered[row, channel] - expected[0]).abs().max() < 1e-4
    torch.testing.assert_close(views.plain(images)[:, -1:], single.plain(images[:, -1:]))
    assert views(images, torch.arange(8), seed=0, epoch=0).shape == (16, channels, 16, 16)


@pytest.mark.parametrize("option", ["saturation", "hue", "grayscale"])
def test_colour_options_for_four_channels_raise_error_naming_option(option):
    still = {"saturation": 0.0, "hue": 0.0, "grayscale": 0.0}
    with pytest.raises(InputError, match=rf"^views\.{option} must be 0 for images with 4 channels"):
        Views(mean=(0.5,) * 4, std=(0.5,) * 4, **still | {option: 0.1})


def test_rotated_and_normalised_views_match_torchvision():
    views = Views(size=16, degrees=30.0, scale=(0.5, 1.0))
    images = pixels(24, 20, 20)
    parameters = draw(views, 24, height=20, width=20)
    rendered = views.render(images, parameters)
    for row, image in enumerate(images):
        assert (rendered[row] - reference(views, image, parameters, row)).abs().max() < 1e-4


def test_solarized_views_match_torchvision():
    views = Views(size=16, solarize=0.5, threshold=0.4, **RAW)
    images = pixels(24, 20, 20)
    parameters = draw(views, 24, height=20, width=20)
    rendered = views.render(images, parameters)
    before = parameters._replace(solarize=torch.zeros(24, dtype=torch.bool))
    for row, image in enumerate(images):
        # Compare only pixels that rounding cannot move to the other side of the threshold.
        clear = (reference(views, image, before, row) - 0.4).abs() > 2e-6
        assert clear.float().mean() > 0.99
        assert ((rendered[row] - reference(views, image, parameters, row)).abs() * clear).max() < 2e-6


@pytest.mark.parametrize(("size", "kernel"), [(16, 3), (32, 3), (64, 7), (96, 9), (224, 23)])
def test_blur_kernel_covers_a_tenth_of_the_view(size, kernel):
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
def test_crop_boxes_are_distributed_as_in_torchvision(height, width, scale, ratio):
    views = Views(scale=scale, ratio=ratio)
    p = draw(views, height=height, width=width)
    torch.manual_seed(0)
    image = torch.empty(3, height, width)
    torchvision_boxes = [
        RandomResizedCrop.get_params(image, list(scale), list(ratio)) for _ in range(SLOW_DRAWS)
    ]
    drawn_boxes = torch.stack((p.top, p.left, p.height, p.width), dim=1).double().numpy()
    expected = measures(np.array(torchvision_boxes, float), height, width)
    for name, values in measures(drawn_boxes, height, width).items():
        assert stats.ks_2samp(values, expected[name]).pvalue > 1e-3, name
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
def test_crop_without_fitting_box_is_torchvision_centre_crop(height, width, ratio):
    p = draw(Views(scale=(1.0, 1.0), ratio=ratio), 50, height=height, width=width)
    box = RandomResizedCrop.get_params(torch.empty(3, height, width), [1.0, 1.0], list(ratio))
    assert {tuple(row) for row in zip(*(field.tolist() for field in p[:4]), strict=True)} == {box}


def test_jitter_factors_and_orders_are_distributed_as_in_torchvision():
    views = Views(brightness=0.4, contrast=1.5, saturation=0.2, hue=0.1)
    p = draw(views)
    torch.manual_seed(0)
    jitter = ColorJitter(0.4, 1.5, 0.2, 0.1)
    ranges = (jitter.brightness, jitter.contrast, jitter.saturation, jitter.hue)
    torchvision_draws = [jitter.get_params(*ranges) for _ in range(SLOW_DRAWS)]
    for operation in range(4):
        factors = [drawn[operation + 1] for drawn in torchvision_draws]
        assert stats.ks_2samp(p.factors[:, operation].numpy(), factors).pvalue > 1e-3
    assert torch.equal(p.order.sort(dim=1).values, torch.arange(4).expand(DRAWS, 4))
    _, counts = p.order.unique(dim=0, return_counts=True)
    assert len(counts) == 24
    assert stats.chisquare(counts.numpy()).pvalue > 1e-3


def test_rates_angles_and_sigmas_follow_options():
    rates = {"hflip": 0.3, "jitter": 0.8, "grayscale": 0.2, "blur": 0.6, "solarize": 0.1}
    p = draw(Views(degrees=20.0, sigma=(0.5, 1.5), **rates))
    drawn = p._asdict() | {"hflip": p.flip}
    for name, rate in rates.items():
        assert stats.binomtest(int(drawn[name].sum()), DRAWS, rate).pvalue > 1e-3, name
    assert stats.kstest(p.angle.numpy(), stats.uniform(-20, 40).cdf).pvalue > 1e-3
    assert stats.kstest(p.sigma.numpy(), stats.uniform(0.5, 1.0).cdf).pvalue > 1e-3


def test_parameters_are_uncorrelated_within_and_between_views():
    views = Views(degrees=9.0, blur=0.5, solarize=0.5)
    columns = []
    for p in (draw(views), draw(views, views=(1,))):
        columns += [p.height * p.width, p.angle, p.flip, p.jitter, p.grayscale, p.blur, p.sigma, *p.factors.T]
        columns += [p.solarize]
        columns += [p.order[:, 0] == operation for operation in range(3)]
    correlation = np.corrcoef(torch.stack([column.float() for column in columns]).numpy())
    for start in (12, 27):  # each order has only one first operation, so these are correlated
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


def test_views_differ_by_number_epoch_seed_and_image_index():
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


def test_view_without_augmentation_equals_plain_image():
    views = Views(size=24, scale=(1.0, 1.0), ratio=(1.0, 1.0), **STILL)
    images = pixels(5)
    twice = views(images, torch.arange(5), seed=0, epoch=0)
    assert (twice - views.plain(images).repeat(2, 1, 1, 1)).abs().max() < 1e-5


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_views_never_copy_values_to_host(device):
    views = Views(blur=0.5, degrees=5.0, solarize=0.5)
    with FakeTensorMode():  # rejects .item(), nonzero(), mixed devices and similar calls
        images = torch.empty(4, 3, 40, 40, dtype=torch.uint8, device=device)
        output = views(images, torch.arange(4, device=device), seed=0, epoch=0)
    assert output.shape == (8, 3, 32, 32)
    assert output.device.type == device


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
def test_views_have_requested_dtype_and_memory_format(dtype, memory_format):
    images, indices = pixels(5), torch.arange(5)
    views = Views(size=16)
    output = views(images, indices, seed=0, epoch=0, dtype=dtype, memory_format=memory_format)
    assert output.is_contiguous(memory_format=memory_format)
    assert torch.equal(output, views(images, indices, seed=0, epoch=0).to(dtype))


def test_autocast_does_not_change_views():
    images, indices = pixels(5), torch.arange(5)
    with torch.autocast("cpu", torch.bfloat16):
        autocast_views = Views(blur=0.5)(images, indices, seed=0, epoch=0)
    assert torch.equal(autocast_views, Views(blur=0.5)(images, indices, seed=0, epoch=0))


def test_views_of_epochs_match_views_under_autocast():
    g = torch.Generator().manual_seed(0)
    images = torch.randint(256, (7, 3, 20, 20), generator=g, dtype=torch.uint8)
    batch = Batch(images, torch.zeros(7), torch.arange(20, 27))
    views = Views(size=16, degrees=30.0, blur=0.3)
    views_by_epoch = {0: views, 1: views, 7: Views(size=8)}
    of_epoch = EpochViews(views_by_epoch.__getitem__, seed=5, dtype=torch.float32, device=torch.device("cpu"))
    for epoch in (0, 1, 1, 7):
        of_epoch.set_epoch(epoch)
        with torch.autocast("cpu", torch.bfloat16):
            epoch_batch = of_epoch(batch)
        assert epoch_batch.images is images
        assert torch.equal(
            epoch_batch.views, views_by_epoch[epoch](images, batch.indices, seed=5, epoch=epoch)
        )


def test_views_of_one_call_match_views_rendered_separately():
    views = Views(blur=0.5, solarize=0.1)
    images, indices = pixels(100), torch.arange(100)
    both = views(images, indices, seed=3, epoch=4).chunk(2)
    for number, view in enumerate(both):
        p = draw(views, 100, height=32, width=32, seed=3, epoch=4, views=(number,))
        assert (views.render(images, p) - view).abs().max() < 1e-6


@COMPILER
@pytest.mark.long
def test_compiled_four_channel_views_match_eager_views():
    options = {"size": 16, "mean": (0.4,) * 4, "std": (0.5,) * 4, "saturation": 0.0, "hue": 0.0}
    options |= {"grayscale": 0.0, "blur": 0.5}
    images = torch.cat((pixels(70), pixels(70)[:, :1].flip(0)), dim=1)
    views = (Views(**options, compile=compiled) for compiled in (True, False))
    actual, expected = (make_views(images, torch.arange(70), seed=1, epoch=0) for make_views in views)
    assert (actual - expected).abs().max() < 2e-6


@COMPILER
def test_compiled_views_match_eager_views_and_compile_once():
    options = RAW | {"size": 24, "blur": 0.5}
    eager, compiled = Views(**options), Views(compile=True, **options)
    torch._dynamo.reset()
    counters.clear()
    for count in (128, 70, 1, 64, 300):  # full parts, full parts and a rest, less than one part
        images, indices = pixels(count), torch.arange(count)
        for epoch, mode in ((0, torch.enable_grad), (1, torch.no_grad), (2, torch.inference_mode)):
            with mode():
                actual = compiled(images, indices, seed=1, epoch=epoch)
            expected = eager(images, indices, seed=1, epoch=epoch)
            assert (actual - expected).abs().max() < 2e-6
    assert counters["stats"]["unique_graphs"] == 1
    assert not counters["graph_break"]
    actual = compiled(
        images, indices, seed=1, epoch=2, dtype=torch.bfloat16, memory_format=torch.channels_last
    )
    assert actual.is_contiguous(memory_format=torch.channels_last)
    assert torch.allclose(actual.float(), expected, rtol=2**-7, atol=1e-5)


def test_device_compilation_matches_eager_with_one_graph_per_shape(monkeypatch):
    compile_ = torch.compile
    monkeypatch.setattr(torch, "compile", functools.partial(compile_, backend="eager", fullgraph=True))
    torch._dynamo.reset()
    counters.clear()
    compiled = torch.compile(Views._make, dynamic=False)
    for size, count in ((16, 64), (16, 17), (12, 64), (16, 64)):
        starts = states(torch.arange(count), (0,), (1,))
        arguments = Views(size=size), pixels(count), starts, torch.bfloat16, torch.channels_last
        assert torch.allclose(
            compiled(*arguments).float(), Views._make(*arguments).float(), rtol=2**-7, atol=1e-5
        )
    assert counters["stats"]["unique_graphs"] == 3


def test_views_are_eager_on_a_cpu_unless_compilation_is_requested(monkeypatch):
    monkeypatch.setattr(torch, "compile", lambda *args, **options: pytest.fail("compiled"))
    images, indices = pixels(5), torch.arange(5)
    actual, expected = (views(images, indices, seed=0, epoch=0) for views in (Views(), Views(compile=False)))
    assert torch.equal(actual, expected)


def test_failed_compilation_falls_back_to_eager_and_logs_once(monkeypatch, caplog):
    attempts = []

    def fail(*args):
        attempts.append(args)
        raise RuntimeError("Failed to find C compiler.\nPlease specify one.")

    monkeypatch.setattr(random_views, "_compiled", lambda: fail)
    arguments = pixels(2), states(torch.arange(2), (0,), (1,)), torch.float32, torch.contiguous_format
    make = random_views._compiled_or_eager.__wrapped__()
    with caplog.at_level("INFO"):
        for _ in range(2):
            assert torch.equal(make(Views(), *arguments), Views._make(Views(), *arguments))
    assert len(attempts) == 1
    assert caplog.messages == ["views are not compiled: Failed to find C compiler."]


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
        ("compile", "always"),
        ("degrees", -1.0),
        ("degrees", 181.0),
        ("hflip", 1.1),
        ("jitter", -0.1),
        ("grayscale", math.nan),
        ("blur", 2.0),
        ("solarize", 1.5),
        ("threshold", -0.5),
        ("brightness", -0.1),
        ("contrast", math.inf),
        ("saturation", math.nan),
        ("hue", 0.6),
        ("sigma", (0.0, 1.0)),
        ("sigma", (2.0, 1.0)),
        ("mean", (0.5, 0.5, math.nan)),
        ("mean", (123.7, 116.3, 103.5)),
        ("std", (58.4, 57.1, 57.4)),
        ("mean", (0.5,)),
        ("mean", ()),
        ("std", (0.2, 0.2, 0.0)),
    ],
)
def test_value_out_of_range_raises_error_naming_option(field, value):
    with pytest.raises(InputError, match=rf"views\.{field} must") as caught:
        Views(**{field: value})
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "images",
    [
        torch.zeros(2, 3, 8, 8),
        torch.zeros(2, 8, 8, 3, dtype=torch.uint8),
        torch.zeros(3, 8, 8, dtype=torch.uint8),
        torch.zeros(2, 1, 8, 8, dtype=torch.uint8),
    ],
)
@pytest.mark.parametrize(
    "use",
    [
        lambda views, images: views.plain(images),
        lambda views, images: views(images, torch.arange(2), seed=0, epoch=0),
        lambda views, images: views.render(
            images, sample_parameters(views, states(torch.arange(2), (0,)), height=8, width=8)
        ),
    ],
    ids=["plain", "random", "render"],
)
def test_views_reject_images_that_are_not_uint8_channels_first(images, use):
    with pytest.raises(InputError, match=r"images must be uint8 \(N, 3, H, W\), not torch\."):
        use(Views(size=8), images)
