"""Tests of loading encoder weights that other code saved: names, nesting, and conversion by timm."""

import pytest
import timm
import torch
from safetensors.torch import save_file
from torch import nn

from ssl_vision.encoders import ModuleEncoder, ResNet, Timm
from ssl_vision.errors import InputError
from ssl_vision.runs.encoder_weights import load_encoder_weights, read_weights


def load(encoder, path, **options):
    state = read_weights(path, option="--weights")
    return load_encoder_weights(encoder, state, path, options="--encoder", **options)


def random_state(encoder, prefix=""):
    """A state dict of the encoder with random values."""
    return {f"{prefix}{name}": torch.rand_like(value.float()) for name, value in encoder.state_dict().items()}


@pytest.mark.parametrize("key", [None, "state_dict", "state_dict_ema", "model", "teacher"])
@pytest.mark.parametrize(
    "prefix",
    [
        "",
        "module.",
        "backbone.",
        "encoder.",
        "module.encoder_q.",
        "module.backbone.",
        "_orig_mod.",
        "model.backbone.",
        "module.base_encoder.",
        "_orig_mod.module.",
        "backbone._orig_mod.",
        "_forward_module.",
        "teacher.backbone.",
        "student.",
    ],
)
def test_checkpoints_with_common_keys_and_prefixes_load(key, prefix, tmp_path):
    encoder = ResNet(width=4)
    state = random_state(encoder, prefix)
    others = {"predictor.weight": torch.ones(2), "fc.weight": torch.ones(3)} if prefix else {}
    if prefix == "module.encoder_q.":
        others |= random_state(encoder, "module.encoder_k.") | {f"{prefix}fc.0.weight": torch.ones(1)}
    if prefix == "module.":
        others = {"module.fc.weight": torch.ones(3)}
    torch.save({key: state | others, "epoch": 3} if key else state | others, tmp_path / "x.pth")
    load(encoder, tmp_path / "x.pth")
    for name, value in encoder.state_dict().items():
        torch.testing.assert_close(value, state[prefix + name].to(value.dtype))


def test_moving_averages_and_teachers_are_preferred_and_named(tmp_path):
    encoder = ResNet(width=4)
    average, other = random_state(encoder), random_state(encoder)
    torch.save({"state_dict": other, "state_dict_ema": average, "epoch": 3}, tmp_path / "timm.pth")
    assert load(encoder, tmp_path / "timm.pth") == "120 tensors below state_dict_ema:; state_dict left out"
    torch.testing.assert_close(encoder.state_dict()["conv1.weight"], average["conv1.weight"])
    names = {
        "student.backbone.": other,
        "teacher.backbone.": average,
        "teacher.dino_head.": {"x": other["bn1.bias"]},
    }
    state = {f"{prefix}{name}": value for prefix, part in names.items() for name, value in part.items()}
    torch.save({"model": state}, tmp_path / "dino.pth")
    used = load(encoder, tmp_path / "dino.pth")
    assert used == "120 tensors below model:teacher.backbone.; dino_head, student left out"


@pytest.mark.parametrize("source", [lambda: timm.create_model("resnet18"), lambda: ResNet(stem="imagenet")])
def test_a_sequential_of_a_resnet_loads(source, tmp_path):
    network, encoder = source(), ResNet(stem="imagenet")
    numbered = nn.Sequential(*list(network.children())[:-1])
    torch.save({"state_dict": random_state(numbered, "backbone.")}, tmp_path / "x.pth")
    state = torch.load(tmp_path / "x.pth")["state_dict"]
    assert load(encoder, tmp_path / "x.pth").endswith("tensors below state_dict:backbone.")
    torch.testing.assert_close(encoder.conv1.weight.data, state["backbone.0.weight"])
    last = [value for name, value in state.items() if name.endswith("1.bn2.bias")][-1]
    torch.testing.assert_close(encoder.layer4[1].bn2.bias.data, last)


def test_weights_without_num_batches_tracked_load(tmp_path):
    encoder = ResNet(width=4)
    state = random_state(encoder)
    save_file(
        {name: value for name, value in state.items() if "num_batches" not in name},
        tmp_path / "x.safetensors",
    )
    load(encoder, tmp_path / "x.safetensors")
    torch.testing.assert_close(encoder.state_dict()["bn1.running_var"], state["bn1.running_var"])
    assert encoder.state_dict()["bn1.num_batches_tracked"] == 0


def test_prefix_that_belongs_to_encoder_is_kept(tmp_path):
    class Wrapped(nn.Module):
        def __init__(self):
            super().__init__()
            self.encoder = nn.Sequential(nn.Conv2d(3, 4, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten())
            self.network = nn.Linear(4, 5)

        def forward(self, images):
            return self.network(self.encoder(images))

    source, encoder = Wrapped(), ModuleEncoder(Wrapped)
    save_file(source.state_dict(), tmp_path / "x.safetensors")
    load(encoder, tmp_path / "x.safetensors")
    images = torch.rand(2, 3, 8, 8)
    torch.testing.assert_close(encoder(images), source(images))


def test_timm_resamples_the_position_embeddings_of_a_transformer(tmp_path):
    name, options = "vit_tiny_patch16_224", {"depth": 2}
    source = timm.create_model(name, img_size=64, num_classes=10, **options)
    torch.save(source.state_dict(), tmp_path / "x.pth")
    published = {"state_dict": source.state_dict(), "num_classes": 10, "custom_load": False}
    expected = timm.create_model(
        name, img_size=96, num_classes=0, pretrained=True, pretrained_cfg_overlay=published, **options
    ).eval()
    encoder = Timm(name, img_size=96, **options)
    used = load(encoder, tmp_path / "x.pth")
    assert used == "30 tensors; pos_embed resized from (1, 17, 192) to (1, 37, 192); head left out"
    images = torch.rand(1, 3, 96, 96)
    with torch.no_grad():
        torch.testing.assert_close(encoder.eval()(images), expected(images))


def test_a_file_of_another_network_is_refused(tmp_path):
    save_file(random_state(ResNet(width=4)), tmp_path / "x.safetensors")
    for encoder in (
        Timm("vit_tiny_patch16_224", img_size=32, depth=1),
        Timm("convnext_atto"),
        ResNet(width=8),
    ):
        with pytest.raises(InputError, match=r"x\.safetensors: "):
            load(encoder, tmp_path / "x.safetensors")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda value: value.bool(), "is torch.bool, but floating-point numbers are expected"),
        (lambda value: value.to(torch.int8), "is torch.int8"),
        (lambda value: value.to(torch.complex64), "is torch.complex64"),
        (lambda value: value * torch.nan, "contains NaN or infinite values"),
        (lambda value: value / 0, "contains NaN or infinite values"),
        (lambda value: value.to_sparse(), "is sparse, quantized or without data"),
        (lambda value: value.to("meta"), "is sparse, quantized or without data"),
    ],
)
def test_tensors_that_are_not_finite_numbers_are_refused(change, words, tmp_path):
    encoder = ResNet(width=4)
    before = {name: value.clone() for name, value in encoder.state_dict().items()}
    state = before | {"conv1.weight": change(before["conv1.weight"])}
    torch.save(state, tmp_path / "x.pth")
    with pytest.raises(InputError, match=rf"x\.pth: conv1\.weight {words}"):
        load(encoder, tmp_path / "x.pth")
    torch.testing.assert_close(dict(encoder.state_dict()), before)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_other_precisions_are_converted(dtype, tmp_path):
    encoder = ResNet(width=4)
    state = random_state(encoder)
    torch.save({name: value.to(dtype) for name, value in state.items()}, tmp_path / "x.pth")
    load(encoder, tmp_path / "x.pth")
    torch.testing.assert_close(encoder.conv1.weight, state["conv1.weight"].to(dtype).float(), rtol=0, atol=0)


def test_a_state_dict_without_names_is_refused(tmp_path):
    torch.save({1: torch.ones(1), "a": torch.ones(1)}, tmp_path / "x.pth")
    with pytest.raises(InputError, match="not a state dict that maps names to tensors"):
        read_weights(tmp_path / "x.pth", option="--weights")


def test_missing_name_error_shows_a_name_from_the_file(tmp_path):
    torch.save(random_state(ResNet(width=4), "net."), tmp_path / "x.pth")
    with pytest.raises(InputError, match=r"no conv1\.weight, but net\..*encoder \(ResNet\): --encoder must"):
        load(ResNet(width=4), tmp_path / "x.pth")


def test_weights_under_other_names_load_by_order(tmp_path):
    encoder, file = Timm("resnet10t"), tmp_path / "x.pth"
    values = random_state(encoder)
    renamed = {f"_block{number}": value for number, value in enumerate(values.values())}
    torch.save(renamed | {"_fc.weight": torch.ones(3, 512)}, file)
    with pytest.raises(InputError, match=r"has no conv1\.0\.weight"):
        load(encoder, file)
    used = load(encoder, file, by_order=True)
    first, *_, last = (name.removeprefix("network.") for name in values)
    ends = f"from _block0 as {first} to _block{len(values) - 1} as {last}"
    assert used == f"{len(values)} tensors by order, {ends}, without _fc.weight"
    for name, value in encoder.named_parameters():
        torch.testing.assert_close(value.detach(), values[name])


def test_order_with_another_shape_or_too_few_tensors_is_refused(tmp_path):
    encoder, file = ResNet(width=4), tmp_path / "x.pth"
    values = list(random_state(encoder).values())
    for tensors, line in (
        ([values[1], values[0]], r"a0 \(4,\) is in the place of conv1\.weight \(4, 3, 3, 3\)"),
        (values[:7], r"has 7 tensors, so none for layer1\.0"),
    ):
        torch.save({f"a{number}": tensor for number, tensor in enumerate(tensors)}, file)
        with pytest.raises(InputError, match=line):
            load(encoder, file, by_order=True)
